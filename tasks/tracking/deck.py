"""The report of a step as one piece of HTML: curves so far, distributions, samples to read."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.tracking.charts import histogram, line_chart

MAX_BYTES = 200_000
"""No report is larger: 8 rows of texts cut as below, escaped at most sixfold, stay far under it."""

MAX_SAMPLES = 8
MAX_PROMPT_CHARS = 600
MAX_RESPONSE_CHARS = 1_200
MAX_WORD_CHARS = 40
COLUMNS = (
    "prompt_text",
    "response_text",
    "reward",
    "advantage",
    "finish_reason",
    "response_tokens",
)

History = Sequence[tuple[int, float]]


class Curve(NamedTuple):
    """How the values of a metric are drawn."""

    title: str
    y_label: str


CURVES = {
    "train/reward/mean": Curve("Reward so far", "mean reward"),
    "val/accuracy": Curve("Held-out accuracy so far", "accuracy (share)"),
    "train/teacher/kl": Curve("Divergence from the teacher so far", "KL (nats)"),
}
"""Metrics that are drawn, where there are any."""

STYLE = """
.step-report{font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:#0f172a;
background:#fff;max-width:1280px;padding:4px 8px}
.step-report h2{font-size:20px;margin:8px 0}
.step-report h3{font-size:14px;margin:0 0 4px}
.step-report .facts{display:flex;flex-wrap:wrap;gap:8px 28px;margin:0 0 16px;padding:0}
.step-report .facts div{display:flex;flex-direction:column}
.step-report dt{color:#64748b;font-size:12px}
.step-report dd{margin:0;font-size:18px;font-variant-numeric:tabular-nums}
.step-report .charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(290px,1fr));
gap:12px;margin-bottom:20px}
.step-report figure{margin:0;border:1px solid #e2e8f0;border-radius:6px;padding:10px}
.step-report figcaption{font-weight:600;margin-bottom:4px}
.step-report svg{display:block;width:100%;height:auto;max-width:420px;font-family:inherit}
.step-report table{border-collapse:collapse;width:100%;table-layout:fixed}
.step-report th{text-align:left;color:#64748b;font-size:12px;font-weight:600}
.step-report th,.step-report td{border-bottom:1px solid #e2e8f0;padding:6px 8px;vertical-align:top}
.step-report td{font-size:12px}
.step-report .text{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;
font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace}
.step-report .number{text-align:right;font-variant-numeric:tabular-nums}
.step-report .up{color:#15803d}.step-report .down{color:#b91c1c}
.step-report .note{color:#64748b;font-size:12px;margin:4px 0}
"""

HEADINGS = (
    '<colgroup><col style="width:30%"><col><col style="width:76px"><col style="width:86px">'
    '<col style="width:72px"><col style="width:80px"></colgroup><thead><tr><th>Prompt</th>'
    '<th>Response</th><th class="number">Reward</th><th class="number">Advantage</th>'
    '<th class="number">Tokens</th><th>Finish</th></tr></thead>'
)


def step_report(annotated: pa.Table, *, step: int, histories: Mapping[str, History]) -> str:
    """Return the report as an HTML fragment of at most 200 kB, without scripts or links.

    Args:
        annotated: rows of the step; reads `prompt_text`, `response_text`, `reward`, `advantage`,
            `finish_reason` and `response_tokens`.
        step: the step reported.
        histories: `(step, value)` so far, by name of the metric; see `CURVES`.
    """
    table = annotated.select(COLUMNS)
    rewards = _rewards(table)
    lengths = _lengths(table)
    return (
        f'<style>{STYLE}</style><section class="step-report"><h2>Step {step:,}</h2>'
        f"{_facts(rewards, lengths, table)}"
        f'<div class="charts">{draw_curves(CURVES, histories)}'
        f"{_distributions(rewards, lengths)}</div>"
        f"{_samples(table)}</section>"
    )


def sample_rows(advantages: NDArray[np.floating], num_samples: int = MAX_SAMPLES) -> list[int]:
    """Return row numbers from the highest advantage to the lowest, evenly spaced, ends included.

    >>> sample_rows(np.array([0.0, 1.0, -1.0, 0.5, -0.5]), num_samples=3)
    [1, 0, 2]
    """
    order = np.argsort(-advantages, kind="stable")
    places = np.linspace(0, len(order) - 1, min(num_samples, len(order))).round().astype(int)
    return order[places].tolist()


def _rewards(table: pa.Table) -> NDArray[np.float64]:
    """Return the rewards; NaN where a row could not be scored."""
    return table["reward"].cast(pa.float64()).to_numpy()


def _lengths(table: pa.Table) -> NDArray[np.int64]:
    return pc.list_value_length(table["response_tokens"]).cast(pa.int64()).to_numpy()


def _facts(rewards: NDArray[np.float64], lengths: NDArray[np.int64], table: pa.Table) -> str:
    num_unscored = int(np.isnan(rewards).sum())
    num_cut = pc.sum(pc.equal(table["finish_reason"], "length")).as_py() or 0
    facts = {
        "samples": f"{len(rewards):,}",
        "mean reward": _mean(rewards[~np.isnan(rewards)], 3),
        "unscored": f"{num_unscored:,}",
        "mean response length": f"{_mean(lengths, 1)} tokens",
        "cut by the length limit": f"{num_cut:,}",
    }
    terms = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{terms}</dl>'


def _mean(values: NDArray[np.float64] | NDArray[np.int64], decimals: int) -> str:
    return f"{values.mean():.{decimals}f}" if len(values) else "none"


def draw_curves(curves: Mapping[str, Curve], histories: Mapping[str, History]) -> str:
    """Return a chart for every metric that has been logged."""
    return "".join(
        figure(curve.title, line_chart(histories[name], x_label="step", y_label=curve.y_label))
        for name, curve in curves.items()
        if histories.get(name)
    )


def _distributions(rewards: NDArray[np.float64], lengths: NDArray[np.int64]) -> str:
    reward = histogram(rewards, x_label="reward", y_label="samples")
    length = histogram(lengths, x_label="response length (tokens)", y_label="samples")
    return figure("Rewards of this step", reward) + figure("Response lengths", length)


def figure(title: str, chart: str) -> str:
    """Return a chart under its title."""
    return f"<figure><figcaption>{title}</figcaption>{chart}</figure>"


def _samples(table: pa.Table) -> str:
    rows = pa.array(sample_rows(table["advantage"].to_numpy()), pa.int64())
    picked = table.take(rows).to_pylist()
    body = "".join(_row(sample) for sample in picked)
    return (
        "<h3>Samples</h3>"
        f'<p class="note">{len(picked)} of {len(table):,}, from the highest advantage to the'
        f" lowest.</p><table>{HEADINGS}<tbody>{body}</tbody></table>"
    )


def _row(sample: Mapping[str, object]) -> str:
    advantage = sample["advantage"]
    return (
        f'<tr><td class="text">{cut(sample["prompt_text"], MAX_PROMPT_CHARS)}</td>'
        f'<td class="text">{cut(sample["response_text"], MAX_RESPONSE_CHARS)}</td>'
        f'<td class="number">{_value(sample["reward"], ".3f", "unscored")}</td>'
        f'<td class="number {_direction(advantage)}">{_value(advantage, "+.3f", "none")}</td>'
        f'<td class="number">{len(sample["response_tokens"]):,}</td>'
        f"<td>{cut(sample['finish_reason'], MAX_WORD_CHARS)}</td></tr>"
    )


def _direction(advantage: float | None) -> str:
    if not advantage:
        return ""
    return "up" if advantage > 0 else "down"


def _value(value: float | None, form: str, absent: str) -> str:
    return absent if value is None else format(value, form)


def cut(text: str | None, max_chars: int) -> str:
    """Return the text escaped; where it is too long, its start and how much is missing."""
    text = text or ""
    if len(text) <= max_chars:
        return escape(text)
    return f"{escape(text[:max_chars])} [... {len(text) - max_chars:,} more characters]"
