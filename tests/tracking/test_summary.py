import json
import math
from pathlib import Path

import pytest

from tasks.tracking.summary import Summary, first_and_last, with_orchestration, write_summary

KEYS = [
    "steps",
    "first_accuracy",
    "last_accuracy",
    "first_reward",
    "last_reward",
    "seconds",
    "mlflow_run_id",
    "checkpoint",
    "weights_digest",
    "config_digest",
    "objective_identity",
]


def summary(**changes: object) -> Summary:
    values = {
        "steps": 2,
        "first_accuracy": 0.5,
        "last_accuracy": 0.75,
        "first_reward": 0.25,
        "last_reward": 1.0,
        "seconds": {"rollout": 1.5, "orchestration": 0.5, "total": 2.0},
        "mlflow_run_id": "r",
        "checkpoint": "/runs/job/checkpoints/2",
        "weights_digest": "w",
        "config_digest": "c",
        "objective_identity": "o",
    }
    return Summary(**{**values, **changes})


def test_the_file_has_the_agreed_keys_and_values(tmp_path: Path) -> None:
    path = write_summary(summary(), tmp_path, "job")
    assert path == tmp_path / "job" / "summary.json"
    written = json.loads(path.read_text())
    assert list(written) == KEYS
    assert written["seconds"] == {"rollout": 1.5, "orchestration": 0.5, "total": 2.0}
    assert written["last_accuracy"] == 0.75


def test_a_second_summary_replaces_the_first_and_leaves_no_trace(tmp_path: Path) -> None:
    write_summary(summary(), tmp_path, "job")
    path = write_summary(summary(steps=5), tmp_path, "job")
    assert json.loads(path.read_text())["steps"] == 5
    assert [file.name for file in path.parent.iterdir()] == ["summary.json"]


def test_a_summary_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = write_summary(summary(), tmp_path, "job")
    before = path.read_text()
    with pytest.raises(TypeError):
        write_summary(summary(checkpoint=object()), tmp_path, "job")
    assert path.read_text() == before


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    path = write_summary(summary(last_reward=math.nan, first_accuracy=None), tmp_path, "job")
    written = json.loads(path.read_text())
    assert written["last_reward"] is None
    assert written["first_accuracy"] is None


def test_first_and_last_go_by_step_and_not_by_order() -> None:
    assert first_and_last([(3, 0.3), (1, 0.1), (2, 0.2)]) == (0.1, 0.3)


def test_orchestration_is_the_time_in_no_stage() -> None:
    assert with_orchestration({"rollout": 1.0, "train": 2.0}, total_s=4.0)["orchestration"] == 1.0
    assert with_orchestration({"rollout": 5.0}, total_s=4.0)["orchestration"] == 0.0
