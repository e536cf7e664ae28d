"""Flyte task: replace groups without signal by freshly sampled ones."""

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table


@task(container_image=LIGHT)
def merge_groups(config: RunConfig, step: int, scored: Table, extra: Table) -> Table:
    """Keep a step's worth of groups, those that carry signal first."""
    from tasks.annotators.signal import merge
    from tasks.data.schemas import SCORED, require

    for table in (scored, extra):
        require(table, SCORED, stage="merge_groups", run=config.job.name, step=step)
    return merge(scored, extra, num_groups=config.rollout.prompts_per_step)


def num_missing_groups(config: RunConfig, scored: Table) -> int:
    """Return how many groups of a step carry no signal."""
    from tasks.annotators.signal import num_missing

    return num_missing(scored, num_groups=config.rollout.prompts_per_step)
