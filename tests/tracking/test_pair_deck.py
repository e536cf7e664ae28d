import pyarrow as pa

from configs.dpo import Denoiser
from tasks.data.points import point_pairs
from tasks.data.schemas import PREFERENCES
from tasks.tracking.deck import MAX_BYTES
from tasks.tracking.pair_deck import MAX_PAIRS, pair_report


def pairs(num_pairs: int, text: str = "a & b") -> pa.Table:
    columns = {
        "pair_id": list(range(num_pairs)),
        "source": ["s"] * num_pairs,
        "prompt_text": [f"<{text}>"] * num_pairs,
        "chosen_text": ["good"] * num_pairs,
        "rejected_text": ["bad"] * num_pairs,
        "prompt_tokens": [[1]] * num_pairs,
        "chosen_tokens": [[2, 3]] * num_pairs,
        "rejected_tokens": [[4]] * num_pairs,
    }
    return pa.table(columns, schema=PREFERENCES)


def test_a_report_has_the_curves_that_there_are_and_pairs_to_read() -> None:
    histories = {"train/loss": [(0, 0.69), (1, 0.6)], "val/accuracy": []}
    html = pair_report(pairs(20), step=3, histories=histories)
    assert "Step 3" in html
    assert "Loss so far" in html
    assert "Held-out accuracy" not in html
    assert html.count("&lt;a &amp; b&gt;") == MAX_PAIRS


def test_texts_without_end_do_not_make_a_report_without_end() -> None:
    html = pair_report(pairs(10, "<" * 10**5), step=0, histories={})
    assert len(html) < MAX_BYTES


def test_points_are_drawn_as_where_they_lie() -> None:
    table, _ = point_pairs(Denoiser(num_pairs=30, num_held_out=1), seed=0)
    html = pair_report(table, step=0, histories={})
    assert "Points, chosen" in html
    assert "<table>" not in html
