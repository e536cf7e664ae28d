"""A run that is killed, stopped or repeated ends with the weights of one that was left alone."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.workflows.runs import TIMEOUT_S, Finished, Warm, table_differences

LONG = {
    "rl__max_steps": 8,
    "rl__save_every": 2,
    "trainer__lr_schedule": "constant",
    "trainer__warmup_steps": 3,
    "evaluation__every": 3,
    "trainer__keep_last": 3,
}
NUM_KILLS = 6


@pytest.fixture(scope="module")
def whole(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Return a run of eight steps that nothing has disturbed."""
    return warm.grpo(tmp_path_factory.mktemp("whole"), **LONG)


@pytest.fixture
def copy(whole: Finished, tmp_path: Path) -> Path:
    """Return an output root with a finished run that a test may change."""
    shutil.copytree(whole.directory.parent, tmp_path / "copy")
    return tmp_path / "copy"


def stop(warm: Warm, root: Path, sent: signal.Signals, *, after: int, delay_s: float) -> int:
    """Signal a run once it has told of `after` steps and `delay_s` have passed."""
    log = root / f"log-{random.randrange(10**9)}"
    pid = warm.start(warm.command(root, **LONG), log=log)
    deadline = time.monotonic() + TIMEOUT_S
    while not (log.exists() and log.read_text().count("step ") >= after):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)
    time.sleep(delay_s)
    os.kill(pid, sent)
    return warm.wait(pid)


def assert_like(whole: Finished, run: Finished) -> None:
    assert run.weights == whole.weights
    assert run.summary["steps"] == whole.summary["steps"]
    assert table_differences(run, whole) == []
    assert run.checkpoints == whole.checkpoints


def test_kills_at_random_moments_change_nothing(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    moments = random.Random(0)
    codes = [
        stop(warm, tmp_path, signal.SIGKILL, after=0, delay_s=moments.uniform(0.0, 1.2))
        for _ in range(NUM_KILLS // 2)
    ]
    codes += [
        stop(warm, tmp_path, signal.SIGKILL, after=1, delay_s=moments.uniform(0.0, 0.2))
        for _ in range(NUM_KILLS // 2)
        if not (tmp_path / "tiny" / "summary.json").exists()
    ]
    assert -signal.SIGKILL in codes
    survivor = warm.grpo(tmp_path, **LONG)
    assert_like(whole, survivor)
    assert not list((survivor.directory / "checkpoints").glob(".*"))


def test_after_a_kill_every_step_has_one_point_and_the_run_is_finished(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    stop(warm, tmp_path, signal.SIGKILL, after=5, delay_s=0.0)
    resumed = warm.grpo(tmp_path, **LONG)
    assert_like(whole, resumed)
    assert "continuing after step 4 of 8" in resumed.output
    client = MlflowClient(tracking_uri=warm.store)
    run = client.get_run(str(resumed.summary["mlflow_run_id"]))
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/reward/mean")
    assert [point.step for point in history] == list(range(8))


def test_an_interrupt_from_the_keyboard_changes_nothing(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    code = stop(warm, tmp_path, signal.SIGINT, after=3, delay_s=0.0)
    assert code != 0
    assert_like(whole, warm.grpo(tmp_path, **LONG))


def test_four_and_four_steps_are_eight(warm: Warm, whole: Finished, tmp_path: Path) -> None:
    half = warm.grpo(tmp_path, **{**LONG, "rl__max_steps": 4})
    assert half.summary["steps"] == 4
    assert half.weights != whole.weights
    assert_like(whole, warm.grpo(tmp_path, **LONG))


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    warm: Warm, whole: Finished, copy: Path
) -> None:
    weights = copy / "tiny/checkpoints/step-000008/weights/model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    resumed = warm.grpo(copy, **LONG)
    assert "a checkpoint was damaged, and is passed over; it now lies in" in resumed.output
    assert "continuing after step 6 of 8" in resumed.output
    assert_like(whole, resumed)


def test_another_run_may_start_from_a_checkpoint(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    start = whole.directory / "checkpoints" / "step-000006"
    fork = warm.grpo(tmp_path, "--resume_from", str(start), job__name="fork", **LONG)
    assert fork.weights == whole.weights
    assert list(fork.tables) == ["step-000006.arrow", "step-000007.arrow"]


def test_what_is_no_checkpoint_cannot_be_started_from(warm: Warm, tmp_path: Path) -> None:
    refused = warm.grpo(tmp_path, "--resume_from", str(tmp_path))
    assert refused.code != 0
    assert "is not an intact checkpoint" in refused.output


def test_a_finished_run_trains_no_more_and_says_so(warm: Warm, whole: Finished, copy: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (copy / "tiny").rglob("*.safetensors")}
    again = warm.grpo(copy, **LONG)
    assert again.code == 0
    assert "nothing left to train" in again.output
    assert "raise rl.max_steps to go on, or set rl.resume=off to start over" in again.output
    assert_like(whole, again)
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in before.items())


def test_another_objective_cannot_continue_a_run(warm: Warm, copy: Path) -> None:
    changed = {**LONG, "rl__epsilon_high": 0.3, "job__seed": 5}
    before = (copy / "tiny" / "run.json").read_text()
    refused = warm.grpo(copy, **changed)
    assert refused.code != 0
    assert "cannot resume from" in refused.output
    assert "epsilon_high: the checkpoint has 0.2, this run has 0.3" in refused.output
    assert "job.seed: the checkpoint has 0, this run has 5" in refused.output
    assert "start over with rl.resume=off" in refused.output
    assert (copy / "tiny" / "run.json").read_text() == before


def test_starting_over_sets_the_earlier_run_aside_whole(
    warm: Warm, whole: Finished, copy: Path
) -> None:
    fresh = warm.grpo(copy, **{**LONG, "rl__resume": "off", "rl__max_steps": 2})
    assert fresh.summary["steps"] == 2
    assert list(fresh.tables) == ["step-000000.arrow", "step-000001.arrow"]
    aside = json.loads((copy / "tiny.1" / "summary.json").read_text())
    assert aside == whole.summary
    assert aside["mlflow_run_id"] != fresh.summary["mlflow_run_id"]
