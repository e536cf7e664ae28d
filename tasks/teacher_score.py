"""Flyte tasks: what the teacher says about the sampled tokens, in the image of its engine."""

import time
from pathlib import Path
from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import ROLLOUT, TEACHER
from tasks.data.arrow import Table
from tasks.handle import Policy


class TeacherScored(NamedTuple):
    """Rows with the teacher's log-probabilities, and the seconds it took."""

    table: Table
    seconds: float


@task(container_image=TEACHER)
def teacher_score(
    config: RunConfig, step: int, annotated: Table, teachers: dict[str, Policy]
) -> TeacherScored:
    """Add the teacher's log-probabilities of every response token."""
    return _teacher_score(config, step, annotated, teachers)


@task(container_image=ROLLOUT)
def vllm_teacher_score(
    config: RunConfig, step: int, annotated: Table, teachers: dict[str, Policy]
) -> TeacherScored:
    """Add the teacher's log-probabilities of every response token, where vLLM is installed."""
    return _teacher_score(config, step, annotated, teachers)


def scores_the_table(config: RunConfig) -> bool:
    """Return whether the loss reads the teacher from the table, not from its own forward pass."""
    return config.rl.distillation_mode == "advantage" or config.rl.teacher_topk > 0


def _teacher_score(
    config: RunConfig, step: int, annotated: Table, teachers: dict[str, Policy]
) -> TeacherScored:
    started = time.perf_counter()
    from tasks.data.arrow import write_table
    from tasks.data.schemas import ANNOTATED, require

    if config.teacher.engine == "vllm":
        from tasks.sampling.vllm_teacher import add_teacher_scores
    else:
        from tasks.trainer.teacher_scores import add_teacher_scores

    require(annotated, ANNOTATED, stage="teacher_score", run=config.job.name, step=step)
    files = {role: teacher.local() for role, teacher in teachers.items()}
    table = add_teacher_scores(annotated, config, files)
    if config.tracking.keep_tables:
        path = Path(config.directory) / "tables" / f"step-{step:06d}.arrow"
        write_table(path, table, durable=False)
    return TeacherScored(table, time.perf_counter() - started)
