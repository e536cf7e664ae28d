import math

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from tasks.tracking.metrics import forget, history, log_step
from tasks.tracking.runs import create_run
from tasks.tracking.store import open_store


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    return open_store("", tmp_path_factory.mktemp("store"))


@pytest.fixture
def run_id(client: MlflowClient) -> str:
    return create_run(client, experiment="e", run_name="r", params={}, tags={}, config_text="a: 1")


def names(client: MlflowClient, run_id: str) -> set[str]:
    return set(client.get_run(run_id).data.metrics)


def test_points_come_back_by_step(client: MlflowClient, run_id: str) -> None:
    log_step(client, run_id, 1, {"train/loss": 0.5, "val/accuracy": np.float32(0.25)})
    log_step(client, run_id, 2, {"train/loss": 0.125})
    assert history(client, run_id, "train/loss") == [(1, 0.5), (2, 0.125)]
    assert history(client, run_id, "val/accuracy") == [(1, 0.25)]
    assert history(client, run_id, "never/logged") == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_value_that_is_not_finite_becomes_a_counter(
    client: MlflowClient, run_id: str, value: float | None
) -> None:
    log_step(client, run_id, 3, {"train/loss": value, "train/kl": 0.1})
    assert history(client, run_id, "nonfinite/train/loss") == [(3, 1.0)]
    assert names(client, run_id) == {"nonfinite/train/loss", "train/kl"}


def test_text_is_refused_before_anything_is_sent(client: MlflowClient, run_id: str) -> None:
    with pytest.raises(TypeError, match="'train/note' is 'good'"):
        log_step(client, run_id, 1, {"train/loss": 0.5, "train/note": "good"})
    assert names(client, run_id) == set()


@pytest.mark.parametrize("name", ["loss@k", "loss%", "", "a//b", "../a", "/a", "a\n", "x" * 201])
def test_a_name_mlflow_cannot_store_is_refused(
    client: MlflowClient, run_id: str, name: str
) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        log_step(client, run_id, 1, {name: 0.5})


def test_a_fractional_step_is_refused(client: MlflowClient, run_id: str) -> None:
    with pytest.raises(TypeError):
        log_step(client, run_id, 1.5, {"loss": 0.5})


def test_a_replayed_step_makes_no_second_point(client: MlflowClient, run_id: str) -> None:
    for step in (1, 2):
        log_step(client, run_id, step, {"loss": float(step)})
    forget(client, run_id)  # as in a new process after a resume
    for step in (1, 2, 3):
        log_step(client, run_id, step, {"loss": 10.0 * step})
    assert history(client, run_id, "loss") == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_a_metric_new_at_an_old_step_is_kept(client: MlflowClient, run_id: str) -> None:
    log_step(client, run_id, 5, {"train/loss": 1.0})
    log_step(client, run_id, 5, {"train/loss": 2.0, "val/accuracy": 0.5})
    log_step(client, run_id, 4, {"perf/seconds": 3.0})
    assert history(client, run_id, "train/loss") == [(5, 1.0)]
    assert history(client, run_id, "val/accuracy") == [(5, 0.5)]
    assert history(client, run_id, "perf/seconds") == [(4, 3.0)]


LOCKED = "(sqlite3.OperationalError) database is locked"


class Busy:
    """A client whose database is locked for the first calls."""

    def __init__(self, client: MlflowClient, *, num_failures: int, message: str = LOCKED) -> None:
        self.client, self.num_failures, self.message = client, num_failures, message
        self.num_calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.client, name)

    def log_batch(self, run_id: str, metrics: list[Metric]) -> None:
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise MlflowException(self.message)
        self.client.log_batch(run_id, metrics=metrics)


def test_a_locked_database_is_tried_again(
    client: MlflowClient, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    log_step(Busy(client, num_failures=3), run_id, 1, {"loss": 0.5})
    assert history(client, run_id, "loss") == [(1, 0.5)]
    assert pauses == [0.05, 0.1, 0.2]


def test_a_database_locked_for_good_is_an_error_and_nothing_counts_as_logged(
    client: MlflowClient, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    busy = Busy(client, num_failures=100)
    with pytest.raises(MlflowException, match="locked"):
        log_step(busy, run_id, 1, {"loss": 0.5})
    assert busy.num_calls == 6
    log_step(client, run_id, 1, {"loss": 0.25})
    assert history(client, run_id, "loss") == [(1, 0.25)]


def test_another_error_is_not_tried_again(client: MlflowClient, run_id: str) -> None:
    broken = Busy(client, num_failures=100, message="disk full")
    with pytest.raises(MlflowException, match="disk full"):
        log_step(broken, run_id, 1, {"loss": 0.5})
    assert broken.num_calls == 1
