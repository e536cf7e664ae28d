"""The last thing a run does: the final evaluation, the summary, and the tracking run's status."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from configs.dpo import DpoConfig
from configs.plan import AnyConfig, to_yaml
from tasks.policy import checkpoints
from tasks.run.files import RUN_FILE, read_json
from tasks.tracking.metrics import history, log_step
from tasks.tracking.progress import format_evaluation
from tasks.tracking.runs import config_digest, finish
from tasks.tracking.store import open_store
from tasks.tracking.summary import (
    DistillationSummary,
    PreferenceSummary,
    Summary,
    first_and_last,
    with_orchestration,
    write_summary,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

STAGES = ("rollout", "score", "annotate", "teacher", "train", "evaluate")


def close_training_run(
    config: AnyConfig,
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
    rewards = first_and_last(history(client, mlflow_run_id, _reward(config)))
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
    summary = _extended(config, summary, client)
    path = write_summary(summary, config.job.output_root, config.job.name)
    finish(client, mlflow_run_id, "FINISHED")
    _tell(config, summary, evaluation, evaluate_s, path)
    return summary


def _reward(config: AnyConfig) -> str:
    """Return the metric that stands for the reward: for pairs, the margin."""
    return "train/preference/margin" if isinstance(config, DpoConfig) else "train/reward/mean"


def _extended(config: AnyConfig, summary: Summary, client: "MlflowClient") -> Summary:
    """Return the summary with what only runs of this kind have."""
    if isinstance(config, DpoConfig):
        first, _ = first_and_last(history(client, summary.mlflow_run_id, "val/loss"))
        return PreferenceSummary(**vars(summary), first_loss=first)
    return summary if config.teacher.source == "none" else _with_teacher(summary, client)


def _with_teacher(summary: Summary, client: "MlflowClient") -> DistillationSummary:
    first, last = first_and_last(history(client, summary.mlflow_run_id, "train/teacher/kl"))
    return DistillationSummary(**vars(summary), first_teacher_kl=first, last_teacher_kl=last)


def stage_seconds(client: "MlflowClient", run_id: str) -> dict[str, float]:
    """Return the seconds that each stage took over the whole run; only stages that it has."""
    points = {stage: history(client, run_id, f"perf/{stage}_s") for stage in STAGES}
    return {stage: sum(value for _, value in of) for stage, of in points.items() if of}


def fail_training_run(config: AnyConfig) -> None:
    """Mark the tracking run of a failed run as failed, if it was opened at all."""
    run_id = read_json(Path(config.directory) / RUN_FILE).get("mlflow_run_id")
    if run_id:
        finish(open_store(config.tracking.uri, config.job.output_root), str(run_id), "FAILED")


def _tell(
    config: AnyConfig,
    summary: Summary,
    evaluation: Mapping[str, float],
    evaluate_s: float,
    path: Path,
) -> None:
    of_pairs = isinstance(config, DpoConfig)
    line = format_evaluation(
        summary.steps,
        config.schedule.max_steps,
        accuracy=evaluation["val/accuracy"],
        num_prompts=config.evaluation.num_pairs if of_pairs else config.evaluation.num_prompts,
        unit="pairs" if of_pairs else "prompts",
        seconds=evaluate_s,
    )
    print(f"{line}\nsummary {path}\ncheckpoint {summary.checkpoint}", flush=True)
