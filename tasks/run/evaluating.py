"""What an evaluation leaves: its tables, `evaluation.json`, a report, and lines on the terminal."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from configs.run import RunConfig
from tasks.data.arrow import write_table
from tasks.evaluation.judging import outcomes
from tasks.evaluation.measuring import measure
from tasks.evaluation.record import JUDGED_FILE, OUTCOMES_FILE, RECORD_FILE, Record, describe
from tasks.run.files import write_text
from tasks.tracking.evaluation_deck import evaluation_report
from tasks.tracking.summary import finite

FAILURES = ("val/num_unscored", "val/num_error", "val/num_timeout")

logger = logging.getLogger(__name__)


def keep_evaluation(
    config: RunConfig, judged: pa.Table, *, origin: str, step: int, digest: str
) -> tuple[Path, str]:
    """Write what an evaluation comes to; return its directory and the HTML of its report.

    Args:
        config: of the evaluation; it is kept under the directory of its run.
        judged: JUDGED, every response.
        origin: where the policy was found.
        step: training steps that it has behind it.
        digest: of its weights.
    """
    ks = config.evaluation.ks
    table = outcomes(judged, ks)
    metrics = measure(table, ks)
    record = describe(config, judged, metrics, origin=origin, step=step, digest=digest)
    directory = Path(config.directory).resolve() / "evaluations" / record.name
    write_table(directory / JUDGED_FILE, judged)
    write_table(directory / OUTCOMES_FILE, table)
    write_text(directory / "config.json", config.model_dump_json(indent=2))
    html = _draw(judged, origin, metrics)
    write_text(directory / "report.html", html)
    write_text(directory / RECORD_FILE, json.dumps(finite(asdict(record)), indent=2) + "\n")
    print("\n".join([*lines(record), f"kept in {directory}"]), flush=True)
    return directory, html


def lines(record: Record) -> list[str]:
    """Return what the terminal shows of an evaluation."""
    metrics, sampling = record.metrics, record.sampling
    num_responses, num_samples = int(metrics["val/num_responses"]), sampling["num_samples"]
    unscored, errors, timeouts = (int(metrics[name]) for name in FAILURES)
    named = {"accuracy": "val/accuracy{}"}
    named |= {f"pass@{k}": f"val/pass_at{{}}/{k}" for k in record.pass_at}
    sources = [name for name in metrics if name.startswith("val/accuracy_of/")]
    drawn = f"{num_samples} per prompt, temperature {sampling['temperature']:g}"
    return [
        f"evaluated {record.origin}",
        f"{num_responses:,} responses, {drawn}",
        f"right by {record.reward['correct_part']}",
        *(_with_interval(name, metrics, pattern) for name, pattern in named.items()),
        *(f"accuracy of {name.rpartition('/')[2]}  {metrics[name]:.4f}" for name in sources),
        f"mean reward  {metrics['val/reward_mean']:.4f}",
        f"unscored  {unscored} ({errors} errors, {timeouts} timeouts)",
        f"cut by the length limit  {metrics['val/truncated_fraction']:.1%}",
    ]


def _with_interval(name: str, metrics: Mapping[str, float], pattern: str) -> str:
    value, low, high = (metrics[pattern.format(end)] for end in ("", "_low", "_high"))
    return f"{name}  {value:.4f}  95 % {low:.4f} to {high:.4f}"


def _draw(judged: pa.Table, origin: str, metrics: Mapping[str, float]) -> str:
    """Return the report; one that fails is a warning, and not the end of an evaluation."""
    try:
        return evaluation_report(judged, origin=origin, metrics=metrics)
    except Exception:
        logger.warning("the report of the evaluation could not be drawn", exc_info=True)
        return "<p>The report could not be drawn; the task's log says why.</p>"
