"""On how many machines a training task runs, which is fixed when the project is registered.

Flyte runs such a task as a PyTorchJob of Kubeflow: in several pods, each of them told its number.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from flyteidl.plugins.kubeflow.pytorch_pb2 import (
    DistributedPyTorchTrainingReplicaSpec,
    DistributedPyTorchTrainingTask,
)
from flytekit.configuration import SerializationSettings
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.extend import IgnoreOutputs, TaskPlugins
from google.protobuf.json_format import MessageToDict

from configs.trainer import Trainer

TRAIN_NODES = "TRAIN_NODES"
"""Environment variable with the number of machines: of the registration, and of every pod."""


def registered_nodes() -> int:
    """Return the number of machines that training tasks are registered with.

    Raises:
        ValueError: it is none.
    """
    word = os.environ.get(TRAIN_NODES, "1")
    if not word.isdecimal() or int(word) < 1:
        raise ValueError(f"{TRAIN_NODES}={word!r}: expected a number of machines, at least 1")
    return int(word)


@dataclass(frozen=True)
class Nodes:
    """The `task_config` of a task that runs on several machines at once.

    Attributes:
        number: how many.
    """

    number: int = field(default_factory=registered_nodes)


class OnNodes(PythonFunctionTask[Nodes]):
    """A task whose function runs on every machine; the first one's outputs are the task's."""

    def __init__(self, task_config: Nodes, task_function: Any, **kwargs: Any) -> None:  # noqa: ANN401
        if task_config.number > 1:
            kwargs = {**kwargs, "task_type": "pytorch", "task_type_version": 1}
        super().__init__(task_config, task_function, **kwargs)

    def get_custom(self, settings: SerializationSettings) -> dict[str, Any]:
        """Return the job's replicas: a master, and workers beside it."""
        others = self.task_config.number - 1
        if not others:
            return super().get_custom(settings)
        job = DistributedPyTorchTrainingTask(
            master_replicas=DistributedPyTorchTrainingReplicaSpec(replicas=1),
            worker_replicas=DistributedPyTorchTrainingReplicaSpec(replicas=others),
        )
        return MessageToDict(job)

    def execute(self, **kwargs: Any) -> Any:  # noqa: ANN401 - as the task's function
        """Run the function; all but the first machine keep what it returns to themselves."""
        returned = super().execute(**kwargs)
        if self.task_config.number > 1 and os.environ["RANK"] != "0":
            raise IgnoreOutputs("the first machine returns them")
        return returned


TaskPlugins.register_pythontask_plugin(Nodes, OnNodes)


def require_nodes(trainer: Trainer) -> None:
    """Refuse a config for another number of machines than the project was registered with.

    Raises:
        ValueError: naming both numbers.
    """
    registered = registered_nodes()
    if trainer.num_nodes != registered:
        raise ValueError(
            f"trainer.num_nodes={trainer.num_nodes}, but training tasks were registered to run on "
            f"{registered} machines each; set trainer.num_nodes={registered}, or register with "
            f"{TRAIN_NODES}={trainer.num_nodes}"
        )
