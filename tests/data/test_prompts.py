from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.arithmetic import arithmetic_problems
from tasks.data.prompts import build_pool, select, select_refill, take
from tasks.data.schemas import PROMPTS

ROWS = 90
PROBLEMS = arithmetic_problems(digits=1, seed=0, num_held_out=10).train


def encode(texts: list[str]) -> list[list[int]]:
    return [[ord(character) for character in text] for text in texts]


def stream(num_steps: int, num_prompts: int, data_seed: int = 0) -> list[tuple[int, int]]:
    steps = range(num_steps)
    return [
        pick
        for step in steps
        for pick in select(ROWS, step, num_prompts=num_prompts, data_seed=data_seed)
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
    picks = select(ROWS, step, num_prompts=num_prompts, data_seed=1)
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
    assert [row for _, row in select(ROWS, 0, num_prompts=5, data_seed=0)] == [27, 20, 13, 81, 5]


def test_a_source_smaller_than_a_step_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"prompts_per_step=91: expected 1 to 90.*lower"):
        select(ROWS, 0, num_prompts=91, data_seed=0)


@pytest.mark.parametrize(("step", "num_prompts"), [(-1, 1), (0, 0)])
def test_negative_steps_and_empty_steps_are_refused(step: int, num_prompts: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        select(ROWS, step, num_prompts=num_prompts, data_seed=0)


@given(step=st.integers(0, 20), num_prompts=st.integers(1, 20))
def test_refills_repeat_no_prompt_of_their_step_and_no_group_of_the_run(
    step: int, num_prompts: int
) -> None:
    regular = select(ROWS, step, num_prompts=20, data_seed=0)
    refills = [
        pick
        for refill in (1, 2, 3)
        for pick in select_refill(
            ROWS, step, refill=refill, num_prompts=num_prompts, per_step=20, data_seed=0
        )
    ]
    rows = [row for _, row in refills]
    assert len(rows) == len(set(rows)) == 3 * num_prompts
    assert set(rows).isdisjoint(row for _, row in regular)
    everyday = {group_id for group_id, _ in stream(30, 20)}
    assert everyday.isdisjoint(group_id for group_id, _ in refills)
    assert all(group_id % ROWS == row for group_id, row in refills)


def test_a_refill_beyond_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"needs 100 training prompts.*dynamic_sampling_rounds"):
        select_refill(ROWS, 0, refill=4, num_prompts=1, per_step=20, data_seed=0)


def test_the_prompts_of_a_step_are_rows_of_the_pool_under_their_group_ids() -> None:
    pool = build_pool(PROBLEMS, encode, max_prompt_tokens=4).table
    table = take(pool, [(93, 3), (1, 1)])
    chosen = [PROBLEMS[3], PROBLEMS[1]]
    assert table.schema == PROMPTS
    assert table.column("group_id").to_pylist() == [93, 1]
    assert table.column("prompt_text").to_pylist() == [problem.text for problem in chosen]
    assert table.column("answer").to_pylist() == [problem.answer for problem in chosen]
    assert table.column("prompt_id").to_pylist() == [problem.problem_id for problem in chosen]
    assert table.column("prompt_tokens").to_pylist() == encode([p.text for p in chosen])


def test_what_cannot_be_a_prompt_is_left_out_by_name() -> None:
    long = PROBLEMS[0]._replace(text="123456", problem_id="long")
    unsafe = PROBLEMS[0]._replace(text="!", problem_id="unsafe")

    def refuse(texts: list[str]) -> list[list[int] | None]:
        return [
            None if text == "!" else ids for text, ids in zip(texts, encode(texts), strict=True)
        ]

    pool = build_pool([long, *PROBLEMS[:2], unsafe], refuse, max_prompt_tokens=4)
    assert pool.table["prompt_id"].to_pylist() == [p.problem_id for p in PROBLEMS[:2]]
    assert pool.table["group_id"].to_pylist() == [0, 1]
    assert (pool.too_long, pool.unsafe) == (["long"], ["unsafe"])


def test_a_source_without_a_usable_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match=r"none of 90 .* 90 are longer .*max_prompt_tokens=3"):
        build_pool(PROBLEMS, encode, max_prompt_tokens=3)
