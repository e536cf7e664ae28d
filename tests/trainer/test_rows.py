import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.trainer.rows import collate, plan_chunks, read_rows, split_rows
from tests.data.tables import annotated
from tests.trainer.builders import CPU

TABLE = annotated(
    3,
    prompt_tokens=[[4, 5], [6], [7, 8, 9]],
    response_tokens=[[1, 2, 3], [4], [5, 6]],
    engine_logprobs=[[-0.25, None, -1.0], [-2.0], [None, -0.5]],
    loss_mask=[[True, False, True], [True], [False, False]],
    advantage=[1.5, -0.5, 0.25],
)
WIDTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=20)


def test_rows_are_the_columns_of_the_table_in_its_order() -> None:
    rows = read_rows(TABLE)
    assert rows.ids.tolist() == [100, 101, 102]
    assert [list(prompt) for prompt in rows.prompts] == [[4, 5], [6], [7, 8, 9]]
    assert [list(response) for response in rows.responses] == [[1, 2, 3], [4], [5, 6]]
    assert rows.advantages.tolist() == [1.5, -0.5, 0.25]
    assert rows.widths.tolist() == [[2, 3], [1, 1], [3, 2]]
    assert rows.num_training_tokens().tolist() == [2, 1, 0]


def test_a_slice_and_several_arrow_chunks_read_as_one_table() -> None:
    pieces = pa.concat_tables([TABLE.slice(2), TABLE.slice(1, 1), TABLE.slice(0, 1)])
    rows = read_rows(pieces)
    assert rows.ids.tolist() == [102, 101, 100]
    assert [list(response) for response in rows.responses] == [[5, 6], [4], [1, 2, 3]]
    assert [list(mask) for mask in rows.masks] == [[False, False], [True], [True, False, True]]


def test_an_empty_table_has_no_rows() -> None:
    rows = read_rows(TABLE.slice(0, 0))
    assert len(rows) == 0
    assert rows.widths.shape == (0, 2)


def test_a_chunk_has_left_padded_prompts_and_its_responses_in_the_last_columns() -> None:
    batch = collate(read_rows(TABLE), np.array([2, 0, 1]), CPU)
    assert batch.attention_mask.tolist() == [
        [1, 1, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 0, 0],
    ]
    kept = batch.input_ids * batch.attention_mask
    assert kept.tolist() == [[7, 8, 9, 5, 6, 0], [0, 4, 5, 1, 2, 3], [0, 0, 6, 4, 0, 0]]
    assert torch.equal(batch.response_tokens, batch.input_ids[:, -3:])
    assert batch.response_mask.tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]


def test_a_chunk_holds_the_masks_advantages_and_ids_of_its_own_rows() -> None:
    batch = collate(read_rows(TABLE), np.array([2, 0, 1]), CPU)
    assert batch.row_ids.tolist() == [102, 100, 101]
    assert batch.advantages.tolist() == [0.25, 1.5, -0.5]
    assert batch.loss_mask.tolist() == [
        [False, False, False],
        [True, False, True],
        [True, False, False],
    ]
    assert batch.token_counts.tolist() == [0, 2, 1]


def test_log_probabilities_that_the_engine_did_not_report_are_nan() -> None:
    engine = collate(read_rows(TABLE), np.array([0, 2]), CPU).engine_logprobs
    assert engine is not None
    expected = torch.tensor([[-0.25, torch.nan, -1.0], [torch.nan, -0.5, torch.nan]])
    torch.testing.assert_close(engine, expected, rtol=0, atol=0, equal_nan=True)


def test_mini_batches_are_consecutive_and_equal() -> None:
    assert [part.tolist() for part in split_rows(6, 3)] == [[0, 1], [2, 3], [4, 5]]


def test_rows_that_do_not_divide_into_mini_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"7 rows do not divide into rl\.mini_batches=3"):
        split_rows(7, 3)


@given(widths=WIDTHS, max_tokens=st.integers(1, 80))
def test_every_row_is_in_exactly_one_chunk(widths: list, max_tokens: int) -> None:
    rows = np.arange(len(widths))[::2]
    plan = plan_chunks(np.array(widths), rows, max_tokens=max_tokens)
    assert sorted(itertools.chain(*[chunk.tolist() for chunk in plan])) == rows.tolist()


@given(widths=WIDTHS, max_tokens=st.integers(1, 80))
def test_a_chunk_of_several_rows_stays_within_the_bound(widths: list, max_tokens: int) -> None:
    array = np.array(widths)
    for chunk in plan_chunks(array, np.arange(len(widths)), max_tokens=max_tokens):
        tokens = len(chunk) * (array[chunk, 0].max() + array[chunk, 1].max())
        assert tokens <= max_tokens or len(chunk) == 1


@given(widths=WIDTHS, max_tokens=st.integers(1, 80), seed=st.integers(0, 9))
def test_the_plan_does_not_depend_on_the_order_of_its_rows(
    widths: list, max_tokens: int, seed: int
) -> None:
    array, rows = np.array(widths), np.arange(len(widths))
    shuffled = np.random.default_rng(seed).permutation(rows)
    first = plan_chunks(array, rows, max_tokens=max_tokens)
    second = plan_chunks(array, shuffled, max_tokens=max_tokens)
    assert [chunk.tolist() for chunk in first] == [chunk.tolist() for chunk in second]


def test_rows_are_planned_longest_first_and_a_new_chunk_starts_at_the_bound() -> None:
    widths = np.array([[1, 1], [2, 4], [2, 2], [3, 3], [1, 1]])
    plan = plan_chunks(widths, np.arange(5), max_tokens=14)
    assert [chunk.tolist() for chunk in plan] == [[1, 3], [2, 0, 4]]
    assert [chunk.tolist() for chunk in plan_chunks(widths, np.arange(5), max_tokens=13)] == [
        [1],
        [3, 2],
        [0, 4],
    ]
