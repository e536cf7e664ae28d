"""Flyte tasks: sample responses, in the image that has the engine."""

import time
from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import ROLLOUT, TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy


class RolledOut(NamedTuple):
    """Sampled responses and the seconds it took."""

    table: Table
    seconds: float


@task(container_image=TRAIN)
def rollout(config: RunConfig, step: int, policy: Policy, prompts: Table, refill: int) -> RolledOut:
    """Sample a group of responses for every prompt."""
    return _rollout(config, step, policy, prompts, refill)


@task(container_image=ROLLOUT)
def vllm_rollout(
    config: RunConfig, step: int, policy: Policy, prompts: Table, refill: int
) -> RolledOut:
    """Sample a group of responses for every prompt, where vLLM is installed."""
    return _rollout(config, step, policy, prompts, refill)


def _rollout(
    config: RunConfig, step: int, policy: Policy, prompts: Table, refill: int
) -> RolledOut:
    started = time.perf_counter()
    from tasks.data.schemas import PROMPTS, require
    from tasks.sampling.rollout import rollout as sample

    require(prompts, PROMPTS, stage="rollout", run=config.job.name, step=step)
    table = sample(config, step, prompts, policy.local(), refill=refill)
    return RolledOut(table, time.perf_counter() - started)
