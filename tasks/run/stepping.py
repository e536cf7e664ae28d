"""What is told about every step: metrics to MLflow, one line to the terminal."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from configs.dpo import DpoConfig
from configs.plan import AnyConfig
from configs.run import RunConfig
from tasks.tracking.metrics import log_step
from tasks.tracking.progress import StepProgress, format_step, remaining_s
from tasks.tracking.store import open_store

ROOTS = ("train/", "val/")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Where a run stands in time.

    Attributes:
        opened_at: when this execution opened the run, in seconds since the epoch.
        elapsed_before_s: what earlier executions took.
        start_step: the first step of this execution.
    """

    opened_at: float
    elapsed_before_s: float
    start_step: int

    def here_s(self) -> float:
        """Return the seconds since this execution opened the run."""
        return time.time() - self.opened_at

    def elapsed_s(self) -> float:
        """Return the seconds of all executions of the run."""
        return self.elapsed_before_s + self.here_s()


def track_step(
    config: AnyConfig,
    clock: Clock,
    *,
    mlflow_run_id: str,
    step: int,
    metrics: Mapping[str, float],
    seconds: Mapping[str, float],
) -> None:
    """Log one step and print its line; without a tracking run only the line.

    Args:
        config: the run's.
        clock: the run's.
        mlflow_run_id: empty for none.
        step: the step that has ended.
        metrics: by name, of the table, the update and the evaluation of this step.
        seconds: wall time by stage.
    """
    if mlflow_run_id:
        client = open_store(config.tracking.uri, config.job.output_root)
        named = published(config, metrics, seconds)
        log_step(client, mlflow_run_id, step, {**named, "perf/elapsed_s": clock.elapsed_s()})
    print(_line(config, clock, step, metrics, seconds), flush=True)


def published(
    config: AnyConfig, metrics: Mapping[str, float], seconds: Mapping[str, float]
) -> dict[str, float]:
    """Return everything measured in a step by public name; names without a root get `train/`."""
    named = {
        name if name.startswith(ROOTS) else f"train/{name}": value
        for name, value in metrics.items()
    }
    stages = {f"perf/{stage}_s": value for stage, value in seconds.items()}
    if isinstance(config, DpoConfig):
        return {**named, **stages}
    rate = {"perf/rollout_tokens_per_s": _tokens_per_s(config, metrics, seconds["rollout"])}
    return {**named, **stages, **rate}


def _tokens_per_s(config: RunConfig, metrics: Mapping[str, float], seconds: float) -> float:
    num_responses = config.rollout.prompts_per_step * config.rollout.group_size
    return metrics["response/length_mean"] * num_responses / seconds


def _line(
    config: AnyConfig,
    clock: Clock,
    step: int,
    metrics: Mapping[str, float],
    seconds: Mapping[str, float],
) -> str:
    num_steps = config.schedule.max_steps
    here, done = step + 1 - clock.start_step, num_steps - clock.start_step
    progress = StepProgress(
        step=step + 1,
        num_steps=num_steps,
        accuracy=metrics.get("val/accuracy"),
        seconds={stage: s for stage, s in seconds.items() if stage != "evaluate"},
        eta_s=remaining_s(here, done, clock.here_s()),
        **_told(config, metrics, sum(seconds.values())),
    )
    return format_step(progress)


def _told(
    config: AnyConfig, metrics: Mapping[str, float], seconds: float
) -> dict[str, float | str]:
    """Return what stands for reward and speed in a kind of run."""
    if isinstance(config, DpoConfig):
        return {
            "reward": metrics["train/preference/margin"],
            "tokens_per_s": config.dpo.pairs_per_step / seconds,
            "measure": "margin",
            "unit": "pairs/s",
        }
    rate = _tokens_per_s(config, metrics, seconds)
    return {"reward": metrics["reward/mean"], "tokens_per_s": rate}
