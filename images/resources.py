"""What a node requests from the cluster, from the `resources` section."""

from flytekit import Resources

from configs.resources import Role


def requests(role: Role) -> Resources:
    """Return what the nodes of a role request; local runs ignore it."""
    return Resources(cpu=role.cpu, mem=role.memory, gpu=str(role.gpus) if role.gpus else None)
