"""What tasks keep in memory between them never changes a bit of what they compute."""

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from flytekit.core.workflow import WorkflowBase

from tests.podrunner import ATTEMPT, INDEX, PodError, Pods, Ran
from tests.workflows.runs import Finished, Warm, overrides, table_differences
from tests.workflows.test_dpo import TINY as PAIRS
from tests.workflows.test_opd import SMALL as TEACHER
from workflows.dpo import dpo
from workflows.grpo import grpo
from workflows.opd import opd

TWO_STEPS = {"rl__max_steps": 2, "evaluation__every": 0}
ONE_STEP = {**TWO_STEPS, "rl__max_steps": 1}


def pods(warm: Warm, root: Path) -> Pods:
    return Pods(warm.execute, root / "logs", str(root / "pods"))


def tiny(root: Path, **changed: object) -> Finished:
    """Return the run that a process per task has left under `root`."""
    return Finished(0, "", root / str(changed.get("job__name", "tiny")))


def assert_equal(apart: Finished, together: Finished) -> None:
    assert apart.weights == together.weights
    assert table_differences(apart, together) == []
    assert apart.checkpoints == together.checkpoints


def test_shards_in_a_process_each_give_the_weights_of_one_rollout_in_one_process_for_all(
    warm: Warm, tmp_path: Path
) -> None:
    alone = warm.grpo(tmp_path / "one", **TWO_STEPS)
    runner = pods(warm, tmp_path)
    more = {"tracking__uri": warm.store, "rollout__shards": 2, **TWO_STEPS}
    runner.run(grpo, overrides=overrides(tmp_path / "many", **more))
    counts = Counter(runner.names())
    assert counts["train_chunks"] == counts["join_shards"] == counts["grpo_step"] == 2
    assert [ran.index for ran in runner.ran if ran.index] == ["0", "1"] * 2
    assert_equal(tiny(tmp_path / "many"), alone)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"rl__dynamic_sampling_rounds": 1, "reward__provider": "exact_match", **ONE_STEP},
            "merge_groups",  # no answer is right, so every group is replaced
        ),
        ({"rollout__staleness": 1, "rl__save_every": 0, **TWO_STEPS}, "collect_ahead"),
    ],
)
def test_graphs_that_grow_while_they_run_give_the_same_bits(
    warm: Warm, tmp_path: Path, changed: dict[str, object], expected: str
) -> None:
    alone = warm.grpo(tmp_path / "one", **changed)
    runner = pods(warm, tmp_path)
    words = overrides(tmp_path / "many", tracking__uri=warm.store, **changed)
    runner.run(grpo, overrides=words)
    assert expected in runner.names()
    assert_equal(tiny(tmp_path / "many"), alone)


@pytest.mark.parametrize(
    ("workflow", "recipe", "settings", "trains"),
    [
        (opd, "opd_arithmetic", {**TEACHER, "rl.max_steps": 1}, "train_chunks"),
        (dpo, "dpo_arithmetic", {**PAIRS, "dpo.max_steps": 1}, "train_pairs"),
    ],
)
def test_the_other_workflows_do_so_too(
    warm: Warm,
    tmp_path: Path,
    workflow: WorkflowBase,
    recipe: str,
    settings: dict[str, object],
    trains: str,
) -> None:
    def words(root: Path) -> str:
        values = {**settings, "job.output_root": root, "tracking.uri": warm.store}
        return " ".join(f"{key}={value}" for key, value in values.items())

    name = workflow.name.rpartition(".")[2]
    path = workflow.name.rpartition(".")[0].replace(".", "/")
    command = ["pyflyte", "run", f"{path}.py", name, "--recipe", recipe, "--overrides"]
    code, output = warm.run([*command, words(tmp_path / "one")], log=tmp_path / "log")
    runner = pods(warm, tmp_path)
    runner.run(workflow, recipe=recipe, overrides=words(tmp_path / "many"))
    assert Counter(runner.names())[trains] == 1
    assert_equal(tiny(tmp_path / "many"), Finished(code, output, tmp_path / "one" / "tiny"))


def test_a_shard_whose_machine_is_taken_away_is_sampled_again_alone(
    warm: Warm, tmp_path: Path
) -> None:
    alone = warm.grpo(tmp_path / "one", **ONE_STEP)

    def execute(command: list[str], envs: Sequence[Mapping[str, str]], log: Path) -> None:
        (env,) = envs
        pid = warm.start(command, log=log, env=env)
        if (env[INDEX], env[ATTEMPT]) == ("1", "0"):
            os.kill(pid, signal.SIGKILL)
        warm.wait(pid)

    runner = Pods(execute, tmp_path / "logs", str(tmp_path / "pods"))
    more = {"tracking__uri": warm.store, "rollout__shards": 3, **ONE_STEP}
    runner.run(grpo, overrides=overrides(tmp_path / "many", **more))
    attempts = [(ran.index, ran.attempt) for ran in runner.ran if ran.index]
    assert attempts == [("0", 0), ("1", 0), ("1", 1), ("2", 0)]
    assert Counter(runner.names())["train_chunks"] == 1
    assert tiny(tmp_path / "many").weights == alone.weights


def test_two_runs_in_one_process_do_not_see_each_other(warm: Warm, tmp_path: Path) -> None:
    seeds = (0, 1)
    alone = [warm.grpo(tmp_path / f"alone-{seed}", job__seed=seed, **TWO_STEPS) for seed in seeds]
    commands = [
        warm.command(tmp_path / f"joint-{seed}", job__seed=seed, **TWO_STEPS) for seed in seeds
    ]
    code, output = warm.run(*commands, log=tmp_path / "log")
    assert code == 0, output[-3000:]
    joint = [Finished(code, output, tmp_path / f"joint-{seed}" / "tiny") for seed in seeds]
    assert [run.weights for run in joint] == [run.weights for run in alone]
    assert table_differences(joint[1], alone[1]) == []


def test_a_task_that_fails_in_its_own_process_tells_why_and_is_not_tried_again(
    warm: Warm, tmp_path: Path
) -> None:
    runner = pods(warm, tmp_path)
    with pytest.raises(PodError, match=r"rl\.grup_size: unknown key"):
        runner.run(grpo, overrides=overrides(tmp_path, rl__grup_size=8))
    assert runner.ran == [Ran("tasks.resolve_config.resolve_config", 0, "")]
