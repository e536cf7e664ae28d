"""Flyte task: from a recipe and overrides to the config that every other task takes."""

from typing import NamedTuple

from flytekit import task

from configs.data import Data
from configs.dpo import DpoConfig
from configs.dpo_preflight import check_pairs, dpo_warnings
from configs.preflight import check_topology, warnings
from configs.resolve import resolve, resolve_dpo
from configs.run import RunConfig
from images.nodes import require_nodes
from images.roles import LIGHT, TRAIN


@task(container_image=TRAIN)
def resolve_config(recipe: str, overrides: str, workflow: str = "grpo") -> RunConfig:
    """Resolve and check the whole configuration, its objective included, before any work."""
    config = resolve(recipe, overrides)
    check_topology(config, workflow)
    require_nodes(config.trainer)
    from tasks.trainer.loop import build_objective

    build_objective(config)
    for line in warnings(config):
        print(f"warning: {line}")  # noqa: T201
    return config


class ResolvedPairs(NamedTuple):
    """The config of a run on preference pairs, and what an embedded model is warm-started on."""

    config: DpoConfig
    problems: Data


@task(container_image=LIGHT)
def resolve_pairs(recipe: str, overrides: str, workflow: str) -> ResolvedPairs:
    """Resolve and check the whole configuration of a run on preference pairs before any work."""
    config = resolve_dpo(recipe, overrides)
    check_pairs(config, workflow)
    require_nodes(config.trainer)
    for line in dpo_warnings(config):
        print(f"warning: {line}")  # noqa: T201
    return ResolvedPairs(config, config.data.problems)
