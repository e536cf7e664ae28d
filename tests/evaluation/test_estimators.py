import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.estimators import interval, normal_interval, pass_at_k, wilson_interval


def test_the_interval_is_wilsons() -> None:
    # 5 of 10 at z = 2: centre (0.5 + 4 / 20) / 1.4 = 0.5, half 2 * sqrt(0.025 + 0.01) / 1.4.
    low, high = wilson_interval(5, 10, z=2.0)
    assert (low, high) == pytest.approx((0.5 - 0.267261, 0.5 + 0.267261), abs=1e-6)


@pytest.mark.parametrize(("right", "bound"), [(0, (0.0, 0.277533)), (10, (0.722467, 1.0))])
def test_the_interval_of_none_and_of_all_ends_at_the_border(
    right: int, bound: tuple[float, float]
) -> None:
    assert wilson_interval(right, 10) == pytest.approx(bound, abs=1e-5)


@given(trials=st.integers(1, 2000), share=st.floats(0, 1))
def test_the_interval_holds_the_share_and_narrows_with_more_trials(
    trials: int, share: float
) -> None:
    right = round(share * trials)
    low, high = wilson_interval(right, trials)
    assert 0 <= low <= right / trials + 1e-12
    assert right / trials - 1e-12 <= high <= 1
    wide = high - low
    low, high = wilson_interval(4 * right, 4 * trials)
    assert high - low < wide


@given(samples=st.lists(st.booleans(), min_size=1, max_size=9), data=st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(
    samples: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(samples)))
    subsets = [any(chosen) for chosen in combinations(samples, k)]
    (got,) = pass_at_k(np.array([sum(samples)]), np.array([len(samples)]), k)
    assert got == pytest.approx(sum(subsets) / len(subsets), abs=1e-12)


def test_pass_at_k_does_not_overflow_where_binomial_coefficients_do() -> None:
    # One right of n: a subset of k holds it with probability k / n.
    (got,) = pass_at_k(np.array([1]), np.array([5000]), 2500)
    assert got == pytest.approx(0.5, abs=1e-9)


def test_pass_at_k_needs_k_samples_of_a_prompt() -> None:
    got = pass_at_k(np.array([1, 1, 0]), np.array([3, 4, 0]), 4)
    assert math.isnan(got[0])
    assert got[1] == 1
    assert math.isnan(got[2])


@pytest.mark.parametrize(("right", "judged", "k"), [(1, 2, 0), (3, 2, 1), (-1, 2, 1)])
def test_impossible_counts_are_refused(right: int, judged: int, k: int) -> None:
    with pytest.raises(ValueError, match="no more right samples than samples"):
        pass_at_k(np.array([right]), np.array([judged]), k)


def test_the_interval_of_prompts_that_are_right_or_wrong_is_wilsons() -> None:
    assert interval(np.array([1.0] * 8 + [0.0] * 2)) == wilson_interval(8, 10)
    assert wilson_interval(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)


def test_the_interval_of_shares_is_normal_over_prompts() -> None:
    # Values 0.2 and 0.4, two of each: mean 0.3, sd sqrt(4 * 0.01 / 3) = 0.11547, over sqrt(4).
    half = 1.959964 * 0.1154700538 / 2
    values = np.array([0.2, 0.4, 0.2, 0.4])
    assert interval(values) == pytest.approx((0.3 - half, 0.3 + half), abs=1e-8)
    assert normal_interval(values) == interval(values)


def test_the_interval_of_shares_stays_between_0_and_1() -> None:
    assert interval(np.array([0.0, 0.0, 0.5]))[0] == 0
    assert interval(np.array([1.0, 1.0, 0.5]))[1] == 1


def test_no_prompt_has_no_interval_and_one_difference_neither() -> None:
    assert all(map(math.isnan, interval(np.array([]))))
    assert all(map(math.isnan, normal_interval(np.array([0.5]))))


@pytest.mark.parametrize("num_samples", [1, 4])
def test_intervals_hold_the_truth_about_as_often_as_they_say(num_samples: int) -> None:
    # Prompts of different difficulty, so that samples of one prompt are not independent.
    generator = np.random.Generator(np.random.PCG64(0))
    held = 0
    for _ in range(1000):
        chances = generator.beta(1.0, 1.5, size=200)
        right = generator.binomial(num_samples, chances)
        low, high = interval(right / num_samples)
        held += low <= 0.4 <= high
    assert 0.93 < held / 1000 < 0.97
