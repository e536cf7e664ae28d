"""Rollouts in shards, and rollouts that run ahead of training, from the command line."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.data.arrow import read_table
from tests.workflows.runs import Finished, Warm, table_differences

AHEAD = {
    "rollout__staleness": 2,
    "rl__max_steps": 8,
    "rl__save_every": 4,
    "rl__mini_batches": 1,
    "trainer__lr_schedule": "constant",
    "trainer__keep_last": 3,
    "evaluation__every": 0,
}
LAGS = [0, 1, 2, 2, 0, 1, 2, 2]


@pytest.fixture(scope="module")
def ahead(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return warm.grpo(tmp_path_factory.mktemp("ahead"), **AHEAD)


def lags(run: Finished) -> list[int]:
    """Return by how many versions the rows of each step trail the policy that trains on them."""
    assert run.code == 0, run.output[-3000:]
    paths = sorted((run.directory / "tables").glob("*.arrow"))
    versions = [set(read_table(path)["policy_version"].to_pylist()) for path in paths]
    return [step - version for step, (version,) in enumerate(versions)]


def test_rows_trail_by_the_staleness_and_the_metric_says_so(warm: Warm, ahead: Finished) -> None:
    assert lags(ahead) == LAGS
    client = MlflowClient(tracking_uri=warm.store)
    points = client.get_metric_history(str(ahead.summary["mlflow_run_id"]), "train/policy_lag")
    assert [point.value for point in points] == LAGS


def test_a_run_that_is_resumed_is_the_run_that_was_not_interrupted(
    warm: Warm, ahead: Finished, tmp_path: Path
) -> None:
    shutil.copytree(ahead.directory, tmp_path / "tiny")
    shutil.rmtree(tmp_path / "tiny" / "checkpoints" / "step-000008")
    resumed = warm.grpo(tmp_path, **AHEAD)
    assert "continuing after step 4 of 8" in resumed.output
    assert resumed.weights == ahead.weights
    assert table_differences(resumed, ahead) == []


def test_another_staleness_cannot_continue_a_run(
    warm: Warm, ahead: Finished, tmp_path: Path
) -> None:
    shutil.copytree(ahead.directory, tmp_path / "tiny")
    refused = warm.grpo(tmp_path, **{**AHEAD, "rollout__staleness": 1})
    assert refused.code != 0
    assert "rollout.staleness: the checkpoint has 2, this run has 1" in refused.output


def test_the_engine_may_say_what_the_policy_that_sampled_said(
    warm: Warm, ahead: Finished, tmp_path: Path
) -> None:
    engine = warm.grpo(tmp_path, **AHEAD, rl__old_logprobs="engine")
    assert lags(engine) == LAGS
    assert engine.summary["objective_identity"] != ahead.summary["objective_identity"]


def test_groups_without_signal_are_replaced_by_the_policy_that_sampled_the_others(
    warm: Warm, tmp_path: Path
) -> None:
    changed = {**AHEAD, "rl__dynamic_sampling_rounds": 2, "rollout__group_size": 2}
    run = warm.grpo(tmp_path, **changed)
    assert lags(run) == LAGS
    ids = [
        read_table(path)["sample_id"].to_pylist()
        for path in sorted((run.directory / "tables").glob("*.arrow"))
    ]
    assert max(map(max, ids)) >= 8  # beyond those of a step's own prompts


@pytest.mark.parametrize("shards", [2, 3])
def test_the_number_of_shards_changes_no_bit(warm: Warm, tmp_path: Path, shards: int) -> None:
    sizes = {"rollout__prompts_per_step": 6, "rl__max_steps": 2, "evaluation__every": 0}
    runs = [warm.grpo(tmp_path / str(n), rollout__shards=n, **sizes) for n in (1, shards)]
    assert runs[0].weights == runs[1].weights
    assert table_differences(*runs) == []
