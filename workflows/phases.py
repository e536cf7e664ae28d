"""Phases that the topologies share: collecting a batch, ending a step, walking through a run.

Plain functions, which a dynamic workflow calls to issue nodes, beside the one that is a workflow of
its own.
"""

from collections.abc import Callable
from typing import NamedTuple

from flytekit import dynamic

from configs.overlap import SEGMENT_STEPS
from configs.plan import AnyConfig
from configs.run import RunConfig
from images.resources import requests
from images.roles import LIGHT
from tasks.annotate import Annotated
from tasks.checkpoint import checkpoint
from tasks.data.arrow import Table, TableReference
from tasks.evaluate import evaluate, evaluation_due, vllm_evaluate
from tasks.handle import Policy, Run
from tasks.merge_groups import merge_groups, num_missing_groups
from tasks.rollout import RolledOut
from tasks.score import Scored, score
from tasks.select_prompts import select_prompts
from tasks.track import deck_due, report, track
from tasks.train_chunks import TrainedChunks
from workflows.engines import by_engine
from workflows.rolling_out import roll_out


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


class Stage(NamedTuple):
    """Where a run stands: what every phase of a step takes.

    Attributes:
        config: the run's.
        run: the run.
        step: the step that is taken.
        policy: the policy before its update.
        behaviour: the policy that samples its rows; the same one unless rollouts run ahead.
    """

    config: RunConfig
    run: Run
    step: int
    policy: Policy
    behaviour: Policy


def collect(config: RunConfig, step: int, policy: Policy, pool: TableReference) -> Collected:
    """Issue the nodes that give a step its scored groups, sampled from `policy`."""
    rolled, scored = sample_groups(
        config, step, policy, pool, refill=0, num_prompts=config.rollout.prompts_per_step
    )
    collected = Collected(scored.table, [rolled.seconds], [scored.seconds])
    if not config.rl.dynamic_sampling_rounds:
        return collected
    return refill_groups(
        config=config,
        step=step,
        policy=policy,
        pool=pool,
        scored=collected.scored,
        refill=1,
        rollout_s=collected.rollout_s,
        score_s=collected.score_s,
    )


def collect_seconds(rows: Collected) -> dict[str, list[float]]:
    """Return what collecting a step's groups took, by stage."""
    return {"rollout": rows.rollout_s, "score": rows.score_s}


def sample_groups(
    config: RunConfig,
    step: int,
    policy: Policy,
    pool: TableReference,
    *,
    refill: int,
    num_prompts: int,
) -> tuple[RolledOut, Scored]:
    """Issue the nodes that select prompts, roll them out and score the responses."""
    light = requests(config.resources.light)
    prompts = select_prompts(
        config=config, step=step, pool=pool, refill=refill, num_prompts=num_prompts
    ).with_overrides(**light)
    rolled = roll_out(config, step, policy, prompts, refill=refill, num_prompts=num_prompts)
    scored = score(config=config, step=step, rollouts=rolled.table).with_overrides(**light)
    return rolled, scored


@dynamic(container_image=LIGHT)
def refill_groups(
    config: RunConfig,
    step: int,
    policy: Policy,
    pool: TableReference,
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
        scored=merged.with_overrides(**requests(config.resources.light)),
        refill=refill + 1,
        rollout_s=[*rollout_s, rolled.seconds],
        score_s=[*score_s, extra.seconds],
    )


def conclude(
    at: Stage,
    annotated: Annotated,
    trained: TrainedChunks,
    held_out: TableReference,
    seconds: dict[str, list[float]],
) -> Policy:
    """Issue the nodes that evaluate, log, report and publish what a step has come to.

    Args:
        at: the step, with the policy before it.
        annotated: what the step trained on.
        trained: the policy after it.
        held_out: prompts to evaluate on.
        seconds: of every stage of the step so far.
    """
    config, light = at.config, requests(at.config.resources.light)
    evaluation = {}
    if evaluation_due(config, at.step):
        measure = by_engine(config.rollout.engine, vllm=vllm_evaluate, other=evaluate)
        evaluated = measure(config=config, policy=at.policy, held_out=held_out)
        evaluated.with_overrides(**requests(config.resources.rollout))
        evaluation, seconds = evaluated.metrics, {**seconds, "evaluate": [evaluated.seconds]}
    logged = track(
        config=config,
        run=at.run,
        step=at.step,
        table=annotated.summary,
        update=trained.metrics,
        evaluation=evaluation,
        seconds=seconds,
    ).with_overrides(**light)
    if deck_due(config, at.step):
        report(
            config=config, run=at.run, step=at.step, annotated=annotated.table, logged=logged
        ).with_overrides(**light)
    return checkpoint(
        config=config,
        run=at.run,
        before=at.policy,
        behaviour=at.behaviour,
        after=trained.policy,
        logged=logged,
    ).with_overrides(**light)


def reference(config: RunConfig, first: Policy) -> dict[str, Policy]:
    """Return the policy that a KL penalty pulls towards, unless the trainer has it already.

    The trainer of an adapter has its base, which is the first policy.
    """
    needed = config.rl.kl_beta > 0 and config.model.lora.rank == 0
    return {"reference": first} if needed else {}


def take_steps(
    take_step: Callable[..., Policy], policy: Policy, start: int, stop: int, **inputs: object
) -> Policy:
    """Issue the steps from `start` up to, but not including, `stop`, each on the one before."""
    for step in range(start, stop):
        policy = take_step(step=step, policy=policy, **inputs)
    return policy


def take_segments(
    segment: Callable[..., Policy], policy: Policy, config: AnyConfig, run: Run, **inputs: object
) -> Policy:
    """Issue the segments from the run's starting point to its last step.

    They begin at multiples of `SEGMENT_STEPS`, wherever the run has started.
    """
    start, last = run.start_step, config.schedule.max_steps
    while start < last:
        stop = min(start // SEGMENT_STEPS * SEGMENT_STEPS + SEGMENT_STEPS, last)
        policy = segment(config=config, run=run, policy=policy, start=start, stop=stop, **inputs)
        start = stop
    return policy
