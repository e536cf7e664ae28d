"""Flyte task: judge the answers to held-out prompts."""

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table


@task(container_image=LIGHT)
def score_held_out(config: RunConfig, rollouts: Table) -> Table:
    """Reward every response and say whether it is right; never cached, as rewards are edited."""
    from tasks.evaluation.judging import score_held_out as score

    return score(config, rollouts)
