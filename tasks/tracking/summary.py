"""What is left of a run for people and scripts: `<output_root>/<job.name>/summary.json`."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The outcome of a run; the file has exactly these keys."""

    steps: int
    """Training steps done, those before a resume included."""

    first_accuracy: float | None
    """Held-out accuracy of the first evaluation; None: never evaluated."""

    last_accuracy: float | None
    """Held-out accuracy of the last evaluation."""

    first_reward: float | None
    """Mean reward of the first step; None: nothing was scored."""

    last_reward: float | None
    """Mean reward of the last step."""

    seconds: Mapping[str, float]
    """Wall time by stage, with `orchestration` and `total`; see `with_orchestration`."""

    mlflow_run_id: str
    checkpoint: str
    """Path or URI of the last checkpoint."""

    weights_digest: str
    config_digest: str
    objective_identity: str


@dataclass(frozen=True, kw_only=True)
class DistillationSummary(Summary):
    """The outcome of a run that has a teacher."""

    first_teacher_kl: float | None
    """Mean KL(student, teacher) of the first step, in nats per token."""

    last_teacher_kl: float | None
    """The same of the last step."""


@dataclass(frozen=True, kw_only=True)
class PreferenceSummary(Summary):
    """The outcome of a run on preference pairs.

    Its accuracy is the share of held-out pairs of which the chosen member has the larger implicit
    reward, and its reward the mean difference of the two.
    """

    first_loss: float | None
    """Held-out loss before the first update: ln 2 for the plain one."""


def first_and_last(history: Sequence[tuple[int, float]]) -> tuple[float | None, float | None]:
    """Return the values at the lowest and highest step of `(step, value)` points.

    >>> first_and_last([(2, 0.75), (0, 0.5), (1, 0.625)])
    (0.5, 0.75)
    >>> first_and_last([])
    (None, None)
    """
    if not history:
        return None, None
    return min(history)[1], max(history)[1]


def with_orchestration(stages: Mapping[str, float], total_s: float) -> dict[str, float]:
    """Return the stages plus `total` and `orchestration`, the time spent in no stage.

    >>> with_orchestration({"rollout": 2.0, "train": 5.0}, total_s=7.25)
    {'rollout': 2.0, 'train': 5.0, 'orchestration': 0.25, 'total': 7.25}
    """
    return {**stages, "orchestration": max(0.0, total_s - sum(stages.values())), "total": total_s}


def summary_path(output_root: str | Path, job_name: str) -> Path:
    """Return where the summary of a job lies."""
    return Path(output_root) / job_name / FILE_NAME


def write_summary(summary: Summary, output_root: str | Path, job_name: str) -> Path:
    """Write the summary and return its path; a reader sees the old file or the new, never half.

    A number that is not finite is written as null: JSON has no other word for it.
    """
    path = summary_path(output_root, job_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{FILE_NAME}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(finite(asdict(summary)), file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def finite(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values, at any depth, with None for each number that is not finite."""
    return {name: _finite_value(value) for name, value in values.items()}


def _finite_value(value: object) -> object:
    if isinstance(value, Mapping):
        return finite(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
