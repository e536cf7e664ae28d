import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.annotators.masks import shared_prefix, truncated, unscored, zero_variance
from tasks.data.schemas import TOKENS


def column(rows: list[list[int]], cut: int = 0) -> pa.ChunkedArray:
    array = pa.array(rows, TOKENS)
    return pa.chunked_array([array.slice(0, cut), array.slice(cut)], TOKENS)


def test_the_longest_prefix_common_to_the_whole_group_is_found() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 9], [1, 2, 3], [5, 6], [5, 6]]
    got = shared_prefix(column(rows), np.array([7, 7, 7, 8, 8]), min_tokens=2)
    assert got.tolist() == [2, 2, 2, 2, 2]


def test_a_prefix_shorter_than_the_minimum_is_kept() -> None:
    rows = [[1, 2, 3], [1, 2, 9]]
    assert shared_prefix(column(rows), np.zeros(2), min_tokens=3).tolist() == [0, 0]


def test_a_response_alone_in_its_group_shares_nothing() -> None:
    assert shared_prefix(column([[1, 2], [1, 2]]), np.array([0, 1]), min_tokens=1).tolist() == [
        0,
        0,
    ]


def test_equal_responses_of_different_groups_do_not_share() -> None:
    rows = [[1, 2], [3, 2], [1, 2], [1, 4]]
    assert shared_prefix(column(rows), np.array([0, 0, 1, 1]), min_tokens=1).tolist() == [
        0,
        0,
        1,
        1,
    ]


def test_a_minimum_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="min_shared_prefix_tokens=0"):
        shared_prefix(column([[1]]), np.zeros(1), min_tokens=0)


token = st.integers(0, 1)
table = st.lists(st.tuples(st.lists(token, max_size=6), st.integers(0, 3)), max_size=20)


@given(table, st.integers(1, 3), st.integers(0, 20))
def test_prefixes_agree_with_comparing_the_lists_one_by_one(
    rows: list[tuple[list[int], int]], min_tokens: int, cut: int
) -> None:
    responses = [tokens for tokens, _ in rows]
    groups = [group for _, group in rows]
    expected = []
    for group in groups:
        members = [r for r, g in zip(responses, groups, strict=True) if g == group]
        length = 0
        while len({tuple(m[: length + 1]) for m in members}) == 1 and length < len(members[0]):
            length += 1
        expected.append(length if len(members) > 1 and length >= min_tokens else 0)
    group_ids = np.array(groups, dtype=np.int64)
    got = shared_prefix(column(responses, cut), group_ids, min_tokens=min_tokens)
    assert got.tolist() == expected


def test_only_responses_that_met_the_limit_are_truncated() -> None:
    reasons = pa.chunked_array([["stop", "length"], ["abort"]])
    assert truncated(reasons).tolist() == [False, True, False]


def test_only_rewards_that_are_missing_are_unscored() -> None:
    assert unscored(np.array([0.0, np.nan, -1.0])).tolist() == [False, True, False]


def test_groups_whose_scored_rewards_are_equal_have_no_variance() -> None:
    rewards = np.array([1.0, 1.0, np.nan, 0.0, 1.0, 0.5])
    got = zero_variance(rewards, np.array([0, 0, 0, 1, 1, 2]))
    assert got.tolist() == [True, True, True, False, False, True]
