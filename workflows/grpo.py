"""GRPO and its variants: the order of the phases of a run and of a step."""

from typing import NamedTuple

from flytekit import dynamic, workflow

from configs.run import RunConfig
from images.resources import requests
from images.roles import LIGHT
from tasks import close_run as closing
from tasks.annotate import annotate
from tasks.checkpoint import checkpoint
from tasks.data.arrow import Table
from tasks.evaluate import evaluate, evaluation_due
from tasks.handle import Policy, Run
from tasks.merge_groups import merge_groups, num_missing_groups
from tasks.open_policy import bootstrap_policy, resume_policy
from tasks.open_run import open_run
from tasks.prepare_prompts import prepare_prompts
from tasks.resolve_config import resolve_config
from tasks.rollout import RolledOut, rollout
from tasks.score import Scored, score
from tasks.select_prompts import select_prompts
from tasks.track import deck_due, report, track
from tasks.train_chunks import train_chunks

SEGMENT_STEPS = 50
"""Steps per segment, and segments per run: both graphs stay under the usual limit of 100 nodes."""


class Collected(NamedTuple):
    """Scored groups, and the seconds of each rollout and scoring that they took."""

    scored: Table
    rollout_s: list[float]
    score_s: list[float]


class Trained(NamedTuple):
    """The trained policy, its held-out metrics, and the seconds that measuring them took."""

    policy: Policy
    evaluation: dict[str, float]
    evaluate_s: float


def sample_groups(
    config: RunConfig, step: int, policy: Policy, pool: Table, *, refill: int, num_prompts: int
) -> tuple[RolledOut, Scored]:
    """Issue the nodes that select prompts, roll them out and score the responses."""
    light, gpu = requests(config.resources.light), requests(config.resources.rollout)
    prompts = select_prompts(
        config=config, step=step, pool=pool, refill=refill, num_prompts=num_prompts
    ).with_overrides(requests=light)
    rolled = rollout(
        config=config, step=step, policy=policy, prompts=prompts, refill=refill
    ).with_overrides(requests=gpu)
    scored = score(config=config, step=step, rollouts=rolled.table).with_overrides(requests=light)
    return rolled, scored


@dynamic(container_image=LIGHT)
def refill_groups(
    config: RunConfig,
    step: int,
    policy: Policy,
    pool: Table,
    scored: Table,
    refill: int,
    rollout_s: list[float],
    score_s: list[float],
) -> Collected:
    """Replace groups without signal, until there are none or the refills are used up."""
    missing = num_missing_groups(config, scored)
    if missing == 0 or refill > config.rl.dynamic_sampling_rounds:
        return Collected(scored, rollout_s, score_s)
    rolled, extra = sample_groups(config, step, policy, pool, refill=refill, num_prompts=missing)
    merged = merge_groups(config=config, step=step, scored=scored, extra=extra.table)
    return refill_groups(
        config=config,
        step=step,
        policy=policy,
        pool=pool,
        scored=merged.with_overrides(requests=requests(config.resources.light)),
        refill=refill + 1,
        rollout_s=[*rollout_s, rolled.seconds],
        score_s=[*score_s, extra.seconds],
    )


@dynamic(container_image=LIGHT)
def grpo_step(
    config: RunConfig,
    run: Run,
    step: int,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pool: Table,
    held_out: Table,
) -> Policy:
    """Take one step: select prompts, roll out, score, annotate, train, track and checkpoint."""
    light = requests(config.resources.light)
    rolled, scored = sample_groups(
        config, step, policy, pool, refill=0, num_prompts=config.rollout.prompts_per_step
    )
    collected = Collected(scored.table, [rolled.seconds], [scored.seconds])
    if config.rl.dynamic_sampling_rounds:
        collected = refill_groups(
            config=config,
            step=step,
            policy=policy,
            pool=pool,
            scored=collected.scored,
            refill=1,
            rollout_s=collected.rollout_s,
            score_s=collected.score_s,
        )
    annotated = annotate(config=config, step=step, scored=collected.scored)
    trained = train_chunks(
        config=config,
        step=step,
        policy=policy,
        auxiliary=auxiliary,
        annotated=annotated.with_overrides(requests=light).table,
    ).with_overrides(requests=requests(config.resources.train))
    seconds = {
        "rollout": collected.rollout_s,
        "score": collected.score_s,
        "annotate": [annotated.seconds],
        "train": [trained.seconds],
    }
    evaluation = {}
    if evaluation_due(config, step):
        evaluated = evaluate(config=config, policy=policy, held_out=held_out)
        evaluated.with_overrides(requests=requests(config.resources.rollout))
        evaluation, seconds["evaluate"] = evaluated.metrics, [evaluated.seconds]
    logged = track(
        config=config,
        run=run,
        step=step,
        table=annotated.summary,
        update=trained.metrics,
        evaluation=evaluation,
        seconds=seconds,
    ).with_overrides(requests=light)
    if deck_due(config, step):
        report(
            config=config, run=run, step=step, annotated=annotated.table, logged=logged
        ).with_overrides(requests=light)
    return checkpoint(
        config=config, run=run, before=policy, after=trained.policy, logged=logged
    ).with_overrides(requests=light)


@dynamic(container_image=LIGHT)
def segment(
    config: RunConfig,
    run: Run,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pool: Table,
    held_out: Table,
    start: int,
    stop: int,
) -> Policy:
    """Take the steps from `start` up to, but not including, `stop`."""
    for step in range(start, stop):
        policy = grpo_step(
            config=config,
            run=run,
            step=step,
            policy=policy,
            auxiliary=auxiliary,
            pool=pool,
            held_out=held_out,
        )
    return policy


@dynamic(container_image=LIGHT)
def loop(config: RunConfig, run: Run, first: Policy, pool: Table, held_out: Table) -> Trained:
    """Train from the run's starting point to its last step, in segments."""
    auxiliary = {"reference": first} if config.rl.kl_beta else {}
    policy = resume_policy(run=run) if run.checkpoint else first
    for start in range(run.start_step, config.rl.max_steps, SEGMENT_STEPS):
        policy = segment(
            config=config,
            run=run,
            policy=policy,
            auxiliary=auxiliary,
            pool=pool,
            held_out=held_out,
            start=start,
            stop=min(start + SEGMENT_STEPS, config.rl.max_steps),
        )
    final = evaluate(config=config, policy=policy, held_out=held_out)
    final.with_overrides(requests=requests(config.resources.rollout))
    return Trained(policy, final.metrics, final.seconds)


# By its module: `pyflyte run` offers every task that has a name here, and fails at one that takes
# an error, as `fail_run` does.
@workflow(on_failure=closing.fail_run)
def grpo(recipe: str = "grpo_arithmetic", overrides: str = "", resume_from: str = "") -> str:
    """Train a policy by GRPO or one of its variants; return the path of its last checkpoint.

    Args:
        recipe: Path of a YAML recipe, or a name under configs/recipes.
        overrides: Settings such as "rl.max_steps=1 trainer.learning_rate=3e-6".
        resume_from: A checkpoint directory of any run to start from.
    """
    config = resolve_config(recipe=recipe, overrides=overrides)
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
    run = open_run(config=config, fingerprint=prompts.fingerprint, resume_from=resume_from)
    trained = loop(
        config=config,
        run=run,
        first=first.policy,
        pool=prompts.train,
        held_out=prompts.held_out,
    )
    return closing.close_run(
        config=config,
        run=run,
        policy=trained.policy,
        evaluation=trained.evaluation,
        evaluate_s=trained.evaluate_s,
        bootstrap_s=first.seconds,
    )
