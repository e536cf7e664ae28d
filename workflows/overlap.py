"""How the steps of a segment become nodes, with rollouts that run ahead of training or without."""

from collections.abc import Callable
from typing import NamedTuple

from flytekit import dynamic

from configs.overlap import sampled_from
from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import TableReference
from tasks.handle import Policy, Run
from workflows import phases
from workflows.phases import Collected


class Flow(NamedTuple):
    """The two ways in which a topology takes a step.

    Attributes:
        take_step: collects the step's rows and trains on them.
        update: trains on rows that were collected ahead.
    """

    take_step: Callable[..., Policy]
    update: Callable[..., Policy]


@dynamic(container_image=LIGHT)
def collect_ahead(config: RunConfig, step: int, policy: Policy, pool: TableReference) -> Collected:
    """Sample and score the rows of a later step while the policy that samples them is trained."""
    return phases.collect(config, step, policy, pool)


def take_steps(
    flow: Flow,
    policy: Policy,
    start: int,
    stop: int,
    *,
    config: RunConfig,
    run: Run,
    auxiliary: dict[str, Policy],
    pool: TableReference,
    held_out: TableReference,
) -> Policy:
    """Issue the steps from `start` up to, but not including, `stop`.

    With `rollout.staleness` the rows of a later step are collected beside the update of an earlier
    one: both start from the same policy, and neither waits for the other.
    """
    common = {"config": config, "run": run, "auxiliary": auxiliary, "held_out": held_out}
    if config.rollout.staleness == 0:
        return phases.take_steps(flow.take_step, policy, start, stop, pool=pool, **common)
    in_flight: dict[int, tuple[Policy, Collected]] = {}
    for step in range(start, stop):
        for ahead in range(step, min(step + config.rollout.staleness + 1, stop)):
            if sampled_from(config, ahead, start) == step:
                rows = collect_ahead(config=config, step=ahead, policy=policy, pool=pool)
                in_flight[ahead] = (policy, rows)
        behaviour, rows = in_flight.pop(step)
        policy = flow.update(
            step=step,
            policy=policy,
            behaviour=behaviour,
            scored=rows.scored,
            seconds=phases.collect_seconds(rows),
            **common,
        )
    return policy
