"""GRPO and its variants: the order of the phases of a run and of a step."""

from typing import NamedTuple

from flytekit import dynamic, workflow

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.annotate import annotate
from tasks.checkpoint import checkpoint
from tasks.close_run import close_run, fail_run
from tasks.evaluate import evaluate, evaluation_due
from tasks.handle import Policy, Run
from tasks.open_policy import bootstrap_policy, resume_policy
from tasks.open_run import open_run
from tasks.resolve_config import resolve_config
from tasks.rollout import rollout
from tasks.score import score
from tasks.select_prompts import select_prompts
from tasks.track import deck_due, report, track
from tasks.train_chunks import train_chunks

SEGMENT_STEPS = 50
"""Steps per segment, and segments per run: both graphs stay under the usual limit of 100 nodes."""


class Trained(NamedTuple):
    """The trained policy, its held-out metrics, and the seconds of what frames the loop."""

    policy: Policy
    evaluation: dict[str, float]
    evaluate_s: float
    bootstrap_s: float


@dynamic(container_image=LIGHT)
def grpo_step(config: RunConfig, run: Run, step: int, policy: Policy) -> Policy:
    """Take one step: select prompts, roll out, score, annotate, train, track and checkpoint."""
    prompts = select_prompts(config=config, step=step, policy=policy)
    rolled = rollout(config=config, step=step, policy=policy, prompts=prompts)
    scored = score(config=config, step=step, rollouts=rolled.table)
    annotated = annotate(config=config, step=step, scored=scored.table)
    trained = train_chunks(config=config, step=step, policy=policy, annotated=annotated.table)
    seconds = {
        "rollout": rolled.seconds,
        "score": scored.seconds,
        "annotate": annotated.seconds,
        "train": trained.seconds,
    }
    evaluation = {}
    if evaluation_due(config, step):
        evaluated = evaluate(config=config, policy=policy)
        evaluation, seconds["evaluate"] = evaluated.metrics, evaluated.seconds
    logged = track(
        config=config,
        run=run,
        step=step,
        table=annotated.summary,
        update=trained.metrics,
        evaluation=evaluation,
        seconds=seconds,
    )
    if deck_due(config, step):
        report(config=config, run=run, step=step, annotated=annotated.table, logged=logged)
    return checkpoint(config=config, run=run, before=policy, after=trained.policy, logged=logged)


@dynamic(container_image=LIGHT)
def segment(config: RunConfig, run: Run, policy: Policy, start: int, stop: int) -> Policy:
    """Take the steps from `start` up to, but not including, `stop`."""
    for step in range(start, stop):
        policy = grpo_step(config=config, run=run, step=step, policy=policy)
    return policy


@dynamic(container_image=LIGHT)
def loop(config: RunConfig, run: Run) -> Trained:
    """Train from the run's starting point to its last step, in segments."""
    opened = (
        resume_policy(run=run)
        if run.checkpoint
        else bootstrap_policy(
            model=config.model,
            data=config.data,
            seed=config.job.seed,
            output_root=config.job.output_root,
            identity=run.identity,
        )
    )
    policy = opened.policy
    for start in range(run.start_step, config.rl.max_steps, SEGMENT_STEPS):
        stop = min(start + SEGMENT_STEPS, config.rl.max_steps)
        policy = segment(config=config, run=run, policy=policy, start=start, stop=stop)
    final = evaluate(config=config, policy=policy)
    return Trained(policy, final.metrics, final.seconds, opened.seconds)


@workflow(on_failure=fail_run)
def grpo(recipe: str = "grpo_arithmetic", overrides: str = "", resume_from: str = "") -> str:
    """Train a policy by GRPO or one of its variants; return the path of its last checkpoint.

    Args:
        recipe: Path of a YAML recipe, or a name under configs/recipes.
        overrides: Settings such as "rl.max_steps=1 trainer.learning_rate=3e-6".
        resume_from: A checkpoint directory of any run to start from.
    """
    config = resolve_config(recipe=recipe, overrides=overrides)
    run = open_run(config=config, resume_from=resume_from)
    trained = loop(config=config, run=run)
    return close_run(
        config=config,
        run=run,
        policy=trained.policy,
        evaluation=trained.evaluation,
        evaluate_s=trained.evaluate_s,
        bootstrap_s=trained.bootstrap_s,
    )
