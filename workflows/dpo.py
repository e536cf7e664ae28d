"""DPO and its relatives on preference pairs, of text or of points: the order of the phases."""

from flytekit import dynamic, workflow

from configs.dpo import DpoConfig
from images.resources import requests
from images.roles import LIGHT
from tasks import close_run as closing
from tasks.checkpoint import checkpoint_pairs
from tasks.data.arrow import TableReference
from tasks.evaluate import evaluation_due
from tasks.evaluate_pairs import evaluate_pairs
from tasks.handle import Policy, Run
from tasks.open_policy import bootstrap_denoiser, bootstrap_policy, resume_policy
from tasks.open_run import open_pair_run
from tasks.prepare_pairs import count_steps, prepare_pairs, prepare_points, score_reference
from tasks.resolve_config import resolve_pairs
from tasks.select_pairs import select_pairs
from tasks.track import deck_due, report_pairs, track_pairs
from tasks.train_pairs import train_pairs
from workflows import phases
from workflows.phases import Trained


@dynamic(container_image=LIGHT)
def dpo_step(
    config: DpoConfig,
    run: Run,
    step: int,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pool: TableReference,
    held_out: TableReference,
) -> Policy:
    """Take one step on preference pairs: select, train, track and checkpoint."""
    light = requests(config.resources.light)
    pairs = select_pairs(config=config, step=step, pool=pool).with_overrides(**light)
    trained = train_pairs(
        config=config, run=run, step=step, policy=policy, auxiliary=auxiliary, pairs=pairs
    ).with_overrides(**requests(config.resources.train))
    evaluation, seconds = {}, {"train": [trained.seconds]}
    if evaluation_due(config, step):
        evaluated = evaluate_pairs(
            config=config, policy=policy, auxiliary=auxiliary, held_out=held_out
        )
        evaluated.with_overrides(**requests(config.resources.rollout))
        evaluation, seconds["evaluate"] = evaluated.metrics, [evaluated.seconds]
    logged = track_pairs(
        config=config,
        run=run,
        step=step,
        update=trained.metrics,
        evaluation=evaluation,
        seconds=seconds,
    ).with_overrides(**light)
    if deck_due(config, step):
        report_pairs(config=config, run=run, step=step, pairs=pairs, logged=logged).with_overrides(
            **light
        )
    return checkpoint_pairs(
        config=config, run=run, before=policy, after=trained.policy, logged=logged
    ).with_overrides(**light)


@dynamic(container_image=LIGHT)
def dpo_segment(
    config: DpoConfig,
    run: Run,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pool: TableReference,
    held_out: TableReference,
    start: int,
    stop: int,
) -> Policy:
    """Take the steps from `start` up to, but not including, `stop`."""
    return phases.take_steps(
        dpo_step,
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
def dpo_loop(
    config: DpoConfig, run: Run, first: Policy, pool: TableReference, held_out: TableReference
) -> Trained:
    """Train from the run's starting point to its last step, in segments."""
    auxiliary = {"reference": first} if config.dpo.pairs == "points" else {}
    policy = phases.take_segments(
        dpo_segment,
        resume_policy(run=run) if run.checkpoint else first,
        config,
        run,
        auxiliary=auxiliary,
        pool=pool,
        held_out=held_out,
    )
    final = evaluate_pairs(config=config, policy=policy, auxiliary=auxiliary, held_out=held_out)
    final.with_overrides(**requests(config.resources.rollout))
    return Trained(policy, final.metrics, final.seconds)


# By its module, as in the workflow `grpo`.
@workflow(on_failure=closing.fail_run)
def dpo(recipe: str = "dpo_arithmetic", overrides: str = "", resume_from: str = "") -> str:
    """Train a language model on preference pairs by DPO; return the path of its last checkpoint.

    Args:
        recipe: Path of a YAML recipe, or a name under configs/recipes.
        overrides: Settings such as "dpo.beta=0.3 dpo.epochs=2".
        resume_from: A checkpoint directory of any run to start from.
    """
    resolved = resolve_pairs(recipe=recipe, overrides=overrides, workflow="dpo")
    first = bootstrap_policy(
        model=resolved.config.model,
        data=resolved.problems,
        seed=resolved.config.job.seed,
        output_root=resolved.config.job.output_root,
    )
    prepared = prepare_pairs(data=resolved.config.data, policy=first.policy)
    pairs = score_reference(
        policy=first.policy,
        train=prepared.train,
        held_out=prepared.held_out,
        dtype=resolved.config.model.dtype,
        max_tokens_per_chunk=resolved.config.trainer.max_tokens_per_chunk,
        output_root=resolved.config.job.output_root,
        prepare_s=prepared.seconds,
    )
    config = count_steps(config=resolved.config, train=pairs.train)
    run = open_pair_run(
        config=config,
        policy=first.policy,
        train=pairs.train,
        held_out=pairs.held_out,
        fingerprint=pairs.fingerprint,
        resume_from=resume_from,
    )
    trained = dpo_loop(
        config=config, run=run, first=first.policy, pool=pairs.train, held_out=pairs.held_out
    )
    return closing.close_pairs(
        config=config,
        run=run,
        policy=trained.policy,
        evaluation=trained.evaluation,
        evaluate_s=trained.evaluate_s,
        bootstrap_s=first.seconds,
        prepare_s=pairs.seconds,
    )


@workflow(on_failure=closing.fail_run)
def dpo_diffusion(
    recipe: str = "dpo_diffusion_toy", overrides: str = "", resume_from: str = ""
) -> str:
    """Train a denoiser on preferred points by diffusion DPO; return its last checkpoint's path.

    Args:
        recipe: Path of a YAML recipe, or a name under configs/recipes.
        overrides: Settings such as "dpo.beta=100 denoiser.prediction=velocity".
        resume_from: A checkpoint directory of any run to start from.
    """
    resolved = resolve_pairs(recipe=recipe, overrides=overrides, workflow="dpo_diffusion")
    first = bootstrap_denoiser(
        denoiser=resolved.config.denoiser,
        seed=resolved.config.job.seed,
        output_root=resolved.config.job.output_root,
    )
    pairs = prepare_points(denoiser=resolved.config.denoiser, seed=resolved.config.job.seed)
    config = count_steps(config=resolved.config, train=pairs.train)
    run = open_pair_run(
        config=config,
        policy=first.policy,
        train=pairs.train,
        held_out=pairs.held_out,
        fingerprint=pairs.fingerprint,
        resume_from=resume_from,
    )
    trained = dpo_loop(
        config=config, run=run, first=first.policy, pool=pairs.train, held_out=pairs.held_out
    )
    return closing.close_pairs(
        config=config,
        run=run,
        policy=trained.policy,
        evaluation=trained.evaluation,
        evaluate_s=trained.evaluate_s,
        bootstrap_s=first.seconds,
        prepare_s=pairs.seconds,
    )
