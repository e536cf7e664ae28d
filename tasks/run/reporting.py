"""The deck of a step; a report that fails is a warning and never the end of a run."""

import logging
from pathlib import Path

import pyarrow as pa

from configs.dpo import DpoConfig
from configs.plan import AnyConfig
from configs.run import RunConfig
from tasks.run.files import write_text
from tasks.tracking.deck import step_report
from tasks.tracking.metrics import history
from tasks.tracking.pair_deck import CURVES, pair_report
from tasks.tracking.store import open_store

logger = logging.getLogger(__name__)


def step_deck(config: AnyConfig, mlflow_run_id: str, step: int, table: pa.Table) -> str:
    """Return the HTML of a step's report and keep it as `report.html` in the run's directory."""
    try:
        render = _render_pairs if isinstance(config, DpoConfig) else _render
        html = render(config, mlflow_run_id, step, table)
    except Exception:
        logger.warning("the deck of step %d could not be drawn", step, exc_info=True)
        return f"<p>The report of step {step} could not be drawn; the task's log says why.</p>"
    write_text(Path(config.directory) / "report.html", html)
    return html


def _render(config: RunConfig, mlflow_run_id: str, step: int, annotated: pa.Table) -> str:
    rewards, accuracies = [], []
    if mlflow_run_id:
        client = open_store(config.tracking.uri, config.job.output_root)
        rewards = history(client, mlflow_run_id, "train/reward/mean")
        accuracies = history(client, mlflow_run_id, "val/accuracy")
    return step_report(annotated, step=step, reward_history=rewards, accuracy_history=accuracies)


def _render_pairs(config: DpoConfig, mlflow_run_id: str, step: int, pairs: pa.Table) -> str:
    histories = {}
    if mlflow_run_id:
        client = open_store(config.tracking.uri, config.job.output_root)
        histories = {name: history(client, mlflow_run_id, name) for name in CURVES}
    return pair_report(pairs, step=step, histories=histories)
