import numpy as np
import pytest

from tasks.trainer.rows import plan_chunks
from tasks.trainer.shares import Share, plan_share, split_rows_over

WIDTHS = np.random.default_rng(0).integers(1, 40, (23, 2))


def shares(rows: np.ndarray, num_ranks: int, *, max_tokens: int = 60) -> list[Share]:
    return [
        plan_share(
            WIDTHS,
            rows,
            rank=rank,
            num_ranks=num_ranks,
            plan=lambda part: plan_chunks(WIDTHS, part, max_tokens=max_tokens),
        )
        for rank in range(num_ranks)
    ]


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 30])
@pytest.mark.parametrize("num_rows", [1, 3, 23])
def test_every_row_counts_once_and_all_ranks_have_equally_many_chunks(
    num_rows: int, num_ranks: int
) -> None:
    rows = np.arange(23)[-num_rows:]
    planned = shares(rows, num_ranks)
    counted = [row for share in planned for chunk in share.own for row in chunk.tolist()]
    assert sorted(counted) == rows.tolist()
    assert len({len(share.own) + len(share.idle) for share in planned}) == 1
    assert len(planned[0].own) > 0


def test_a_repeated_row_is_the_shortest_of_the_rank_or_of_all_if_it_has_none() -> None:
    rows = np.arange(3)
    shortest = rows[WIDTHS[rows].sum(1).argmin()]
    for share in shares(rows, 5):
        assert all(chunk.tolist() == [shortest] for chunk in share.idle if not share.own)
        own = {row for chunk in share.own for row in chunk.tolist()}
        assert all(set(chunk.tolist()) <= own for chunk in share.idle if share.own)
    assert sum(len(share.idle) for share in shares(rows, 5)) == 2


def test_one_rank_is_never_idle_and_keeps_the_plan_of_its_rows() -> None:
    rows = np.arange(23)
    (share,) = shares(rows, 1)
    expected = plan_chunks(WIDTHS, rows, max_tokens=60)
    assert [c.tolist() for c in share.own] == [c.tolist() for c in expected]
    assert share.idle == []


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_tokens_are_balanced_to_within_one_row(num_ranks: int) -> None:
    parts = split_rows_over(WIDTHS, np.arange(23), num_ranks)
    loads = [WIDTHS[part].sum() for part in parts]
    assert max(loads) - min(loads) <= WIDTHS.sum(1).max()


def test_the_split_does_not_depend_on_the_order_of_the_rows() -> None:
    rows = np.arange(23)
    shuffled = np.random.default_rng(1).permutation(rows)
    first, second = (split_rows_over(WIDTHS, order, 3) for order in (rows, shuffled))
    assert [part.tolist() for part in first] == [part.tolist() for part in second]


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_rows_of_a_prompt_stay_together_and_ranks_are_balanced(num_ranks: int) -> None:
    prompts = [row // 4 for row in range(24)]
    widths = np.random.default_rng(0).integers(8, 40, (24, 2))
    widths[:, 0] = 30
    parts = split_rows_over(widths, np.arange(24), num_ranks, prompts)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(24))
    owners = [{rank for rank, part in enumerate(parts) if row in part} for row in range(24)]
    assert all(owners[row] == owners[row // 4 * 4] for row in range(24))
    tokens = [30 * len(part) // 4 + widths[part, 1].sum() for part in parts]
    largest = max(30 + widths[4 * group : 4 * group + 4, 1].sum() for group in range(6))
    assert max(tokens) - min(tokens) <= largest


def test_a_prompt_with_more_than_an_even_share_of_rows_is_taken_apart() -> None:
    widths = np.array([[5, 10]] * 8)
    parts = split_rows_over(widths, np.arange(8), 2, [0] * 8)
    assert [len(part) for part in parts] == [4, 4]


def test_groups_do_not_depend_on_the_order_of_the_rows() -> None:
    rows, prompts = np.arange(23), [row % 7 for row in range(23)]
    shuffled = np.random.default_rng(1).permutation(rows)
    first, second = (split_rows_over(WIDTHS, order, 3, prompts) for order in (rows, shuffled))
    assert [part.tolist() for part in first] == [part.tolist() for part in second]
