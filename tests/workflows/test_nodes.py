"""Training on several machines: the task that asks for them, and what comes of it."""

import os
from collections import Counter
from pathlib import Path

import pytest
from flytekit import task
from flytekit.extend import IgnoreOutputs

from configs.trainer import Trainer
from images.nodes import TRAIN_NODES, Nodes, require_nodes
from tests.podgraph import settings
from tests.workflows.runs import Warm, overrides
from tests.workflows.runs import warm as keep_warm
from tests.workflows.test_pods import ONE_STEP, assert_equal, pods, tiny
from workflows.grpo import grpo


@task(task_config=Nodes(number=3))
def three() -> str:
    return os.environ["RANK"]


@task(task_config=Nodes(number=1))
def one() -> str:
    return "returned"


def test_two_machines_of_a_process_each_give_the_bits_of_two_processes_on_one(
    warm: Warm, tmp_path: Path
) -> None:
    changed = {**ONE_STEP, "trainer__num_processes": 2, "trainer__strategy": "fsdp2"}
    alone = warm.grpo(tmp_path / "one", **changed)
    words = overrides(tmp_path / "many", tracking__uri=warm.store, trainer__num_nodes=2, **changed)
    with keep_warm(tmp_path / "scratch", **{TRAIN_NODES: "2"}) as machines:
        runner = pods(machines, tmp_path)
        runner.run(grpo, overrides=words)
    counts = Counter(runner.names())
    assert counts["train_chunks"] == 2
    assert counts["rollout"] == counts["checkpoint"] == 1
    assert_equal(tiny(tmp_path / "many"), alone)


def test_a_task_on_three_machines_is_a_job_of_a_master_and_two_workers() -> None:
    assert three.task_type == "pytorch"
    custom = three.get_custom(settings())
    assert custom == {"masterReplicas": {"replicas": 1}, "workerReplicas": {"replicas": 2}}


def test_a_task_on_one_machine_is_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert one.task_type == "python-task"
    assert not one.get_custom(settings())
    assert one() == "returned"


def test_the_first_machine_alone_returns_what_the_task_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert three.execute() == "0"
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(IgnoreOutputs):
        three.execute()


@pytest.mark.parametrize(("registered", "asked"), [("1", 4), ("4", 1), ("4", 2)])
def test_another_number_of_machines_than_was_registered_is_refused(
    monkeypatch: pytest.MonkeyPatch, registered: str, asked: int
) -> None:
    monkeypatch.setenv(TRAIN_NODES, registered)
    with pytest.raises(ValueError, match=rf"trainer\.num_nodes={asked}, .* {registered} machine"):
        require_nodes(Trainer(num_nodes=asked))


@pytest.mark.parametrize("word", ["0", "-1", "two", ""])
def test_a_number_of_machines_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(TRAIN_NODES, word)
    with pytest.raises(ValueError, match=f"TRAIN_NODES='{word}': expected a number of machines"):
        Nodes()
