"""Flyte task: reward every response."""

import time
from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table


class Scored(NamedTuple):
    """Rewarded responses and the seconds it took."""

    table: Table
    seconds: float


@task(container_image=LIGHT)
def score(config: RunConfig, step: int, rollouts: Table) -> Scored:
    """Give every response its reward, or say why it has none."""
    started = time.perf_counter()
    from tasks.data.schemas import ROLLOUTS, require
    from tasks.rewards.score import score as reward

    require(rollouts, ROLLOUTS, stage="score", run=config.job.name, step=step)
    table = reward(rollouts, config.reward, max_tokens=config.rollout.max_tokens)
    return Scored(table, time.perf_counter() - started)
