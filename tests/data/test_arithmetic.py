import pytest

from configs.data import Data
from tasks.data.arithmetic import VOCABULARY, arithmetic_problems
from tasks.data.problems import Problem
from tasks.data.sources import load_problems


def texts(problems: list[Problem]) -> list[str]:
    return [problem.text for problem in problems]


def test_every_addition_is_trained_on_or_held_out_exactly_once() -> None:
    train, held_out = load_problems(Data(digits=1, num_held_out=10))
    every = {f"{left}+{right}=" for left in range(10) for right in range(10)}
    assert len(texts(train)) == 90
    assert len(texts(held_out)) == 10
    assert set(texts(train)) | set(texts(held_out)) == every


def test_operands_and_answers_are_zero_padded_and_right() -> None:
    train, held_out = arithmetic_problems(digits=2, seed=3, num_held_out=500)
    rows = {problem.text: problem for problem in (*train, *held_out)}
    assert rows["07+45="].answer == "052"
    assert rows["99+99="].answer == "198"
    assert rows["00+00="].answer == "000"
    assert rows["07+45="].problem_id == "arithmetic/07+45"
    assert rows["07+45="].source == "arithmetic"


def test_the_split_depends_on_the_seed_alone() -> None:
    one, same, other = (
        set(texts(arithmetic_problems(digits=2, seed=seed, num_held_out=50).held_out))
        for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize("num_held_out", [0, 100])
def test_a_split_that_leaves_nothing_is_refused(num_held_out: int) -> None:
    with pytest.raises(ValueError, match=rf"num_held_out={num_held_out}: expected 1 to 99"):
        arithmetic_problems(digits=1, seed=0, num_held_out=num_held_out)


def test_the_vocabulary_spells_every_prompt_and_answer() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 20
    assert VOCABULARY[:3] == ["<pad>", "<eos>", "<unk>"]
    problem = arithmetic_problems(digits=2, seed=0, num_held_out=500).train[0]
    assert set(problem.text + problem.answer) <= set(VOCABULARY)
