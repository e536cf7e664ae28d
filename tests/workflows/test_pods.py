"""What tasks keep in memory between them never changes a bit of what they compute."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.podrunner import PodError, Pods
from tests.workflows.runs import Finished, Warm, overrides, table_differences
from workflows.grpo import grpo

STEPS = {"rl__max_steps": 2, "evaluation__every": 0}


def pods(warm: Warm, root: Path) -> Pods:
    def execute(command: list[str], env: Mapping[str, str], log: Path) -> None:
        warm.run(command, log=log, env=env)

    return Pods(execute, root / "pods")


def test_a_process_for_every_task_gives_the_weights_of_one_process_for_all(
    warm: Warm, tmp_path: Path
) -> None:
    alone = warm.grpo(tmp_path / "one", **STEPS)
    runner = pods(warm, tmp_path)
    words = overrides(tmp_path / "many", tracking__uri=warm.store, **STEPS)
    runner.run(grpo, overrides=words)
    counts = Counter(name.rpartition(".")[2] for name in runner.ran)
    assert counts["train_chunks"] == counts["rollout"] == counts["grpo_step"] == 2
    apart = Finished(0, "", tmp_path / "many" / "tiny")
    assert apart.weights == alone.weights
    assert table_differences(apart, alone) == []
    assert apart.checkpoints == alone.checkpoints


def test_two_runs_in_one_process_do_not_see_each_other(warm: Warm, tmp_path: Path) -> None:
    seeds = (0, 1)
    alone = [warm.grpo(tmp_path / f"alone-{seed}", job__seed=seed, **STEPS) for seed in seeds]
    commands = [warm.command(tmp_path / f"joint-{seed}", job__seed=seed, **STEPS) for seed in seeds]
    code, output = warm.run(*commands, log=tmp_path / "log")
    assert code == 0, output[-3000:]
    joint = [Finished(code, output, tmp_path / f"joint-{seed}" / "tiny") for seed in seeds]
    assert [run.weights for run in joint] == [run.weights for run in alone]
    assert table_differences(joint[1], alone[1]) == []


def test_a_task_that_fails_in_its_own_process_tells_why(warm: Warm, tmp_path: Path) -> None:
    with pytest.raises(PodError, match=r"rl\.grup_size: unknown key"):
        pods(warm, tmp_path).run(grpo, overrides=overrides(tmp_path, rl__grup_size=8))
