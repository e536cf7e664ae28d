from collections.abc import Callable

import pytest

from configs.data import Data
from tasks.data.arithmetic import VOCABULARY, Arithmetic
from tasks.data.prompt_source import Prompt
from tasks.data.sources import open_source


def texts(source: Arithmetic, count: int, row: Callable[[Arithmetic, int], Prompt]) -> list[str]:
    return [row(source, index).text for index in range(count)]


def training(source: Arithmetic) -> list[str]:
    return texts(source, source.num_prompts, Arithmetic.row)


def held_out(source: Arithmetic) -> list[str]:
    return texts(source, source.num_held_out, Arithmetic.held_out_row)


def test_every_addition_is_trained_on_or_held_out_exactly_once() -> None:
    source = open_source(Data(digits=1, num_held_out=10))
    every = {f"{left}+{right}=" for left in range(10) for right in range(10)}
    assert len(training(source)) == 90
    assert len(held_out(source)) == 10
    assert set(training(source)) | set(held_out(source)) == every


def test_operands_and_answers_are_zero_padded_and_right() -> None:
    source = Arithmetic(digits=2, seed=3, num_held_out=500)
    rows = {source.row(index).text: source.row(index) for index in range(source.num_prompts)}
    rows |= {source.held_out_row(i).text: source.held_out_row(i) for i in range(500)}
    assert rows["07+45="].answer == "052"
    assert rows["99+99="].answer == "198"
    assert rows["00+00="].answer == "000"
    assert rows["07+45="].prompt_id == "arithmetic/07+45"
    assert rows["07+45="].source == "arithmetic"


def test_the_split_depends_on_the_seed_alone() -> None:
    one, same, other = (Arithmetic(digits=2, seed=s, num_held_out=50) for s in (0, 0, 1))
    assert held_out(one) == held_out(same)
    assert set(held_out(one)) != set(held_out(other))


def test_the_fingerprint_tells_seed_size_and_split_apart() -> None:
    settings = [(2, 0, 500), (2, 1, 500), (1, 0, 50), (2, 0, 501)]
    prints = {Arithmetic(digits=d, seed=s, num_held_out=h).fingerprint() for d, s, h in settings}
    assert len(prints) == len(settings)
    again = Arithmetic(digits=2, seed=0, num_held_out=500)
    assert again.fingerprint() in prints


@pytest.mark.parametrize("index", [-1, 90])
def test_a_training_row_out_of_range_never_reaches_a_held_out_one(index: int) -> None:
    with pytest.raises(IndexError, match="90 training problems"):
        Arithmetic(digits=1, seed=0, num_held_out=10).row(index)


@pytest.mark.parametrize("index", [-1, 10])
def test_a_held_out_row_out_of_range_never_reaches_a_training_one(index: int) -> None:
    with pytest.raises(IndexError, match="10 held-out problems"):
        Arithmetic(digits=1, seed=0, num_held_out=10).held_out_row(index)


@pytest.mark.parametrize(
    ("digits", "num_held_out", "named"),
    [
        (0, 1, r"data\.digits=0"),
        (4, 1, r"data\.digits=4"),
        (1, 100, r"data\.num_held_out=100: expected 1 to 99"),
        (1, 0, r"data\.num_held_out=0"),
    ],
)
def test_numbers_that_leave_nothing_are_refused(digits: int, num_held_out: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Arithmetic(digits=digits, seed=0, num_held_out=num_held_out)


def test_the_vocabulary_spells_every_prompt_and_answer() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 20
    assert VOCABULARY[:3] == ["<pad>", "<eos>", "<unk>"]
    row = Arithmetic(digits=2, seed=0, num_held_out=500).row(0)
    assert set(row.text + row.answer) <= set(VOCABULARY)
