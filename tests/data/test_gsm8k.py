"""GSM8K as it ships: whole, its answers readable, and as many rows as the config asks for."""

import pytest

from configs.data import Data
from configs.dpo import Preferences
from tasks.data.gsm8k import gsm8k_problems
from tasks.data.pairs import load_pairs
from tasks.data.sources import load_problems
from tasks.rewards.gsm8k import gsm8k


def test_every_solution_is_right_by_its_own_answer_and_its_altered_pair_is_wrong() -> None:
    pairs = load_pairs(Preferences(source="gsm8k", num_held_out=1319))
    answers = [p.answer for part in gsm8k_problems(num_held_out=1319) for p in part]
    both = [*pairs.train, *pairs.held_out]
    assert len(both) == 2819
    for pair, answer in zip(both, answers, strict=True):
        assert gsm8k(pair.chosen, answer, "").value == 1
        assert gsm8k(pair.rejected, answer, "").value == 0
        assert "<<" not in pair.chosen


def test_no_problem_is_both_trained_on_and_held_out() -> None:
    train, held_out = gsm8k_problems(num_held_out=1319)
    assert not {p.text for p in train} & {p.text for p in held_out}
    assert {p.source for p in (*train, *held_out)} == {"gsm8k"}
    assert len({p.problem_id for p in (*train, *held_out)}) == 2819


@pytest.mark.parametrize("source", ["gsm8k", "arithmetic"])
def test_the_first_problems_are_kept_and_the_held_out_ones_do_not_change(source: str) -> None:
    everything = load_problems(Data(source=source, num_held_out=7))
    few = load_problems(Data(source=source, num_held_out=7, num_train=5))
    assert few.train == everything.train[:5]
    assert few.held_out == everything.held_out
    assert len(few.held_out) == 7


def test_pairs_are_limited_in_the_same_way() -> None:
    few = load_pairs(Preferences(source="gsm8k", num_train=5, num_held_out=7))
    assert [len(part) for part in few] == [5, 7]
    assert few.train == load_pairs(Preferences(source="gsm8k")).train[:5]
