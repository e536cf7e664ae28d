"""What a compiled workflow says: its templates, the order of its nodes, and their inputs."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgpack
from flyteidl.admin import task_pb2, workflow_pb2
from flyteidl.core import dynamic_job_pb2, literals_pb2, tasks_pb2, types_pb2
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
from flytekit.tools.translator import get_serializable

Literal, LiteralMap = literals_pb2.Literal, literals_pb2.LiteralMap
Outputs = dict[str, LiteralMap]


@dataclass(frozen=True)
class Entities:
    """What a graph refers to, by name."""

    tasks: Mapping[str, tasks_pb2.TaskTemplate]
    workflows: Mapping[str, core.WorkflowTemplate]

    def and_those_of(self, spec: dynamic_job_pb2.DynamicJobSpec) -> "Entities":
        tasks = {task.id.name: task for task in spec.tasks}
        workflows = {flow.id.name: flow for flow in spec.subworkflows}
        return Entities({**self.tasks, **tasks}, {**self.workflows, **workflows})


def settings() -> SerializationSettings:
    """Return settings under which a workflow compiles as it would for a cluster."""
    image = Image("default", "local", "none")
    return SerializationSettings(
        image_config=ImageConfig(default_image=image),
        project="local",
        domain="local",
        version="v",
        fast_serialization_settings=FastSerializationSettings(enabled=False),
    )


def compiled(workflow: WorkflowBase) -> Entities:
    """Return the templates of a workflow and of everything that it refers to."""
    found: OrderedDict[object, object] = OrderedDict()
    get_serializable(found, settings(), workflow)
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
