from pathlib import Path

import pytest

from tests.bench.records import COMPLETE, END, START, check, compared, publish, table


def test_a_ratio_above_one_means_that_ours_is_better() -> None:
    assert compared("w", "rest", 2.0, 6.0)["ratio"] == 3.0
    assert compared("w", "samples/s", 6.0, 2.0, larger=True)["ratio"] == 3.0


def test_a_side_that_was_not_measured_has_no_ratio_and_says_so() -> None:
    row = compared("w", "rest", 2.0, None)
    assert row["ratio"] is None
    assert table([row]).splitlines()[-1] == "| w: rest | 2 | not measured | not measured |"


def test_a_check_is_a_row_with_one_figure() -> None:
    assert table([check("a share", 0.0123)]).splitlines()[-1] == "| a share | 0.0123 |  |  |"


def test_publishing_replaces_what_lies_between_the_markers_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n\n{START}\nold\n{END}\n\nbelow\n")
    records = [check(COMPLETE, True), check("new", 1.0)]
    for _ in range(2):
        publish(records, page)
        assert page.read_text() == f"above\n\n{START}\n{table(records)}\n{END}\n\nbelow\n"


@pytest.mark.parametrize("records", [[check(COMPLETE, False)], []])
def test_a_run_that_left_something_out_is_not_published(tmp_path: Path, records: list) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{START}\n{END}\n")
    with pytest.raises(ValueError, match="make bench"):
        publish(records, page)


@pytest.mark.parametrize("text", ["no lines\n", f"{START}\n", f"{END}\n{START}\n"])
def test_a_page_without_both_markers_in_order_is_left_alone(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="put them back"):
        publish([check(COMPLETE, True)], page)
    assert page.read_text() == text
