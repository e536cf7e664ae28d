"""Runs a compiled Flyte workflow with one process per task, as a cluster does.

Only protocol buffers and paths cross from one task to another: `inputs.pb` is written, the task is
executed by `pyflyte-execute`, and it leaves `outputs.pb`, the graph `futures.pb` of a dynamic task,
or `error.pb`. Covers what the workflows here are made of: tasks, dynamic tasks at any depth,
sub-workflows, and attributes of outputs.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgpack
from flyteidl.admin import task_pb2, workflow_pb2
from flyteidl.core import dynamic_job_pb2, errors_pb2, literals_pb2, tasks_pb2, types_pb2
from flyteidl.core import workflow_pb2 as core
from flytekit.configuration import (
    FastSerializationSettings,
    Image,
    ImageConfig,
    SerializationSettings,
)
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.core.workflow import WorkflowBase
from flytekit.models.literals import LiteralMap as LiteralMapModel
from flytekit.tools.translator import get_serializable

Literal, LiteralMap = literals_pb2.Literal, literals_pb2.LiteralMap
Outputs = dict[str, LiteralMap]
Execute = Callable[[list[str], Mapping[str, str], Path], None]
"""Runs a command line with additions to its environment, and leaves its output in a log file."""

M = TypeVar("M")


class PodError(RuntimeError):
    """A task has failed."""


@dataclass(frozen=True)
class Entities:
    """What a graph refers to, by name."""

    tasks: Mapping[str, tasks_pb2.TaskTemplate]
    workflows: Mapping[str, core.WorkflowTemplate]

    def and_those_of(self, spec: dynamic_job_pb2.DynamicJobSpec) -> "Entities":
        tasks = {task.id.name: task for task in spec.tasks}
        workflows = {flow.id.name: flow for flow in spec.subworkflows}
        return Entities({**self.tasks, **tasks}, {**self.workflows, **workflows})


@dataclass
class Pods:
    """Executes graphs.

    Attributes:
        execute: starts one task's process and waits for it.
        root: directory of the protocol buffers, `meta/`, and of what tasks hand on, `raw/`.
        ran: name of every task that was executed, in order.
    """

    execute: Execute
    root: Path
    ran: list[str] = field(default_factory=list)

    def run(self, workflow: WorkflowBase, **inputs: object) -> dict[str, object]:
        """Run a workflow and return its outputs by name."""
        entities = compiled(workflow)
        template = entities.workflows[workflow.name]
        literals = to_literals(workflow, inputs)
        outputs = self._graph(template.nodes, template.outputs, literals, entities, "n")
        return TypeEngine.literal_map_to_kwargs(
            FlyteContextManager.current_context(),
            LiteralMapModel.from_flyte_idl(outputs),
            workflow.python_interface.outputs,
        )

    def _graph(
        self,
        nodes: Iterable[core.Node],
        outputs: Iterable[literals_pb2.Binding],
        inputs: LiteralMap,
        entities: Entities,
        path: str,
    ) -> LiteralMap:
        done: Outputs = {"start-node": inputs, "": inputs}
        for node in in_order(nodes):
            done[node.id] = self._node(node, bind(node.inputs, done), entities, f"{path}-{node.id}")
        return bind(outputs, done)

    def _node(
        self, node: core.Node, inputs: LiteralMap, entities: Entities, path: str
    ) -> LiteralMap:
        match node.WhichOneof("target"):
            case "task_node":
                template = entities.tasks[node.task_node.reference_id.name]
                return self._task(template, inputs, entities, path)
            case "workflow_node":
                flow = entities.workflows[node.workflow_node.sub_workflow_ref.name]
                return self._graph(flow.nodes, flow.outputs, inputs, entities, path)
            case other:
                raise NotImplementedError(f"{path}: a node of kind {other}")

    def _task(
        self,
        template: tasks_pb2.TaskTemplate,
        inputs: LiteralMap,
        entities: Entities,
        path: str,
    ) -> LiteralMap:
        folder = self._pod(template, inputs, path)
        outputs = read(folder / "outputs.pb", LiteralMap)
        if outputs is not None:
            return outputs
        graph = read(folder / "futures.pb", dynamic_job_pb2.DynamicJobSpec)
        if graph is None:
            raise PodError(f"{path} ({template.id.name}) left nothing in {folder}")
        empty = LiteralMap()
        return self._graph(graph.nodes, graph.outputs, empty, entities.and_those_of(graph), path)

    def _pod(self, template: tasks_pb2.TaskTemplate, inputs: LiteralMap, path: str) -> Path:
        folder = self.root / "meta" / path
        folder.mkdir(parents=True)
        (folder / "inputs.pb").write_bytes(inputs.SerializeToString(deterministic=True))
        places = {
            "{{.input}}": str(folder / "inputs.pb"),
            "{{.outputPrefix}}": str(folder),
            "{{.rawOutputDataPrefix}}": str(self.root / "raw" / path),
            "{{.checkpointOutputPrefix}}": str(self.root / "raw" / path / "_checkpoint"),
            "{{.prevCheckpointPrefix}}": '""',
        }
        command = [places.get(word, word) for word in template.container.args]
        env = {entry.key: entry.value for entry in template.container.env}
        self.execute(command, env, folder / "log")
        self.ran.append(template.id.name)
        error = read(folder / "error.pb", errors_pb2.ErrorDocument)
        if error is not None:
            raise PodError(f"{path} ({template.id.name}): {error.error.message}")
        return folder


def compiled(workflow: WorkflowBase) -> Entities:
    """Return the templates of a workflow and of everything that it refers to."""
    image = Image("default", "local", "none")
    settings = SerializationSettings(
        image_config=ImageConfig(default_image=image),
        project="local",
        domain="local",
        version="v",
        fast_serialization_settings=FastSerializationSettings(enabled=False),
    )
    found: OrderedDict[object, object] = OrderedDict()
    get_serializable(found, settings, workflow)
    specs = [item.to_flyte_idl() for item in found.values() if hasattr(item, "to_flyte_idl")]
    flows = [spec for spec in specs if isinstance(spec, workflow_pb2.WorkflowSpec)]
    nested = [flow for spec in flows for flow in spec.sub_workflows]
    templates = [spec.template for spec in specs if isinstance(spec, task_pb2.TaskSpec)]
    return Entities(
        {template.id.name: template for template in templates},
        {flow.id.name: flow for flow in (*nested, *(spec.template for spec in flows))},
    )


def to_literals(workflow: WorkflowBase, inputs: Mapping[str, object]) -> LiteralMap:
    """Return the inputs of a workflow, defaults filled in."""
    interface = workflow.python_interface
    defaults = {name: value for name, (_, value) in interface.inputs_with_defaults.items()}
    context = FlyteContextManager.current_context()
    literals = {
        name: TypeEngine.to_literal(
            context, {**defaults, **inputs}[name], kind, workflow.interface.inputs[name].type
        ).to_flyte_idl()
        for name, kind in interface.inputs.items()
    }
    return LiteralMap(literals=literals)


def in_order(nodes: Iterable[core.Node]) -> list[core.Node]:
    """Return the nodes such that each comes after those that it needs."""
    waiting = {node.id: node for node in nodes if node.id not in {"start-node", "end-node"}}
    ordered: list[core.Node] = []
    while waiting:
        ready = [node for node in waiting.values() if not needs(node) & waiting.keys()]
        assert ready, f"a cycle among {sorted(waiting)}"
        ordered += ready
        for node in ready:
            del waiting[node.id]
    return ordered


def needs(node: core.Node) -> set[str]:
    """Return the ids of the nodes whose outputs, or end, a node waits for."""
    return set(node.upstream_node_ids).union(*(sources(item.binding) for item in node.inputs))


def sources(binding: literals_pb2.BindingData) -> set[str]:
    """Return the ids of the nodes that a value is taken from."""
    match binding.WhichOneof("value"):
        case "promise":
            return {binding.promise.node_id}
        case "collection":
            return set().union(*map(sources, binding.collection.bindings))
        case "map":
            return set().union(*map(sources, binding.map.bindings.values()))
        case _:
            return set()


def bind(bindings: Iterable[literals_pb2.Binding], done: Outputs) -> LiteralMap:
    """Return the values that a node's inputs, or a graph's outputs, are bound to."""
    return LiteralMap(literals={item.var: value(item.binding, done) for item in bindings})


def value(binding: literals_pb2.BindingData, done: Outputs) -> Literal:
    """Return one bound value."""
    match binding.WhichOneof("value"):
        case "promise":
            whole = done[binding.promise.node_id].literals[binding.promise.var]
            return attribute(whole, [_step(part) for part in binding.promise.attr_path])
        case "collection":
            items = [value(item, done) for item in binding.collection.bindings]
            return Literal(collection=literals_pb2.LiteralCollection(literals=items))
        case "map":
            named = {name: value(item, done) for name, item in binding.map.bindings.items()}
            return Literal(map=LiteralMap(literals=named))
        case _:
            return Literal(scalar=binding.scalar)


def attribute(literal: Literal, path: list[str | int]) -> Literal:
    """Return the part of an output that `output.a["b"][0]` names in a workflow."""
    if not path:
        return literal
    match literal.WhichOneof("value"):
        case "collection":
            return attribute(literal.collection.literals[path[0]], path[1:])
        case "map":
            return attribute(literal.map.literals[path[0]], path[1:])
        case _:
            inner = msgpack.loads(literal.scalar.binary.value, strict_map_key=False)
            for part in path:
                inner = inner[part]
            packed = literals_pb2.Binary(value=msgpack.dumps(inner), tag="msgpack")
            return Literal(scalar=literals_pb2.Scalar(binary=packed))


def _step(part: types_pb2.PromiseAttribute) -> str | int:
    return getattr(part, part.WhichOneof("value"))


def read(path: Path, message: type[M]) -> M | None:
    """Return the protocol buffer in a file, or None if there is no such file."""
    return message.FromString(path.read_bytes()) if path.is_file() else None
