"""Flyte tasks: end a run, well or badly."""

import time
from typing import Optional

from flytekit import task
from flytekit.types.error import FlyteError

from configs.dpo import DpoConfig
from configs.plan import AnyConfig
from configs.run import RunConfig
from images.roles import LIGHT
from tasks.handle import Policy, Run


@task(container_image=LIGHT)
def close_run(
    config: RunConfig,
    run: Run,
    policy: Policy,
    evaluation: dict[str, float],
    evaluate_s: float,
    bootstrap_s: float,
) -> str:
    """Write `summary.json` and mark the MLflow run finished; return the checkpoint's path."""
    return _close(config, run, evaluation, evaluate_s, {"bootstrap": bootstrap_s})


@task(container_image=LIGHT)
def close_pairs(
    config: DpoConfig,
    run: Run,
    policy: Policy,
    evaluation: dict[str, float],
    evaluate_s: float,
    bootstrap_s: float,
    prepare_s: float,
) -> str:
    """Write the summary of a run on preference pairs and mark its MLflow run finished."""
    setup = {"bootstrap": bootstrap_s, "prepare": prepare_s}
    return _close(config, run, evaluation, evaluate_s, setup)


def _close(
    config: AnyConfig,
    run: Run,
    evaluation: dict[str, float],
    evaluate_s: float,
    before: dict[str, float],
) -> str:
    from tasks.run.closing import close_training_run

    summary = close_training_run(
        config,
        mlflow_run_id=run.mlflow_run_id,
        evaluation=evaluation,
        evaluate_s=evaluate_s,
        setup={"setup": run.setup_s, **before},
        total_s=sum(before.values())
        + run.setup_s
        + run.elapsed_before_s
        + time.time()
        - run.opened_at,
    )
    return summary.checkpoint


@task(container_image=LIGHT)
def fail_run(
    recipe: str,
    overrides: str,
    resume_from: str,
    err: Optional[FlyteError] = None,  # noqa: UP045
) -> str:
    """Mark the MLflow run of a failed execution as failed."""
    from configs.resolve import resolve_any
    from tasks.run.closing import fail_training_run

    try:
        config = resolve_any(recipe, overrides)
    except ValueError:
        return "the configuration was refused; no run was opened"
    fail_training_run(config)
    return f"{config.directory} is marked failed"
