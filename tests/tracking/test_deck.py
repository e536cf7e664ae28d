import re

import numpy as np
import pyarrow as pa

from tasks.tracking.deck import CURVES, MAX_BYTES, sample_rows, step_report

HISTORY = [(1, 0.25), (2, 0.5)]


def annotated(
    num_rows: int = 4,
    *,
    text: str = "1+2=",
    rewards: list[float | None] | None = None,
    reason: str = "stop",
) -> pa.Table:
    rewards = [float(row % 2) for row in range(num_rows)] if rewards is None else rewards
    return pa.table(
        {
            "prompt_text": [text] * num_rows,
            "response_text": [text] * num_rows,
            "reward": pa.array(rewards, pa.float32()),
            "advantage": pa.array(np.arange(num_rows) - 1.0, pa.float32()),
            "finish_reason": [reason] * num_rows,
            "response_tokens": pa.array([[1, 2, 3]] * num_rows, pa.list_(pa.int32())),
            "unread": [0] * num_rows,
        }
    )


def report(table: pa.Table) -> str:
    return step_report(table, step=2, histories=dict.fromkeys(CURVES, HISTORY))


def fact(html: str, name: str) -> str:
    return re.search(f"<dt>{name}</dt><dd>([^<]*)</dd>", html)[1]


def test_markup_in_texts_is_shown_and_not_run() -> None:
    html = report(annotated(text="<script>alert(1)</script>", reason="<img src=x onerror=y>"))
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_nothing_is_fetched_from_elsewhere() -> None:
    assert not re.search(r"https?:|src=|href=|url\(|@import", report(annotated()))


def test_the_largest_report_stays_under_the_cap() -> None:
    hostile = annotated(2000, text="'" * 100_000, reason="'" * 10_000)
    history = [(step, step * 0.123456789) for step in range(100_000)]
    html = step_report(hostile, step=10**6, histories=dict.fromkeys(CURVES, history))
    assert len(html.encode()) < MAX_BYTES


def test_long_texts_say_how_much_is_missing() -> None:
    html = report(annotated(1, text="x" * 2000))
    assert "[... 1,400 more characters]" in html
    assert "[... 800 more characters]" in html


def test_facts_count_what_could_not_be_scored_and_leave_it_out_of_the_mean() -> None:
    html = report(annotated(rewards=[1.0, None, 0.5, 0.0]))
    assert fact(html, "samples") == "4"
    assert fact(html, "unscored") == "1"
    assert fact(html, "mean reward") == "0.500"
    assert fact(html, "mean response length") == "3.0 tokens"
    assert "unscored</td>" in html


def test_facts_count_responses_cut_by_the_length_limit() -> None:
    assert fact(report(annotated(reason="length")), "cut by the length limit") == "4"
    assert fact(report(annotated()), "cut by the length limit") == "0"


def test_at_most_eight_samples_are_shown_from_best_to_worst() -> None:
    html = report(annotated(50))
    advantages = re.findall(r'<td class="number (?:up|down|)">([^<]*)</td>', html)
    assert advantages == [
        "+48.000",
        "+41.000",
        "+34.000",
        "+27.000",
        "+20.000",
        "+13.000",
        "+6.000",
        "-1.000",
    ]


def test_a_metric_that_was_never_logged_has_no_chart() -> None:
    histories = {"train/teacher/kl": HISTORY, "val/accuracy": []}
    html = step_report(annotated(), step=2, histories=histories)
    assert "Divergence from the teacher so far" in html
    assert "Held-out" not in html
    assert "Reward so far" not in html


def test_fewer_rows_than_samples_are_all_shown() -> None:
    assert sorted(sample_rows(np.array([0.0, 2.0, 1.0]))) == [0, 1, 2]


def test_an_empty_step_still_has_a_report() -> None:
    html = step_report(annotated(0), step=1, histories={})
    assert fact(html, "mean reward") == "none"
    assert "Held-out" not in html


def test_a_step_with_no_scored_row_still_has_a_report() -> None:
    assert fact(report(annotated(rewards=[None] * 4)), "unscored") == "4"
