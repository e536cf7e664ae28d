"""Runs a compiled Flyte workflow with one process per task, as a cluster does.

Only protocol buffers and paths cross from one task to another: `inputs.pb` is written, the task is
executed by `pyflyte-execute`, and it leaves `outputs.pb`, the graph `futures.pb` of a dynamic task,
or `error.pb`. Covers what the workflows here are made of: tasks and their retries, map tasks, tasks
on several machines, dynamic tasks at any depth, sub-workflows, and attributes of outputs; on a disk
or an object store.
"""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from flyteidl.core import dynamic_job_pb2, errors_pb2, literals_pb2, tasks_pb2
from flyteidl.core import workflow_pb2 as core
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.core.workflow import WorkflowBase
from flytekit.models.literals import LiteralMap as LiteralMapModel
from fsspec.core import url_to_fs
from google.protobuf.json_format import MessageToDict

from tests.podgraph import Entities, Literal, LiteralMap, Outputs, bind, compiled, in_order
from tests.podgraph import to_literals as literals_of

Execute = Callable[[list[str], Sequence[Mapping[str, str]], Path], None]
"""Runs a command line once for each of some additions to its environment, at the same time, and
leaves what it prints in a log file."""

ATTEMPT, INDEX = "FLYTE_ATTEMPT_NUMBER", "FLYTE_K8S_ARRAY_INDEX"
"""Variables that tell a task which attempt it is, and which part of a map task."""

M = TypeVar("M")


class PodError(RuntimeError):
    """A task has failed."""


class Ran(NamedTuple):
    """One process: the task's name, its attempt, and its place in a map task, "" if in none."""

    task: str
    attempt: int
    index: str


class Pod(NamedTuple):
    """A task to run, with what it is given and how often it may be tried again."""

    template: tasks_pb2.TaskTemplate
    inputs: LiteralMap
    retries: int
    path: str
    index: str = ""


@dataclass
class Pods:
    """Executes graphs.

    Attributes:
        execute: starts the processes of a task and waits for them.
        logs: directory of what the processes print.
        store: prefix of the protocol buffers, `meta/`, and of what tasks hand on, `raw/`: a
            directory or an address such as `s3://bucket/run`.
        ran: every process that was started, in order.
    """

    execute: Execute
    logs: Path
    store: str
    ran: list[Ran] = field(default_factory=list)

    def run(self, workflow: WorkflowBase, **inputs: object) -> dict[str, object]:
        """Run a workflow and return its outputs by name."""
        entities = compiled(workflow)
        template = entities.workflows[workflow.name]
        literals = literals_of(workflow, inputs)
        outputs = self._graph(template.nodes, template.outputs, literals, entities, "n")
        return TypeEngine.literal_map_to_kwargs(
            FlyteContextManager.current_context(),
            LiteralMapModel.from_flyte_idl(outputs),
            workflow.python_interface.outputs,
        )

    def names(self) -> list[str]:
        """Return the short name of every task that was executed, in order."""
        return [ran.task.rpartition(".")[2] for ran in self.ran]

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
                return self._task(_pod(node, inputs, entities, path), entities)
            case "array_node":
                return self._map(node.array_node, inputs, entities, path)
            case "workflow_node":
                flow = entities.workflows[node.workflow_node.sub_workflow_ref.name]
                return self._graph(flow.nodes, flow.outputs, inputs, entities, path)
            case other:
                raise NotImplementedError(f"{path}: a node of kind {other}")

    def _map(
        self, array: core.ArrayNode, inputs: LiteralMap, entities: Entities, path: str
    ) -> LiteralMap:
        """Run one process per item; each gets all items and takes its own by its index."""
        mapped = [name for name in inputs.literals if name not in array.bound_inputs]
        (size,) = {len(inputs.literals[name].collection.literals) for name in mapped}
        pod = _pod(array.node, inputs, entities, path)
        parts = [
            self._task(pod._replace(path=f"{path}-{index}", index=str(index)), entities)
            for index in range(size)
        ]
        return LiteralMap(
            literals={
                name: _collection(part.literals[name] for part in parts)
                for name in parts[0].literals
            }
        )

    def _task(self, pod: Pod, entities: Entities) -> LiteralMap:
        """Run a task until an attempt leaves something, and the graph that it may have left."""
        for attempt in range(pod.retries + 1):
            place = self._attempt(pod, attempt)
            outputs = read(f"{place}/outputs.pb", LiteralMap)
            if outputs is not None:
                return outputs
            graph = read(f"{place}/futures.pb", dynamic_job_pb2.DynamicJobSpec)
            if graph is not None:
                known = entities.and_those_of(graph)
                return self._graph(graph.nodes, graph.outputs, LiteralMap(), known, pod.path)
        raise PodError(f"{pod.path} ({pod.template.id.name}) left nothing in {place}")

    def _attempt(self, pod: Pod, attempt: int) -> str:
        """Run a task's process, or one for each machine; return where its protocol buffers are."""
        name = f"{pod.path}/{attempt}"
        place, raw = f"{self.store}/meta/{name}", f"{self.store}/raw/{name}"
        write(f"{place}/inputs.pb", pod.inputs.SerializeToString(deterministic=True))
        places = {
            "{{.input}}": f"{place}/inputs.pb",
            "{{.outputPrefix}}": place,
            "{{.rawOutputDataPrefix}}": raw,
            "{{.checkpointOutputPrefix}}": f"{raw}/_checkpoint",
            "{{.prevCheckpointPrefix}}": '""',
        }
        command = [places.get(word, word) for word in pod.template.container.args]
        env = {entry.key: entry.value for entry in pod.template.container.env}
        env |= {ATTEMPT: str(attempt), "BATCH_JOB_ARRAY_INDEX_VAR_NAME": INDEX, INDEX: pod.index}
        machines = [{**env, **machine} for machine in _machines(pod.template)]
        self.ran += [Ran(pod.template.id.name, attempt, pod.index) for _ in machines]
        log = self.logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.execute(command, machines, log)
        error = read(f"{place}/error.pb", errors_pb2.ErrorDocument)
        if error is not None and error.error.kind == errors_pb2.ContainerError.NON_RECOVERABLE:
            raise PodError(f"{pod.path} ({pod.template.id.name}): {error.error.message}")
        return place


def _pod(node: core.Node, inputs: LiteralMap, entities: Entities, path: str) -> Pod:
    template = entities.tasks[node.task_node.reference_id.name]
    return Pod(template, inputs, node.metadata.retries.retries, path)


def _machines(template: tasks_pb2.TaskTemplate) -> list[dict[str, str]]:
    """Return what each machine of a task is told, as the operator of a PyTorchJob does."""
    if template.type != "pytorch":
        return [{}]
    job = MessageToDict(template.custom)
    number = int(job["masterReplicas"]["replicas"] + job["workerReplicas"]["replicas"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(number)}
    return [{**shared, "GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank)} for rank in range(number)]


def _collection(items: Iterable[Literal]) -> Literal:
    return Literal(collection=literals_pb2.LiteralCollection(literals=list(items)))


def read(url: str, message: type[M]) -> M | None:
    """Return the protocol buffer in a file, or None if there is no such file."""
    store, path = url_to_fs(url)
    try:
        return message.FromString(store.cat_file(path))
    except FileNotFoundError:
        return None


def write(url: str, content: bytes) -> None:
    """Write a file, with the directories above it where the store has any."""
    store, path = url_to_fs(url)
    store.makedirs(path.rpartition("/")[0], exist_ok=True)
    store.pipe_file(path, content)
