"""What tasks keep in memory between them never changes a bit of what they compute."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.podrunner import PodError, Pods
from tests.workflows.runs import Warm, overrides
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
    apart = type(alone)(0, "", tmp_path / "many" / "tiny")
    assert apart.weights == alone.weights
    assert apart.tables == alone.tables
    assert apart.checkpoints == alone.checkpoints


def test_a_task_that_fails_in_its_own_process_tells_why(warm: Warm, tmp_path: Path) -> None:
    with pytest.raises(PodError, match=r"rl\.grup_size: unknown key"):
        pods(warm, tmp_path).run(grpo, overrides=overrides(tmp_path, rl__grup_size=8))
