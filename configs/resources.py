"""The `resources` section: what each role's tasks request from the cluster."""

from pydantic import Field

from configs.base import Section
from configs.sizes import GpuType


class Role(Section):
    """Requests of one role, in Kubernetes quantities."""

    cpu: str = Field(default="1", pattern=r"^[0-9]+m?$")
    """Processors, such as `2` or `500m`."""

    memory: str = Field(default="2Gi", pattern=r"^[0-9]+(Mi|Gi)$")
    """Memory, such as `8Gi`."""

    gpus: int = Field(default=0, ge=0)
    """Accelerators."""

    gpu_type: GpuType = ""
    """Which accelerators, as Flyte's device label; empty: any."""


class Resources(Section):
    """Requests by role; local runs ignore them."""

    light: Role = Role()
    """Tasks that handle tables only."""

    rollout: Role = Role(cpu="2", memory="4Gi")
    """Rollout and evaluation."""

    teacher: Role = Role(cpu="2", memory="4Gi")
    """Scoring with a teacher."""

    train: Role = Role(cpu="2", memory="4Gi")
    """Training."""
