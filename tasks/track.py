"""Flyte tasks: the only writers of the tracking run, and the report of a step."""

from flytekit import Deck, current_context, task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table
from tasks.handle import Run


@task(container_image=LIGHT)
def track(
    config: RunConfig,
    run: Run,
    step: int,
    table: dict[str, float],
    update: dict[str, float],
    evaluation: dict[str, float],
    seconds: dict[str, list[float]],
) -> int:
    """Log a step's metrics to MLflow and print its line."""
    from tasks.run.stepping import Clock, track_step

    clock = Clock(
        opened_at=run.opened_at,
        elapsed_before_s=run.elapsed_before_s,
        start_step=run.start_step,
    )
    track_step(
        config,
        clock,
        mlflow_run_id=run.mlflow_run_id,
        step=step,
        metrics={**table, **update, **evaluation},
        seconds={stage: sum(parts) for stage, parts in seconds.items()},
    )
    return step


@task(container_image=LIGHT, enable_deck=True, deck_fields=())
def report(config: RunConfig, run: Run, step: int, annotated: Table, logged: int) -> str:
    """Draw a step's deck: the curves so far, how rewards and lengths spread, and samples."""
    from tasks.run.reporting import step_deck

    html = step_deck(config, run.mlflow_run_id, step, annotated)
    current_context().decks.clear()  # a local run would repeat every earlier deck in this one
    Deck("step", html)
    return run.directory


def deck_due(config: RunConfig, step: int) -> bool:
    """Return whether a step has a deck."""
    every = config.tracking.deck_every
    return every > 0 and (step % every == 0 or step + 1 == config.rl.max_steps)
