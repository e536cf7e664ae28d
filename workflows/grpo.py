"""GRPO and its variants: the order of the phases of a run and of a step."""

from flytekit import dynamic, workflow

from configs.run import RunConfig
from images.resources import requests
from images.roles import LIGHT
from tasks import close_run as closing
from tasks.annotate import annotate
from tasks.data.arrow import Table, TableReference
from tasks.evaluate import evaluate, vllm_evaluate
from tasks.handle import Policy, Run
from tasks.open_policy import bootstrap_policy, resume_policy
from tasks.open_run import open_run
from tasks.prepare_prompts import prepare_prompts
from tasks.resolve_config import resolve_config
from tasks.train_chunks import train_chunks
from workflows import phases
from workflows.engines import by_engine
from workflows.overlap import Flow, take_steps
from workflows.phases import Trained


@dynamic(container_image=LIGHT)
def grpo_step(
    config: RunConfig,
    run: Run,
    step: int,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pool: TableReference,
    held_out: TableReference,
) -> Policy:
    """Take one step: select prompts, roll out, score, annotate, train, track and checkpoint."""
    rows = phases.collect(config, step, policy, pool)
    at = phases.Stage(config, run, step, policy, policy)
    return learn(at, rows.scored, auxiliary, held_out, phases.collect_seconds(rows))


@dynamic(container_image=LIGHT)
def grpo_update(
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
    """Train on rows that were collected ahead: annotate, train, track and checkpoint."""
    at = phases.Stage(config, run, step, policy, behaviour)
    return learn(at, scored, auxiliary, held_out, seconds)


def learn(
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
    trained = train_chunks(
        config=config,
        step=step,
        policy=at.policy,
        behaviour=at.behaviour,
        auxiliary=auxiliary,
        annotated=annotated.table,
    ).with_overrides(**requests(config.resources.train))
    seconds = {
        **seconds,
        "annotate": [annotated.seconds],
        "train": [trained.seconds],
    }
    return phases.conclude(at, annotated, trained, held_out, seconds)


@dynamic(container_image=LIGHT)
def segment(
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
        Flow(grpo_step, grpo_update),
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
def loop(
    config: RunConfig, run: Run, first: Policy, pool: TableReference, held_out: TableReference
) -> Trained:
    """Train from the run's starting point to its last step, in segments."""
    policy = phases.take_segments(
        segment,
        resume_policy(run=run) if run.checkpoint else first,
        config,
        run,
        auxiliary=phases.reference(config, first),
        pool=pool,
        held_out=held_out,
    )
    measure = by_engine(config.rollout.engine, vllm=vllm_evaluate, other=evaluate)
    final = measure(config=config, policy=policy, held_out=held_out)
    final.with_overrides(**requests(config.resources.rollout))
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
