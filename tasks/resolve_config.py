"""Flyte task: from a recipe and overrides to the config that every other task takes."""

from flytekit import task

from configs.preflight import warnings
from configs.resolve import resolve
from configs.run import RunConfig
from images.roles import LIGHT


@task(container_image=LIGHT)
def resolve_config(recipe: str, overrides: str) -> RunConfig:
    """Resolve and check the whole configuration before any work."""
    config = resolve(recipe, overrides)
    for line in warnings(config):
        print(f"warning: {line}")  # noqa: T201
    return config
