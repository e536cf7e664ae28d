"""Flyte task: which prompts a step trains on."""

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table
from tasks.handle import Policy


@task(container_image=LIGHT)
def select_prompts(
    config: RunConfig, step: int, policy: Policy, refill: int, num_prompts: int
) -> Table:
    """Select the prompts of a step or a refill, a function of the data seed and both numbers."""
    from tasks.data.prompts import prompts_table, select, select_refill
    from tasks.data.schemas import stamp
    from tasks.data.sources import open_source
    from tasks.policy.tokenizing import encoder

    source = open_source(config.data)
    if refill == 0:
        picks = select(source, step, num_prompts=num_prompts, data_seed=config.data.seed)
    else:
        picks = select_refill(
            source,
            step,
            refill=refill,
            num_prompts=num_prompts,
            per_step=config.rollout.prompts_per_step,
            data_seed=config.data.seed,
        )
    table = prompts_table(source, picks, encoder(policy.local()))
    return stamp(table, run=config.job.name, step=step, stage="select_prompts")
