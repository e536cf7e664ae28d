"""The report of a step on preference pairs: curves so far, lengths, pairs to read."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.tracking.charts import histogram
from tasks.tracking.deck import (
    MAX_PROMPT_CHARS,
    MAX_RESPONSE_CHARS,
    STYLE,
    Curve,
    History,
    cut,
    draw_curves,
    figure,
)

MAX_PAIRS = 6

CURVES = {
    "train/loss": Curve("Loss so far", "loss"),
    "train/preference/margin": Curve("Margin of implicit rewards so far", "margin"),
    "val/accuracy": Curve("Held-out accuracy so far", "accuracy (share)"),
    "val/preferred_share": Curve("Share of samples with the preferred property", "share"),
}
"""Metrics that are drawn, where there are any."""


def pair_report(pairs: pa.Table, *, step: int, histories: Mapping[str, History]) -> str:
    """Return the report as an HTML fragment, without scripts or links.

    Args:
        pairs: the pairs of the step: `PREFERENCES` with more columns, or `POINTS`.
        step: the step reported.
        histories: `(step, value)` so far, by name of the metric; see `CURVES`.
    """
    of_text = "chosen_tokens" in pairs.column_names
    return (
        f'<style>{STYLE}</style><section class="step-report"><h2>Step {step:,}</h2>'
        f'<p class="note">{len(pairs):,} pairs</p>'
        f'<div class="charts">{draw_curves(CURVES, histories)}'
        f"{_lengths(pairs) if of_text else _positions(pairs)}</div>"
        f"{_samples(pairs) if of_text else ''}</section>"
    )


def _lengths(pairs: pa.Table) -> str:
    charts = []
    for side in ("chosen", "rejected"):
        lengths = pc.list_value_length(pairs[f"{side}_tokens"]).cast(pa.int64()).to_numpy()
        chart = histogram(lengths, x_label="length (tokens)", y_label="pairs")
        charts.append(figure(f"Lengths, {side}", chart))
    return "".join(charts)


def _positions(pairs: pa.Table) -> str:
    charts = []
    for side in ("chosen", "rejected"):
        first = np.array(pairs[f"{side}_point"].to_pylist())[:, 0]
        chart = histogram(first, x_label="first coordinate", y_label="pairs")
        charts.append(figure(f"Points, {side}", chart))
    return "".join(charts)


def _samples(pairs: pa.Table) -> str:
    rows = pairs.slice(0, MAX_PAIRS).to_pylist()
    head = "<thead><tr><th>Prompt</th><th>Chosen</th><th>Rejected</th></tr></thead>"
    body = "".join(
        f'<tr><td class="text">{cut(row["prompt_text"], MAX_PROMPT_CHARS)}</td>'
        f'<td class="text">{cut(row["chosen_text"], MAX_RESPONSE_CHARS)}</td>'
        f'<td class="text">{cut(row["rejected_text"], MAX_RESPONSE_CHARS)}</td></tr>'
        for row in rows
    )
    return f"<h3>Pairs</h3><table>{head}<tbody>{body}</tbody></table>"
