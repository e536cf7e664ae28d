"""How large the graphs of a long run are, and what in them waits for what."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from flyteidl.core import dynamic_job_pb2
from flyteidl.core import workflow_pb2 as core
from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.core.python_function_task import PythonFunctionTask

from configs.overlap import SEGMENT_STEPS
from configs.resolve import resolve
from configs.run import RunConfig
from tasks.data.arrow import FILE_NAME, TableReference, write_table
from tasks.handle import Policy, Run, in_place
from tasks.rollout_shards import RETRIES
from tests.podgraph import in_order, needs, settings
from workflows.grpo import grpo_step, loop, segment

NODE_LIMIT = 100
"""Nodes of one graph that a cluster admits by default."""

SIZE_LIMIT = 1_000_000
"""Bytes of one graph: what the cluster's own store takes for an object is some more."""

NUM_STEPS = 1000


@pytest.fixture
def given(tmp_path: Path) -> dict[str, object]:
    """Inputs with paths as long as those on a cluster."""
    path = tmp_path / ("x" * 80)
    write_table(path / "pool" / FILE_NAME, pa.table({"a": [1]}))
    pool = TableReference(uri=str(path / "pool"), file_format="arrow")
    (path / "policy").mkdir()
    here = in_place(path / "policy")
    policy = Policy(
        version=0,
        step=0,
        digest="d" * 64,
        state_digest="s" * 64,
        identity="i" * 64,
        weights=here,
        trainer_state=here,
    )
    run = Run(
        mlflow_run_id="r" * 32,
        directory=str(path),
        start_step=0,
        checkpoint="",
        identity="i" * 64,
        lineage="l" * 4000,
        opened_at=0.0,
        elapsed_before_s=0.0,
        setup_s=0.0,
    )
    return {"run": run, "policy": policy, "pool": pool, "held_out": pool, "auxiliary": {}}


def config(overrides: str = "") -> RunConfig:
    return resolve("grpo_arithmetic", f"rl.max_steps={NUM_STEPS} {overrides}")


def graph(task: PythonFunctionTask, **inputs: object) -> dynamic_job_pb2.DynamicJobSpec:
    """Return what a dynamic task leaves on a cluster."""
    task._wf = None  # compiled once per process otherwise, with the inputs of that time
    context = FlyteContextManager.current_context()
    state = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    builder = context.with_execution_state(state).with_serialization_settings(settings())
    with FlyteContextManager.with_context(builder):
        return task.execute(**inputs).to_flyte_idl()


def names(spec: dynamic_job_pb2.DynamicJobSpec) -> list[str]:
    return [kind(node) for node in in_order(spec.nodes)]


def kind(node: core.Node) -> str:
    """Return the name of the task that a node runs, once or many times."""
    if node.WhichOneof("target") == "array_node":
        name = kind(node.array_node.node)
        return name.removeprefix("map_").rpartition("_")[0]
    return node.task_node.reference_id.name.rpartition(".")[2]


def before(spec: dynamic_job_pb2.DynamicJobSpec) -> dict[str, set[str]]:
    """Return the ids of all nodes that a node waits for, directly or not."""
    found: dict[str, set[str]] = {}
    for node in in_order(spec.nodes):
        direct = needs(node) & found.keys()
        found[node.id] = direct.union(*(found[other] for other in direct))
    return found


@pytest.mark.parametrize("overrides", ["", "rollout.staleness=2 rl.save_every=0"])
def test_a_segment_is_small(given: dict[str, object], overrides: str) -> None:
    spec = graph(segment, config=config(overrides), start=0, stop=SEGMENT_STEPS, **given)
    per_step = Counter(names(spec))
    assert set(per_step.values()) == {SEGMENT_STEPS}
    assert len(spec.nodes) <= NODE_LIMIT
    assert len(spec.SerializeToString()) < SIZE_LIMIT


def test_the_loop_of_a_thousand_steps_is_small(given: dict[str, object]) -> None:
    inputs = {name: given[name] for name in ("run", "pool", "held_out")}
    spec = graph(loop, config=config(), first=given["policy"], **inputs)
    assert Counter(names(spec)) == {"segment": NUM_STEPS / SEGMENT_STEPS, "evaluate": 1}
    assert len(spec.SerializeToString()) < SIZE_LIMIT


def test_segments_end_at_the_same_steps_wherever_a_run_starts(given: dict[str, object]) -> None:
    run = given["run"].model_copy(update={"start_step": 130})
    inputs = {name: given[name] for name in ("pool", "held_out")}
    spec = graph(loop, config=config(), run=run, first=given["policy"], **inputs)
    stops = [
        item.binding.scalar.primitive.integer
        for node in in_order(spec.nodes)
        for item in node.inputs
        if item.var == "stop"
    ]
    assert stops == list(range(160, 1001, 40))


PLAIN = ["select_prompts", "rollout", "score", "annotate", "train_chunks", "track", "checkpoint"]


def test_the_nodes_of_a_step(given: dict[str, object]) -> None:
    plain = graph(grpo_step, config=config("evaluation.every=5"), step=4, **given)
    assert names(plain) == PLAIN
    full = config("rollout.shards=4 evaluation.every=5 tracking.deck_every=5")
    spec = graph(grpo_step, config=full, step=5, **given)
    more = {"evaluate", "report", "rollout_shard", "join_shards"}
    assert Counter(names(spec)) == Counter({*PLAIN, *more} - {"rollout"})


def test_a_shard_may_be_interrupted_and_is_tried_again_by_itself(given: dict[str, object]) -> None:
    spec = graph(grpo_step, config=config("rollout.shards=4"), step=4, **given)
    (array,) = (n.array_node for n in spec.nodes if n.WhichOneof("target") == "array_node")
    assert array.node.metadata.interruptible
    assert array.node.metadata.retries.retries == RETRIES
    requested = {r.name: r.value for r in array.node.task_node.overrides.resources.requests}
    role = config().resources.rollout
    assert set(requested.values()) == {role.cpu, role.memory}


def test_a_node_asks_for_the_kind_of_accelerator_that_its_role_names(
    given: dict[str, object],
) -> None:
    words = "resources.train.gpus=2 resources.train.gpu_type=nvidia-h100 trainer.num_processes=2"
    spec = graph(grpo_step, config=config(words), step=4, **given)
    overrides = {kind(n): n.task_node.overrides for n in spec.nodes if n.HasField("task_node")}
    devices = {name: o.extended_resources.gpu_accelerator.device for name, o in overrides.items()}
    assert devices.pop("train_chunks") == "nvidia-h100"
    assert set(devices.values()) == {""}


@pytest.mark.parametrize("staleness", [1, 2])
def test_rollouts_ahead_and_updates_do_not_wait_for_each_other(
    given: dict[str, object], staleness: int
) -> None:
    spec = graph(
        segment,
        config=config(f"rollout.staleness={staleness} rl.save_every=0"),
        start=0,
        stop=6,
        **given,
    )
    nodes, waits = in_order(spec.nodes), before(spec)
    of_step = {(kind(node), step(node)): node.id for node in nodes}
    for at in range(1, 6 - staleness):
        update, ahead = of_step["grpo_update", at], of_step["collect_ahead", at + staleness]
        assert of_step["grpo_update", at - 1] in waits[ahead]
        assert of_step["collect_ahead", at] in waits[update]
        assert update not in waits[ahead]
        assert ahead not in waits[update]


def step(node: core.Node) -> int:
    return next(item.binding.scalar.primitive.integer for item in node.inputs if item.var == "step")
