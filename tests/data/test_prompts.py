from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.arithmetic import Arithmetic
from tasks.data.prompts import Encode, held_out_table, prompts_table, select
from tasks.data.schemas import PROMPTS

SOURCE = Arithmetic(digits=1, seed=0, num_held_out=10)  # 90 training rows


def encode(texts: list[str]) -> list[list[int]]:
    return [[ord(character) for character in text] for text in texts]


def stream(num_steps: int, num_prompts: int, data_seed: int = 0) -> list[tuple[int, int]]:
    steps = range(num_steps)
    return [
        pick
        for step in steps
        for pick in select(SOURCE, step, num_prompts=num_prompts, data_seed=data_seed)
    ]


@given(num_prompts=st.integers(1, 90), data_seed=st.integers(0, 2**32))
def test_every_prompt_is_used_once_per_epoch_even_when_steps_straddle_epochs(
    num_prompts: int, data_seed: int
) -> None:
    picks = stream(-(-180 // num_prompts), num_prompts, data_seed)
    for epoch in range(2):
        rows = [row for _, row in picks[90 * epoch : 90 * (epoch + 1)]]
        assert sorted(rows) == list(range(90))


@given(num_prompts=st.integers(1, 90), step=st.integers(0, 50))
def test_a_step_has_its_number_of_distinct_groups_which_name_row_and_epoch(
    num_prompts: int, step: int
) -> None:
    picks = select(SOURCE, step, num_prompts=num_prompts, data_seed=1)
    assert len(picks) == len({group_id for group_id, _ in picks}) == num_prompts
    assert all(group_id % 90 == row for group_id, row in picks)
    first, last = step * num_prompts // 90, ((step + 1) * num_prompts - 1) // 90
    assert {group_id // 90 for group_id, _ in picks} == {first, last}


def test_group_ids_never_repeat_over_a_run() -> None:
    assert max(Counter(group_id for group_id, _ in stream(30, 40)).values()) == 1


def test_the_order_depends_on_the_data_seed_and_changes_between_epochs() -> None:
    assert stream(2, 90) == stream(2, 90)
    assert stream(1, 90, data_seed=0) != stream(1, 90, data_seed=1)
    rows = [row for _, row in stream(2, 90)]
    assert rows[:90] != rows[90:]


def test_the_order_of_a_seed_is_fixed_for_good() -> None:
    assert [row for _, row in select(SOURCE, 0, num_prompts=5, data_seed=0)] == [27, 20, 13, 81, 5]


def test_a_source_smaller_than_a_step_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"prompts_per_step=91: expected 1 to 90.*lower"):
        select(SOURCE, 0, num_prompts=91, data_seed=0)


@pytest.mark.parametrize(("step", "num_prompts"), [(-1, 1), (0, 0)])
def test_negative_steps_and_empty_steps_are_refused(step: int, num_prompts: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        select(SOURCE, step, num_prompts=num_prompts, data_seed=0)


def test_the_table_follows_the_picks() -> None:
    table = prompts_table(SOURCE, [(93, 3), (1, 1)], encode)
    rows = [SOURCE.row(3), SOURCE.row(1)]
    assert table.schema == PROMPTS
    assert table.column("group_id").to_pylist() == [93, 1]
    assert table.column("prompt_text").to_pylist() == [row.text for row in rows]
    assert table.column("answer").to_pylist() == [row.answer for row in rows]
    assert table.column("prompt_id").to_pylist() == [row.prompt_id for row in rows]
    assert table.column("prompt_tokens").to_pylist() == encode([row.text for row in rows])


def test_a_table_of_no_picks_is_empty_and_still_of_the_schema() -> None:
    assert prompts_table(SOURCE, [], encode).schema == PROMPTS


def test_held_out_rows_come_in_order_and_are_no_training_rows() -> None:
    table = held_out_table(SOURCE, encode)
    few = held_out_table(SOURCE, encode, num_prompts=4)
    trained = {SOURCE.row(index).prompt_id for index in range(90)}
    assert len(table) == 10
    assert few.equals(table.slice(0, 4))
    assert trained.isdisjoint(table.column("prompt_id").to_pylist())


@pytest.mark.parametrize("num_prompts", [0, 11])
def test_more_held_out_prompts_than_there_are_is_refused(num_prompts: int) -> None:
    with pytest.raises(ValueError, match=rf"evaluation\.num_prompts={num_prompts}.*1 to 10"):
        held_out_table(SOURCE, encode, num_prompts=num_prompts)


@pytest.mark.parametrize("broken", [lambda texts: [[]] * len(texts), lambda texts: [[1]]])
def test_a_tokenizer_that_loses_a_prompt_is_refused(broken: Encode) -> None:
    with pytest.raises(ValueError, match="lists for 2 prompts"):
        prompts_table(SOURCE, [(0, 0), (1, 1)], broken)
