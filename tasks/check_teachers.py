"""Flyte task: refuse teachers that cannot teach this student."""

from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table
from tasks.handle import Policy


class Teachers(NamedTuple):
    """The teachers by role, and the seconds that making or finding all policies took."""

    policies: dict[str, Policy]
    seconds: float


@task(container_image=LIGHT)
def check_teachers(
    config: RunConfig,
    policy: Policy,
    teachers: dict[str, Policy],
    pool: Table,
    seconds: list[float],
) -> Teachers:
    """Check that every teacher has the student's tokens and that every routed source exists."""
    from tasks.policy.vocabulary import require_same_tokens

    sources = set(pool["source"].to_pylist())
    missing = sorted(config.teacher.by_source.keys() - sources)
    if missing:
        raise ValueError(
            f"teacher.by_source names the prompt sources {missing}, but the training prompts are "
            f"of {sorted(sources)}; remove them, or correct their names"
        )
    student, models = policy.local(), config.teacher.models()
    for role, teacher in teachers.items():
        require_same_tokens(
            student,
            teacher.local(),
            student_name=config.model.identity,
            teacher_name=f"{role} {models[role].identity}",
        )
    return Teachers(teachers, sum(seconds))
