"""What a task requests from the cluster, from the `resources` section."""

from flytekit import Resources

from configs.resources import Role


def requests(role: Role) -> Resources:
    """Return a role's requests; local runs ignore them."""
    return Resources(cpu=role.cpu, mem=role.memory, gpu=str(role.gpus) if role.gpus else None)
