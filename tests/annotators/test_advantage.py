import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.annotators.advantage import group_advantages
from tasks.annotators.batch_whitened import batch_whitened_advantages
from tasks.annotators.leave_one_out import leave_one_out_advantages
from tasks.annotators.maxrl import maxrl_advantages
from tasks.annotators.pass_at_k import pass_at_k_advantages

Estimator = Callable[[np.ndarray, np.ndarray], np.ndarray]
Batch = tuple[np.ndarray, np.ndarray]

NAN = float("nan")
ESTIMATORS = {
    "group": group_advantages,
    "unbiased": lambda r, g: group_advantages(r, g, unbiased_advantage=True),
    "leave_one_out": leave_one_out_advantages,
    "batch_whitened": batch_whitened_advantages,
    "maxrl": maxrl_advantages,
    "pass_at_k": lambda r, g: pass_at_k_advantages(r, g, k=1),
}
each_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)

finite = st.floats(-1e6, 1e6, width=32)
binary = st.sampled_from([0.0, 1.0, NAN])


def batches(reward: st.SearchStrategy[float]) -> st.SearchStrategy[Batch]:
    """Rewards of several groups, their rows interleaved in any order."""
    row = st.tuples(reward, st.integers(-3, 3))
    return st.lists(row, min_size=1, max_size=40).map(
        lambda rows: (np.array([r for r, _ in rows]), np.array([g for _, g in rows]))
    )


def oracle(
    rewards: np.ndarray, group_ids: np.ndarray, one_group: Callable[[list[float]], list[float]]
) -> np.ndarray:
    """Apply `one_group`, a function of a list of floats, to the scored rows of every group."""
    result = np.zeros(len(rewards))
    for group in set(group_ids.tolist()):
        rows = [i for i, g in enumerate(group_ids) if g == group and not math.isnan(rewards[i])]
        values = [float(rewards[i]) for i in rows]
        if len(set(values)) > 1:
            result[rows] = one_group(values)
    return result


def test_rewards_are_centred_and_divided_by_the_population_std() -> None:
    # mean 0.25, population variance 0.75 * 0.25 = 0.1875
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / (math.sqrt(0.1875) + 1e-6)
    got = group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4, np.int64))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_unbiased_advantages_are_only_centred() -> None:
    got = group_advantages(np.array([3.0, 1.0, 5.0]), np.ones(3), unbiased_advantage=True)
    np.testing.assert_allclose(got, [0.0, -2.0, 2.0])


def test_eps_is_added_to_the_std_not_to_the_variance() -> None:
    got = group_advantages(np.array([2.0, 0.0]), np.zeros(2), eps=1.0)
    np.testing.assert_allclose(got, [0.5, -0.5])


def test_leave_one_out_subtracts_the_mean_of_the_others() -> None:
    got = leave_one_out_advantages(np.array([4.0, 1.0, 1.0, NAN]), np.zeros(4))
    np.testing.assert_allclose(got, [3.0, -1.5, -1.5, 0.0])


def test_batch_whitening_divides_by_one_std_of_all_groups() -> None:
    # centred: +-1, +-3, 0, 0 over six scored rows; population std sqrt(20 / 6)
    rewards = np.array([2.0, 0.0, 6.0, 0.0, 1.0, 1.0, NAN])
    got = batch_whitened_advantages(rewards, np.array([0, 0, 1, 1, 2, 2, 2]), eps=0.0)
    np.testing.assert_allclose(got * math.sqrt(20 / 6), [1.0, -1.0, 3.0, -3.0, 0.0, 0.0, 0.0])


def test_batch_whitening_of_a_batch_without_signal_is_zero_even_without_eps() -> None:
    assert batch_whitened_advantages(np.ones(4), np.zeros(4), eps=0.0).tolist() == [0.0] * 4


def test_maxrl_divides_by_the_mean() -> None:
    got = maxrl_advantages(np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]), np.array([0, 0, 0, 1, 1, 1]))
    np.testing.assert_allclose(got, [2.0, -1.0, -1.0, 0.5, 0.5, -1.0])


def test_maxrl_of_a_group_that_never_succeeds_is_zero() -> None:
    assert maxrl_advantages(np.zeros(3), np.zeros(3)).tolist() == [0.0] * 3


def test_maxrl_refuses_negative_rewards() -> None:
    with pytest.raises(ValueError, match=r"lowest reward is -0\.5"):
        maxrl_advantages(np.array([1.0, -0.5]), np.zeros(2))


def subsets_oracle(values: list[float], k: int) -> np.ndarray:
    """Mean, over the subsets of size k that hold a row, of the subset's whitened best reward."""
    subsets = list(combinations(range(len(values)), k))
    best = np.array([max(values[i] for i in subset) for subset in subsets])
    if best.std() == 0.0:
        return np.zeros(len(values))
    whitened = (best - best.mean()) / best.std()
    members = [[row in subset for subset in subsets] for row in range(len(values))]
    return np.array([whitened[held].mean() for held in members])


@given(values=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=7), data=st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    got = pass_at_k_advantages(np.array(values), np.zeros(len(values)), k=k)
    np.testing.assert_allclose(got, subsets_oracle(values, k), atol=1e-9)


def test_pass_at_k_of_one_right_in_four_by_hand() -> None:
    # w = 3, k = 2: m = 1 - 3/6 = 1/2, s = 1/2; right (1/2)/(1/2); wrong (1/2 - 2/3)/(1/2)
    got = pass_at_k_advantages(np.array([0.0, 1.0, 0.0, 0.0]), np.zeros(4), k=2)
    np.testing.assert_allclose(got, [-1 / 3, 1.0, -1 / 3, -1 / 3])


def test_pass_at_k_leaves_out_unscored_rows_and_groups_with_too_few_scored() -> None:
    rewards = np.array([1.0, 0.0, NAN, 0.0, 1.0, NAN, NAN, NAN, NAN, 0.0])
    groups = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    whole = pass_at_k_advantages(np.array([1.0, 0.0, 0.0, 1.0]), np.zeros(4), k=2)
    got = pass_at_k_advantages(rewards, groups, k=2)
    np.testing.assert_allclose(got[[0, 1, 3, 4]], whole)
    assert not got[[2, 5, 6, 7, 8, 9]].any()


@pytest.mark.parametrize("k", [0, 3])
def test_pass_at_k_refuses_a_k_outside_the_smallest_group(k: int) -> None:
    with pytest.raises(ValueError, match=rf"rl\.pass_k={k}: expected 1 to 2"):
        pass_at_k_advantages(np.array([1.0, 0.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1, 1]), k=k)


def test_pass_at_k_refuses_rewards_between_right_and_wrong() -> None:
    with pytest.raises(ValueError, match=r"got 0\.5"):
        pass_at_k_advantages(np.array([1.0, 0.5]), np.zeros(2), k=1)


@given(batches(finite))
def test_group_advantages_agree_with_plain_python(batch: Batch) -> None:
    def one_group(values: list[float]) -> list[float]:
        mean = math.fsum(values) / len(values)
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
        return [(v - mean) / (std + 1e-6) for v in values]

    got = group_advantages(*batch)
    np.testing.assert_allclose(got, oracle(*batch, one_group), rtol=1e-6, atol=1e-6)


@given(batches(finite))
def test_leave_one_out_agrees_with_plain_python(batch: Batch) -> None:
    def one_group(values: list[float]) -> list[float]:
        total, others = math.fsum(values), len(values) - 1
        return [v - (total - v) / others for v in values]

    np.testing.assert_allclose(
        leave_one_out_advantages(*batch), oracle(*batch, one_group), rtol=1e-9, atol=1e-6
    )


@given(batches(st.one_of(finite, st.just(NAN))))
def test_group_advantages_are_finite_and_bounded_by_the_root_of_the_group_size(
    batch: Batch,
) -> None:
    got = group_advantages(*batch)
    sizes = np.array([np.sum(batch[1] == group) for group in batch[1]])
    assert (np.abs(got) <= np.sqrt(sizes) * (1 + 1e-9)).all()


@each_estimator
@given(batch=batches(binary), data=st.data())
def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(
    estimate: Estimator, batch: Batch, data: st.DataObject
) -> None:
    rewards, group_ids = batch
    order = np.array(data.draw(st.permutations(range(len(rewards)))))
    expected = estimate(rewards, group_ids)[order]
    got = estimate(rewards[order], 1000 - 7 * group_ids[order])
    np.testing.assert_allclose(got, expected, atol=1e-12)


@each_estimator
@given(batch=batches(binary))
def test_unscored_rows_get_zero_and_change_nobody_else(estimate: Estimator, batch: Batch) -> None:
    rewards, group_ids = batch
    scored = ~np.isnan(rewards)
    got = estimate(rewards, group_ids)
    assert not got[~scored].any()
    alone = estimate(rewards[scored], group_ids[scored])
    np.testing.assert_allclose(got[scored], alone, atol=1e-12)


@each_estimator
@given(batch=batches(binary))
def test_advantages_of_a_group_have_the_mean_of_no_signal(
    estimate: Estimator, batch: Batch
) -> None:
    got = estimate(*batch)
    assert got.dtype == np.float64
    for group in np.unique(batch[1]):
        assert abs(got[batch[1] == group].sum()) < 1e-9


@each_estimator
@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_give_exactly_zero(estimate: Estimator, reward: float) -> None:
    assert estimate(np.full(7, reward), np.zeros(7)).tolist() == [0.0] * 7


@pytest.mark.parametrize("name", ["group", "unbiased", "leave_one_out", "batch_whitened", "maxrl"])
def test_equal_rewards_whose_mean_rounds_give_exactly_zero(name: str) -> None:
    assert ESTIMATORS[name](np.full(7, 0.1), np.zeros(7)).tolist() == [0.0] * 7


@each_estimator
def test_a_group_with_one_scored_member_gives_zero(estimate: Estimator) -> None:
    got = estimate(np.array([1.0, NAN, NAN, 1.0]), np.array([0, 0, 0, 1]))
    assert got.tolist() == [0.0] * 4


@each_estimator
def test_no_rows_give_no_advantages(estimate: Estimator) -> None:
    assert estimate(np.array([]), np.array([], dtype=np.int64)).shape == (0,)


@each_estimator
def test_infinite_rewards_and_unequal_shapes_are_refused(estimate: Estimator) -> None:
    with pytest.raises(ValueError, match="1 rewards are infinite"):
        estimate(np.array([1.0, np.inf]), np.zeros(2))
    with pytest.raises(ValueError, match=r"\(2,\) and group ids \(3,\)"):
        estimate(np.zeros(2), np.zeros(3))
