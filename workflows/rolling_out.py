"""How the rollout of a step becomes nodes: one task, or a map over shards of its prompts."""

from functools import partial

from flytekit import map_task

from configs.run import RunConfig
from images.resources import requests
from tasks.data.arrow import Table
from tasks.handle import Policy
from tasks.rollout import RolledOut, rollout, vllm_rollout
from tasks.rollout_shards import join_shards, rollout_shard, vllm_rollout_shard
from workflows.engines import by_engine


def roll_out(
    config: RunConfig, step: int, policy: Policy, prompts: Table, *, refill: int, num_prompts: int
) -> RolledOut:
    """Issue the nodes that sample a step's prompts, in `rollout.shards` parts at most.

    A shard that fails, or whose machine is taken away, is tried again by itself.
    """
    engine, resources = config.rollout.engine, requests(config.resources.rollout)
    num_shards = min(config.rollout.shards, num_prompts)
    if num_shards == 1:
        return by_engine(engine, vllm=vllm_rollout, other=rollout)(
            config=config, step=step, policy=policy, prompts=prompts, refill=refill
        ).with_overrides(**resources)
    one_shard = partial(
        by_engine(engine, vllm=vllm_rollout_shard, other=rollout_shard),
        config=config,
        step=step,
        policy=policy,
        prompts=prompts,
        refill=refill,
        num_shards=num_shards,
    )
    shards = map_task(one_shard)(shard=list(range(num_shards))).with_overrides(**resources)
    return join_shards(config=config, step=step, prompts=prompts, shards=shards).with_overrides(
        **requests(config.resources.light)
    )
