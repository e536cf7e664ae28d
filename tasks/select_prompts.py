"""Flyte task: which prompts a step trains on."""

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table


@task(container_image=LIGHT)
def select_prompts(
    config: RunConfig, step: int, pool: Table, refill: int, num_prompts: int
) -> Table:
    """Select the prompts of a step or a refill, a function of the data seed and both numbers."""
    from tasks.data.prompts import select, select_refill, take
    from tasks.data.schemas import stamp

    seed, per_step = config.data.seed, config.rollout.prompts_per_step
    if refill == 0:
        picks = select(len(pool), step, num_prompts=num_prompts, data_seed=seed)
    else:
        picks = select_refill(
            len(pool),
            step,
            refill=refill,
            num_prompts=num_prompts,
            per_step=per_step,
            data_seed=seed,
        )
    return stamp(take(pool, picks), run=config.job.name, step=step, stage="select_prompts")
