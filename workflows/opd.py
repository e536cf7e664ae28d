"""On-policy distillation: GRPO's loop with a teacher that scores what the student has sampled."""

from typing import NamedTuple

from flytekit import dynamic, workflow

from configs.distillation import TEACHER
from configs.run import RunConfig
from images.resources import requests
from images.roles import LIGHT
from tasks import close_run as closing
from tasks.annotate import annotate
from tasks.check_teachers import Teachers, check_teachers
from tasks.data.arrow import Table, TableReference
from tasks.evaluate import evaluate, vllm_evaluate
from tasks.handle import Policy, Run
from tasks.open_policy import bootstrap_policy, resume_policy
from tasks.open_run import open_run
from tasks.prepare_prompts import prepare_prompts
from tasks.resolve_config import resolve_config
from tasks.teacher_score import scores_the_table, teacher_score, vllm_teacher_score
from tasks.train_chunks import train_chunks
from workflows import phases
from workflows.engines import by_engine
from workflows.overlap import Flow, take_steps
from workflows.phases import Trained


@dynamic(container_image=LIGHT)
def open_teachers(
    config: RunConfig, policy: Policy, pool: TableReference, bootstrap_s: float
) -> Teachers:
    """Build or open every teacher and refuse one that does not share the student's tokens."""
    opened = {
        role: bootstrap_policy(
            model=model,
            data=config.data,
            seed=config.job.seed,
            output_root=config.job.output_root,
        )
        for role, model in config.teacher.models().items()
    }
    return check_teachers(
        config=config,
        policy=policy,
        teachers={role: teacher.policy for role, teacher in opened.items()},
        pool=pool,
        seconds=[bootstrap_s, *(teacher.seconds for teacher in opened.values())],
    )


class Signal(NamedTuple):
    """What trains a student: a table, the policies to score with, the seconds that it took."""

    table: Table
    auxiliary: dict[str, Policy]
    seconds: dict[str, list[float]]


def ask_teachers(at: phases.Stage, annotated: Table, auxiliary: dict[str, Policy]) -> Signal:
    """Issue the node that lets the teachers score the table, or leave that to the trainer."""
    if not scores_the_table(at.config):
        return Signal(annotated, auxiliary, {})
    teachers = {role: p for role, p in auxiliary.items() if role.startswith(TEACHER)}
    others = {role: p for role, p in auxiliary.items() if role not in teachers}
    ask = by_engine(at.config.teacher.engine, vllm=vllm_teacher_score, other=teacher_score)
    scored = ask(
        config=at.config, step=at.step, annotated=annotated, teachers=teachers
    ).with_overrides(**requests(at.config.resources.teacher))
    return Signal(scored.table, others, {"teacher": [scored.seconds]})


@dynamic(container_image=LIGHT)
def opd_step(
    config: RunConfig,
    run: Run,
    step: int,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pool: TableReference,
    held_out: TableReference,
) -> Policy:
    """Take one step: select prompts, roll out, score, annotate, ask the teacher, train, track."""
    rows = phases.collect(config, step, policy, pool)
    at = phases.Stage(config, run, step, policy, policy)
    return distil(at, rows.scored, auxiliary, held_out, phases.collect_seconds(rows))


@dynamic(container_image=LIGHT)
def opd_update(
    config: RunConfig,
    run: Run,
    step: int,
    policy: Policy,
    behaviour: Policy,
    auxiliary: dict[str, Policy],
    held_out: TableReference,
    scored: TableReference,
    seconds: dict[str, list[float]],
) -> Policy:
    """Train on rows that were collected ahead: annotate, ask the teacher, train, track."""
    at = phases.Stage(config, run, step, policy, behaviour)
    return distil(at, scored, auxiliary, held_out, seconds)


def distil(
    at: phases.Stage,
    scored: Table,
    auxiliary: dict[str, Policy],
    held_out: TableReference,
    seconds: dict[str, list[float]],
) -> Policy:
    """Issue the nodes of a step that come after its rows were collected, in `seconds`."""
    config, step = at.config, at.step
    annotated = annotate(config=config, step=step, scored=scored).with_overrides(
        **requests(config.resources.light)
    )
    signal = ask_teachers(at, annotated.table, auxiliary)
    trained = train_chunks(
        config=config,
        step=step,
        policy=at.policy,
        behaviour=at.behaviour,
        auxiliary=signal.auxiliary,
        annotated=signal.table,
    ).with_overrides(**requests(config.resources.train))
    seconds = {
        **seconds,
        "annotate": [annotated.seconds],
        **signal.seconds,
        "train": [trained.seconds],
    }
    return phases.conclude(at, annotated, trained, held_out, seconds)


@dynamic(container_image=LIGHT)
def opd_segment(
    config: RunConfig,
    run: Run,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pool: TableReference,
    held_out: TableReference,
    start: int,
    stop: int,
) -> Policy:
    """Take the steps from `start` up to, but not including, `stop`."""
    return take_steps(
        Flow(opd_step, opd_update),
        policy,
        start,
        stop,
        config=config,
        run=run,
        auxiliary=auxiliary,
        pool=pool,
        held_out=held_out,
    )


@dynamic(container_image=LIGHT)
def opd_loop(
    config: RunConfig,
    run: Run,
    first: Policy,
    teachers: dict[str, Policy],
    pool: TableReference,
    held_out: TableReference,
) -> Trained:
    """Distil from the run's starting point to its last step, in segments."""
    policy = phases.take_segments(
        opd_segment,
        resume_policy(run=run) if run.checkpoint else first,
        config,
        run,
        auxiliary={**phases.reference(config, first), **teachers},
        pool=pool,
        held_out=held_out,
    )
    measure = by_engine(config.rollout.engine, vllm=vllm_evaluate, other=evaluate)
    final = measure(config=config, policy=policy, held_out=held_out)
    final.with_overrides(**requests(config.resources.rollout))
    return Trained(policy, final.metrics, final.seconds)


# By its module, as in the workflow `grpo`.
@workflow(on_failure=closing.fail_run)
def opd(recipe: str = "opd_arithmetic", overrides: str = "", resume_from: str = "") -> str:
    """Distil a teacher into a policy on its own samples; return the path of its last checkpoint.

    Args:
        recipe: Path of a YAML recipe, or a name under configs/recipes.
        overrides: Settings such as "rl.max_steps=1 rl.distillation_mode=direct".
        resume_from: A checkpoint directory of any run to start from.
    """
    config = resolve_config(recipe=recipe, overrides=overrides, workflow="opd")
    first = bootstrap_policy(
        model=config.model,
        data=config.data,
        seed=config.job.seed,
        output_root=config.job.output_root,
    )
    prompts = prepare_prompts(
        data=config.data,
        policy=first.policy,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
    )
    teachers = open_teachers(
        config=config, policy=first.policy, pool=prompts.train, bootstrap_s=first.seconds
    )
    run = open_run(config=config, fingerprint=prompts.fingerprint, resume_from=resume_from)
    trained = opd_loop(
        config=config,
        run=run,
        first=first.policy,
        teachers=teachers.policies,
        pool=prompts.train,
        held_out=prompts.held_out,
    )
    return closing.close_run(
        config=config,
        run=run,
        policy=trained.policy,
        evaluation=trained.evaluation,
        evaluate_s=trained.evaluate_s,
        bootstrap_s=teachers.seconds,
    )
