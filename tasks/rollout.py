"""Flyte task: sample responses."""

import time
from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy


class RolledOut(NamedTuple):
    """Sampled responses and the seconds it took."""

    table: Table
    seconds: float


@task(container_image=TRAIN)
def rollout(config: RunConfig, step: int, policy: Policy, prompts: Table, refill: int) -> RolledOut:
    """Sample a group of responses for every prompt."""
    started = time.perf_counter()
    from tasks.data.schemas import PROMPTS, require
    from tasks.sampling.rollout import rollout as sample

    require(prompts, PROMPTS, stage="rollout", run=config.job.name, step=step)
    table = sample(config, step, prompts, policy.local(), refill=refill)
    return RolledOut(table, time.perf_counter() - started)
