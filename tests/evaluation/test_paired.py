from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.paired import MAX_FLIPS, mcnemar, sign_flip


@pytest.mark.parametrize(
    ("first_only", "second_only", "p_value"),
    # 2 * (1 + 20 + 190 + 1140 + 4845 + 15504) / 2**20; 2 * 1 / 2**6; a tie; nothing differs.
    [(5, 15, 43400 / 2**20), (15, 5, 43400 / 2**20), (0, 6, 1 / 32), (3, 3, 1.0), (0, 0, 1.0)],
)
def test_mcnemar_is_the_exact_binomial_test(
    first_only: int, second_only: int, p_value: float
) -> None:
    assert mcnemar(first_only, second_only) == p_value


def test_mcnemar_of_thousands_of_prompts_neither_overflows_nor_lingers() -> None:
    assert 0 < mcnemar(4000, 4400) < 1e-4


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_few_differences_are_flipped_in_every_way(values: list[int]) -> None:
    # Quarters are exact, so that ties are ties in this count of all sign patterns as well.
    differences = np.array(values) / 4
    ways = [abs(differences @ signs) for signs in product((-1, 1), repeat=len(values))]
    expected = np.mean([way >= abs(differences.sum()) for way in ways])
    assert sign_flip(differences) == pytest.approx(expected)


def test_ties_that_only_rounding_tells_apart_are_ties() -> None:
    # 0.1 + 0.2 is not 0.3 in binary; all 4 ways to reach 0 in sum count, and so do all others.
    assert sign_flip(np.array([0.1, 0.2, -0.3])) == 1.0


def test_many_differences_are_flipped_at_random_and_reproducibly() -> None:
    differences = np.array([1.0] * 15 + [-1.0] * 5)
    p_value = sign_flip(differences)
    assert p_value == sign_flip(differences)
    assert p_value == pytest.approx(mcnemar(5, 15), abs=0.008)


def test_no_p_value_is_0() -> None:
    assert sign_flip(np.ones(100)) == 1 / (MAX_FLIPS + 1)


def test_equal_policies_are_rarely_told_apart() -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    values = [sign_flip(generator.normal(size=9)) for _ in range(400)]
    assert 0.02 < np.mean(np.array(values) < 0.05) < 0.08


def test_a_prompt_without_a_difference_changes_nothing() -> None:
    differences = np.array([0.5, 0.25, 1.0, -0.25])
    padded = np.concatenate([differences, np.zeros(50)])
    assert sign_flip(padded) == sign_flip(differences)
