"""Flyte tasks: sample the responses of a step on several machines."""

import time

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT, ROLLOUT, TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy
from tasks.rollout import RolledOut

RETRIES = 3
"""Attempts beyond the first that a shard has of its own, of which a preempted machine takes one."""


@task(container_image=TRAIN, interruptible=True, retries=RETRIES)
def rollout_shard(
    config: RunConfig,
    step: int,
    policy: Policy,
    prompts: Table,
    refill: int,
    num_shards: int,
    shard: int,
) -> Table:
    """Sample a group of responses for every prompt of one shard."""
    return _rollout_shard(config, step, policy, prompts, refill, num_shards, shard)


@task(container_image=ROLLOUT, interruptible=True, retries=RETRIES)
def vllm_rollout_shard(
    config: RunConfig,
    step: int,
    policy: Policy,
    prompts: Table,
    refill: int,
    num_shards: int,
    shard: int,
) -> Table:
    """Sample a group of responses for every prompt of one shard, where vLLM is installed."""
    return _rollout_shard(config, step, policy, prompts, refill, num_shards, shard)


def _rollout_shard(
    config: RunConfig,
    step: int,
    policy: Policy,
    prompts: Table,
    refill: int,
    num_shards: int,
    shard: int,
) -> Table:
    started = time.perf_counter()
    from tasks.data.schemas import PROMPTS, require
    from tasks.sampling.rollout import rollout as sample
    from tasks.sampling.shards import shard_of, shard_start, timed

    require(prompts, PROMPTS, stage="rollout_shard", run=config.job.name, step=step)
    table = sample(
        config,
        step,
        shard_of(prompts, shard, num_shards),
        policy.local(),
        refill=refill,
        first_prompt=shard_start(len(prompts), shard, num_shards),
    )
    return timed(table, time.perf_counter() - started)


@task(container_image=LIGHT)
def join_shards(config: RunConfig, step: int, prompts: Table, shards: list[Table]) -> RolledOut:
    """Put the responses of all shards together, by their ids."""
    from tasks.data.schemas import ROLLOUTS, require
    from tasks.sampling.shards import join, slowest

    for table in shards:
        require(table, ROLLOUTS, stage="join_shards", run=config.job.name, step=step)
    joined = join(prompts, shards, group_size=config.rollout.group_size)
    return RolledOut(joined, slowest(shards))
