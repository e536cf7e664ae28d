"""Flyte tasks: end a run, well or badly."""

import time
from typing import Optional

from flytekit import task
from flytekit.types.error import FlyteError

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
    from tasks.run.closing import close_training_run

    summary = close_training_run(
        config,
        mlflow_run_id=run.mlflow_run_id,
        evaluation=evaluation,
        evaluate_s=evaluate_s,
        setup={"setup": run.setup_s, "bootstrap": bootstrap_s},
        total_s=bootstrap_s + run.setup_s + run.elapsed_before_s + time.time() - run.opened_at,
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
    from configs.resolve import resolve
    from tasks.run.closing import fail_training_run

    try:
        config = resolve(recipe, overrides)
    except ValueError:
        return "the configuration was refused; no run was opened"
    fail_training_run(config)
    return f"{config.directory} is marked failed"
