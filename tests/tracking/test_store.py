import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import create_engine

from tasks.tracking.metrics import history, log_step
from tasks.tracking.runs import create_run
from tasks.tracking.store import artifact_location, open_store, store_uri

ROOT = Path(__file__).parents[2]

START = """
import sys, time
from tasks.tracking.runs import create_run
from tasks.tracking.store import open_store
while time.time() < float(sys.argv[2]):
    time.sleep(0.001)
client = open_store("", sys.argv[1])
print(create_run(client, experiment="e", run_name="r", params={}, tags={}, config_text="a: 1"))
"""

WRITE = """
import sys
from tasks.tracking.metrics import log_step
from tasks.tracking.store import open_store
client = open_store("", sys.argv[1])
for step in range(50):
    log_step(client, sys.argv[2], step, {f"writer{sys.argv[3]}/loss": step / 2})
"""

DIE = """
import os, signal, sys
from tasks.tracking.metrics import log_step
from tasks.tracking.store import open_store
client = open_store("", sys.argv[1])
for step in range(10):
    log_step(client, sys.argv[2], step, {"loss": float(step)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def start(script: str, *arguments: object, cwd: Path = ROOT) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def output(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert error == "", "library noise reached the terminal"
    return out.strip()


def new_run(root: Path) -> str:
    client = open_store("", root)
    return create_run(client, experiment="e", run_name="r", params={}, tags={}, config_text="a: 1")


def test_an_empty_uri_means_a_database_under_the_output_root(tmp_path: Path) -> None:
    assert store_uri("", tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert store_uri("", "runs") == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert store_uri("sqlite:///own.db", "runs") == f"sqlite:///{tmp_path}/own.db"


def test_a_server_is_left_as_named() -> None:
    assert store_uri("http://tracking:5000", "runs") == "http://tracking:5000"


def test_artifacts_lie_beside_a_local_database(tmp_path: Path) -> None:
    client = open_store("", tmp_path / "out put")
    assert artifact_location(client) == str(tmp_path / "out put" / "mlartifacts")


def test_opening_twice_gives_the_same_client(tmp_path: Path) -> None:
    assert open_store("", tmp_path) is open_store("", tmp_path)


def test_two_processes_may_create_the_database_at_once(tmp_path: Path) -> None:
    moment = time.time() + 1.0
    starters = [start(START, tmp_path, moment) for _ in range(2)]
    runs = {output(process) for process in starters}
    client = open_store("", tmp_path)
    experiment = client.get_experiment_by_name("e")
    assert {run.info.run_id for run in client.search_runs([experiment.experiment_id])} == runs
    assert len(runs) == 2


def test_a_database_left_half_made_by_a_kill_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db.unfinished").write_bytes(b"not a database")
    assert new_run(tmp_path)


def test_nothing_is_written_to_the_current_directory(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    output(start(START, tmp_path / "out", 0, cwd=here))
    assert list(here.iterdir()) == []
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"mlflow.db", "mlartifacts"}
    assert len(list((tmp_path / "out/mlartifacts").rglob("config.yaml"))) == 1


def test_four_writers_at_once_lose_no_point(tmp_path: Path) -> None:
    run_id = new_run(tmp_path)
    writers = [start(WRITE, tmp_path, run_id, number) for number in range(4)]
    for writer in writers:
        output(writer)
    expected = [(step, step / 2) for step in range(50)]
    client = open_store("", tmp_path)
    for number in range(4):
        assert history(client, run_id, f"writer{number}/loss") == expected


def test_what_was_logged_survives_a_kill(tmp_path: Path) -> None:
    run_id = new_run(tmp_path)
    process = start(DIE, tmp_path, run_id)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    points = history(open_store("", tmp_path), run_id, "loss")
    assert points == [(step, float(step)) for step in range(10)]


def pragma(database: Path, name: str) -> object:
    engine = create_engine(f"sqlite:///{database}")
    with engine.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


def test_our_database_appends_to_a_log_and_waits_for_no_disk(tmp_path: Path) -> None:
    open_store("", tmp_path)
    assert pragma(tmp_path / "mlflow.db", "journal_mode") == "wal"
    assert pragma(tmp_path / "mlflow.db", "synchronous") == 1  # NORMAL
    assert pragma(tmp_path / "other.db", "synchronous") == 2  # FULL, sqlite's default


def test_a_database_with_another_journal_keeps_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    SqlAlchemyStore(f"sqlite:///{path}", str(tmp_path / "a")).engine.dispose()
    client = open_store(f"sqlite:///{path}", "unused")
    run_id = create_run(
        client, experiment="e", run_name="r", params={}, tags={}, config_text="a: 1"
    )
    log_step(client, run_id, 0, {"loss": 1.0})
    assert pragma(path, "journal_mode") == "delete"
    assert pragma(path, "synchronous") == 2


def test_a_folder_store_is_refused_by_mlflow(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="MLFLOW_ALLOW_FILE_STORE"):
        open_store(f"file://{tmp_path}", tmp_path)
