"""The report of an evaluation: its numbers, how prompts and lengths spread, responses to read."""

from collections.abc import Mapping
from html import escape

import pyarrow as pa
import pyarrow.compute as pc

from tasks.tracking.charts import histogram
from tasks.tracking.deck import MAX_PROMPT_CHARS, MAX_RESPONSE_CHARS, STYLE, cut, figure

MAX_RESPONSES = 12

VERDICTS = {True: "right", False: "wrong", None: "unscored"}

HEADINGS = (
    '<colgroup><col style="width:30%"><col><col style="width:20%"><col style="width:80px">'
    "</colgroup><thead><tr><th>Prompt</th><th>Response</th><th>Answer</th><th>Verdict</th></tr>"
    "</thead>"
)


def evaluation_report(judged: pa.Table, *, origin: str, metrics: Mapping[str, float]) -> str:
    """Return the report as an HTML fragment, without scripts or links.

    Args:
        judged: JUDGED, every response.
        origin: what was evaluated.
        metrics: by name.
    """
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{value:,.4g}</td></tr>'
        for name, value in metrics.items()
    )
    lengths = pc.list_value_length(judged["response_tokens"]).cast(pa.int64()).to_numpy()
    rewards = judged["reward"].cast(pa.float64()).to_numpy()
    charts = figure("Rewards", histogram(rewards, x_label="reward", y_label="responses")) + figure(
        "Response lengths", histogram(lengths, x_label="length (tokens)", y_label="responses")
    )
    return (
        f'<style>{STYLE}</style><section class="step-report"><h2>{escape(origin)}</h2>'
        f'<table style="max-width:420px"><tbody>{rows}</tbody></table>'
        f'<div class="charts">{charts}</div>{_responses(judged)}</section>'
    )


def _responses(judged: pa.Table) -> str:
    """Return some responses, those that are not right first."""
    is_right = pc.fill_null(judged["correct"], False)
    order = pc.array_sort_indices(pc.cast(is_right, pa.int8()))[:MAX_RESPONSES]
    body = "".join(
        f'<tr><td class="text">{cut(row["prompt_text"], MAX_PROMPT_CHARS)}</td>'
        f'<td class="text">{cut(row["response_text"], MAX_RESPONSE_CHARS)}</td>'
        f'<td class="text">{cut(row["answer"], MAX_PROMPT_CHARS)}</td>'
        f"<td>{VERDICTS[row['correct']]}</td></tr>"
        for row in judged.take(order).to_pylist()
    )
    return f"<h3>Responses</h3><table>{HEADINGS}<tbody>{body}</tbody></table>"
