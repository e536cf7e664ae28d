"""What a node requests from the cluster, from the `resources` section."""

from typing import TypedDict

from flytekit import Resources
from flytekit.extras.accelerators import BaseAccelerator, GPUAccelerator

from configs.resources import Role


class Requests(TypedDict):
    """Arguments of a node's `with_overrides`."""

    requests: Resources
    accelerator: BaseAccelerator | None


def requests(role: Role) -> Requests:
    """Return what the nodes of a role request; local runs ignore it."""
    return {
        "requests": Resources(
            cpu=role.cpu, mem=role.memory, gpu=str(role.gpus) if role.gpus else None
        ),
        "accelerator": GPUAccelerator(role.gpu_type) if role.gpu_type else None,
    }
