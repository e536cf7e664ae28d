"""Flyte task: which preference pairs a step trains on."""

from pathlib import Path

from flytekit import task

from configs.dpo import DpoConfig
from images.roles import LIGHT
from tasks.data.arrow import Table


@task(container_image=LIGHT)
def select_pairs(config: DpoConfig, step: int, pool: Table) -> Table:
    """Select the pairs of a step, a function of the data seed and the step's number."""
    from tasks.data import preferences
    from tasks.data.arrow import write_table
    from tasks.data.schemas import stamp

    seed = config.job.seed if config.dpo.pairs == "points" else config.data.seed
    pairs = preferences.select_pairs(
        pool, step, num_pairs=config.dpo.pairs_per_step, data_seed=seed
    )
    table = stamp(pairs, run=config.job.name, step=step, stage="select_pairs")
    if config.tracking.keep_tables:
        path = Path(config.directory) / "tables" / f"step-{step:06d}.arrow"
        write_table(path, table, durable=False)
    return table
