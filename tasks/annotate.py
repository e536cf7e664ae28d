"""Flyte task: group statistics, while every group is whole."""

import time
from pathlib import Path
from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table


class Annotated(NamedTuple):
    """Rows with advantages and masks, what the table says, and the seconds it took."""

    table: Table
    summary: dict[str, float]
    seconds: float


@task(container_image=LIGHT)
def annotate(config: RunConfig, step: int, scored: Table) -> Annotated:
    """Turn rewards into advantages and say which tokens train."""
    started = time.perf_counter()
    from tasks.annotators.annotate import annotate as add_advantages
    from tasks.annotators.summary import group_summary
    from tasks.data.arrow import write_table
    from tasks.data.schemas import SCORED, require

    require(scored, SCORED, stage="annotate", run=config.job.name, step=step)
    table = add_advantages(scored, config.rl)
    if config.tracking.keep_tables:
        path = Path(config.directory) / "tables" / f"step-{step:06d}.arrow"
        write_table(path, table, durable=False)
    return Annotated(table, group_summary(table), time.perf_counter() - started)
