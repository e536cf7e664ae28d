"""Numbers per step: one batch per call, nothing non-finite, no point twice."""

import math
import operator
import posixpath
import re
import time
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

NAME = re.compile(r"[A-Za-z0-9_/.\- ]+")
MAX_NAME_CHARS = 200
NONFINITE = "nonfinite/"
MAX_ATTEMPTS = 6
FIRST_PAUSE_S = 0.05

_last_steps: dict[tuple[str, str], dict[str, int]] = {}


def log_step(
    client: "MlflowClient", run_id: str, step: int, metrics: Mapping[str, float | None]
) -> None:
    """Log the metrics of one step in one batch.

    A value that is None, NaN or infinite is not sent; `nonfinite/<name>` = 1 is, in its place. A
    metric whose last logged step is at or after `step` is skipped, so that a step replayed after a
    resume makes no second point. One process at a time may write to a run.

    Raises:
        TypeError: a value that is no number, or a step that is no integer.
        ValueError: a name MLflow cannot store.
    """
    step = operator.index(step)
    values = dict(_sendable(metrics))
    last = _last_logged(client, run_id)
    new = {name: value for name, value in values.items() if last.get(name, step - 1) < step}
    if new:
        _send(client, run_id, _entities(step, new))
        last.update(dict.fromkeys(new, step))


def history(client: "MlflowClient", run_id: str, name: str) -> list[tuple[int, float]]:
    """Return the logged points `(step, value)` of a metric by step; empty if there are none."""
    points = client.get_metric_history(run_id, name)
    return sorted((point.step, point.value) for point in points)


def forget(client: "MlflowClient", run_id: str) -> None:
    """Drop what this process remembers of a run; the next `log_step` asks the store again."""
    _last_steps.pop((client.tracking_uri, run_id), None)


def _sendable(metrics: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        _check_name(name)
        if value is not None and not isinstance(value, Real):
            raise TypeError(
                f"metric {name!r} is {value!r}, a {type(value).__name__}; metrics are real numbers:"
                " put text into a tag or an artifact"
            )
        if value is None or not math.isfinite(value):
            yield f"{NONFINITE}{name}", 1.0
        else:
            yield name, float(value)


def _check_name(name: str) -> None:
    is_path = posixpath.normpath(name) == name and not name.startswith(("/", ".."))
    if NAME.fullmatch(name) and is_path and len(name) <= MAX_NAME_CHARS:
        return
    raise ValueError(
        f"metric name {name!r} cannot be stored: expected up to {MAX_NAME_CHARS} of the characters"
        " A-Z a-z 0-9 _ / . - and space, as a plain relative path; rename the metric"
    )


def _last_logged(client: "MlflowClient", run_id: str) -> dict[str, int]:
    key = (client.tracking_uri, run_id)
    if key not in _last_steps:
        # MLflow's "latest" is the highest step; the public mapping has values only.
        latest = client.get_run(run_id).data.to_proto().metrics
        _last_steps[key] = {metric.key: metric.step for metric in latest}
    return _last_steps[key]


def _entities(step: int, values: Mapping[str, float]) -> "list[Metric]":
    from mlflow.entities import Metric

    now_ms = time.time_ns() // 1_000_000
    return [Metric(name, value, now_ms, step) for name, value in values.items()]


def _send(client: "MlflowClient", run_id: str, entities: "list[Metric]") -> None:
    """Send, again after a growing pause if the database is busy; safe, as equal points merge."""
    from mlflow.exceptions import MlflowException

    for attempt in range(MAX_ATTEMPTS):
        try:
            client.log_batch(run_id, metrics=entities)
        except MlflowException as error:
            if not is_busy(error) or attempt == MAX_ATTEMPTS - 1:
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
        else:
            return


def is_busy(error: Exception) -> bool:
    """Tell a database that another writer holds (worth another try) from every other error."""
    return "database is locked" in str(error)
