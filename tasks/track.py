"""Flyte tasks: the only writers of the tracking run, and the report of a step."""

from flytekit import Deck, current_context, task

from configs.dpo import DpoConfig
from configs.plan import AnyConfig
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
    return _log(config, run, step, {**table, **update, **evaluation}, seconds)


@task(container_image=LIGHT)
def track_pairs(
    config: DpoConfig,
    run: Run,
    step: int,
    update: dict[str, float],
    evaluation: dict[str, float],
    seconds: dict[str, list[float]],
) -> int:
    """Log the metrics of a step on preference pairs to MLflow and print its line."""
    return _log(config, run, step, {**update, **evaluation}, seconds)


def _log(
    config: AnyConfig,
    run: Run,
    step: int,
    metrics: dict[str, float],
    seconds: dict[str, list[float]],
) -> int:
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
        metrics=metrics,
        seconds={stage: sum(parts) for stage, parts in seconds.items()},
    )
    return step


@task(container_image=LIGHT, enable_deck=True, deck_fields=())
def report(config: RunConfig, run: Run, step: int, annotated: Table, logged: int) -> str:
    """Draw a step's deck: the curves so far, how rewards and lengths spread, and samples."""
    return _draw(config, run, step, annotated)


@task(container_image=LIGHT, enable_deck=True, deck_fields=())
def report_pairs(config: DpoConfig, run: Run, step: int, pairs: Table, logged: int) -> str:
    """Draw the deck of a step on preference pairs: the curves so far, and pairs to read."""
    return _draw(config, run, step, pairs)


def _draw(config: AnyConfig, run: Run, step: int, table: Table) -> str:
    from tasks.run.reporting import step_deck

    html = step_deck(config, run.mlflow_run_id, step, table)
    current_context().decks.clear()  # a local run would repeat every earlier deck in this one
    Deck("step", html)
    return run.directory


def deck_due(config: AnyConfig, step: int) -> bool:
    """Return whether a step has a deck."""
    every = config.tracking.deck_every
    return every > 0 and (step % every == 0 or step + 1 == config.schedule.max_steps)
