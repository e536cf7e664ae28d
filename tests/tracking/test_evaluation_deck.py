import pyarrow as pa

from tasks.evaluation.judging import judge
from tasks.tracking.evaluation_deck import MAX_RESPONSES, evaluation_report
from tests.data.tables import scored


def report(table: pa.Table, origin: str = "initial") -> str:
    return evaluation_report(table, origin=origin, metrics={"val/accuracy": 0.25})


def judged(rewards: list[float | None]) -> pa.Table:
    status = ["error" if value is None else "ok" for value in rewards]
    texts = [f"text {row}" for row in range(len(rewards))]
    table = scored(len(rewards), reward=rewards, reward_status=status, response_text=texts)
    return judge(table, "")


def test_it_shows_every_metric_and_every_verdict() -> None:
    html = report(judged([1.0, 0.0, None]))
    assert "<td>val/accuracy</td>" in html
    assert ">0.25</td>" in html
    assert [word in html for word in (">right<", ">wrong<", ">unscored<")] == [True] * 3


def test_responses_that_are_not_right_are_read_first() -> None:
    html = report(judged([1.0] * MAX_RESPONSES + [0.0]))
    assert f"text {MAX_RESPONSES}<" in html
    assert html.index(f"text {MAX_RESPONSES}<") < html.index("text 0<")
    assert html.count(">right<") == MAX_RESPONSES - 1


def test_markup_is_shown_and_not_run() -> None:
    assert "<script>" not in report(judged([1.0]), origin="<script>")
