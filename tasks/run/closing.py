"""The last thing a run does: the final evaluation, the summary, and the tracking run's status."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from configs.plan import to_yaml
from configs.run import RunConfig
from tasks.policy import checkpoints
from tasks.run.files import RUN_FILE, read_json
from tasks.tracking.metrics import history, log_step
from tasks.tracking.progress import format_evaluation
from tasks.tracking.runs import config_digest, finish
from tasks.tracking.store import open_store
from tasks.tracking.summary import Summary, first_and_last, with_orchestration, write_summary

if TYPE_CHECKING:
    from mlflow import MlflowClient

STAGES = ("rollout", "score", "annotate", "train", "evaluate")


def close_training_run(
    config: RunConfig,
    *,
    mlflow_run_id: str,
    evaluation: Mapping[str, float],
    evaluate_s: float,
    setup: Mapping[str, float],
    total_s: float,
) -> Summary:
    """Log the final evaluation, write `summary.json` and mark the tracking run finished.

    Args:
        config: the run's.
        mlflow_run_id: its tracking run.
        evaluation: metrics of the final policy.
        evaluate_s: what measuring them took.
        setup: seconds of the stages before the first step.
        total_s: seconds of all executions of the run, those stages included.

    Raises:
        RuntimeError: if no checkpoint of the run verifies.
    """
    client = open_store(config.tracking.uri, config.job.output_root)
    found = checkpoints.newest(Path(config.directory).resolve() / "checkpoints")
    if found is None:
        raise RuntimeError(f"no intact checkpoint under {config.directory}/checkpoints at the end")
    last = {**evaluation, "perf/evaluate_s": evaluate_s, "perf/elapsed_s": total_s}
    log_step(client, mlflow_run_id, found.step, last)
    rewards = first_and_last(history(client, mlflow_run_id, "train/reward/mean"))
    accuracies = first_and_last(history(client, mlflow_run_id, "val/accuracy"))
    summary = Summary(
        steps=found.step,
        first_accuracy=accuracies[0],
        last_accuracy=accuracies[1],
        first_reward=rewards[0],
        last_reward=rewards[1],
        seconds=with_orchestration({**setup, **stage_seconds(client, mlflow_run_id)}, total_s),
        mlflow_run_id=mlflow_run_id,
        checkpoint=str(found.path),
        weights_digest=found.policy.digest,
        config_digest=config_digest(to_yaml(config)),
        objective_identity=str(read_json(Path(config.directory) / RUN_FILE)["identity"]),
    )
    path = write_summary(summary, config.job.output_root, config.job.name)
    finish(client, mlflow_run_id, "FINISHED")
    _tell(config, summary, evaluation, evaluate_s, path)
    return summary


def stage_seconds(client: "MlflowClient", run_id: str) -> dict[str, float]:
    """Return the seconds that each stage took over the whole run."""
    return {
        stage: sum(value for _, value in history(client, run_id, f"perf/{stage}_s"))
        for stage in STAGES
    }


def fail_training_run(config: RunConfig) -> None:
    """Mark the tracking run of a failed run as failed, if it was opened at all."""
    run_id = read_json(Path(config.directory) / RUN_FILE).get("mlflow_run_id")
    if run_id:
        finish(open_store(config.tracking.uri, config.job.output_root), str(run_id), "FAILED")


def _tell(
    config: RunConfig,
    summary: Summary,
    evaluation: Mapping[str, float],
    evaluate_s: float,
    path: Path,
) -> None:
    line = format_evaluation(
        summary.steps,
        config.rl.max_steps,
        accuracy=evaluation["val/accuracy"],
        num_prompts=config.evaluation.num_prompts,
        seconds=evaluate_s,
    )
    print(f"{line}\nsummary {path}\ncheckpoint {summary.checkpoint}", flush=True)
