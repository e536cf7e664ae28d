"""The deck of a step; a report that fails is a warning and never the end of a run."""

import logging
from pathlib import Path

import pyarrow as pa

from configs.dpo import DpoConfig
from configs.plan import AnyConfig
from tasks.run.files import write_text
from tasks.tracking import deck, pair_deck
from tasks.tracking.metrics import history
from tasks.tracking.store import open_store

logger = logging.getLogger(__name__)


def step_deck(config: AnyConfig, mlflow_run_id: str, step: int, table: pa.Table) -> str:
    """Return the HTML of a step's report and keep it as `report.html` in the run's directory."""
    try:
        of_pairs = isinstance(config, DpoConfig)
        names = pair_deck.CURVES if of_pairs else deck.CURVES
        histories = {}
        if mlflow_run_id:
            client = open_store(config.tracking.uri, config.job.output_root)
            histories = {name: history(client, mlflow_run_id, name) for name in names}
        render = pair_deck.pair_report if of_pairs else deck.step_report
        html = render(table, step=step, histories=histories)
    except Exception:
        logger.warning("the deck of step %d could not be drawn", step, exc_info=True)
        return f"<p>The report of step {step} could not be drawn; the task's log says why.</p>"
    write_text(Path(config.directory) / "report.html", html)
    return html
