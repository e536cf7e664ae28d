"""The analytic pass@k advantage."""

import numpy as np

from tasks.annotators.groups import gather


def pass_at_k_advantages(rewards: np.ndarray, group_ids: np.ndarray, *, k: int) -> np.ndarray:
    """Return each row's mean advantage over all subsets of `k` of its group: [N] float64.

    Pass@k Training (arXiv:2508.10751), analytic form. A subset earns 1 if any of its members does.
    Of `n` scored rows `w` are wrong; a random subset earns `m = 1 - C(w, k) / C(n, k)` with
    standard deviation `s = sqrt(m (1 - m))`. A right row gets `(1 - m) / s`, a wrong one
    `(1 - m - C(w - 1, k - 1) / C(n - 1, k - 1)) / s`. Unscored rows (NaN) get exactly 0, and so
    does a group in which all subsets earn the same or fewer than `k` rows are scored. `k` = 1 is
    GRPO's advantage without its `eps`.

    Raises:
        ValueError: `k` is below 1 or above a group's size, a reward is not 0 or 1, or the shapes
            differ or are not [N].

    >>> pass_at_k_advantages(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4), k=2)
    array([ 1.        , -0.33333333, -0.33333333, -0.33333333])
    """
    groups = gather(rewards, group_ids)
    _check(groups.rewards, groups.sizes, k)
    wrong = groups.counts - groups.total(groups.rewards)
    fails = chance_of_all(wrong, groups.counts, k)
    others_fail = chance_of_all(wrong - 1.0, groups.counts - 1.0, k - 1)
    std = np.sqrt(fails * (1.0 - fails))
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0.0)
    right = groups.rewards > 0.0
    advantages = np.where(right, fails[groups.index], (fails - others_fail)[groups.index])
    return groups.spread(advantages * scale[groups.index])


def _check(rewards: np.ndarray, sizes: np.ndarray, k: int) -> None:
    smallest = sizes.min() if sizes.size else max(k, 1)
    if not 1 <= k <= smallest:
        raise ValueError(
            f"rl.pass_k={k}: expected 1 to {smallest}, the size of the smallest group;"
            " lower rl.pass_k or raise rollout.group_size"
        )
    if not np.isin(rewards, (0.0, 1.0)).all():
        raise ValueError(
            "rl.advantage=pass_at_k: expected rewards of 0 and 1, got"
            f" {rewards[~np.isin(rewards, (0.0, 1.0))][0]}; use a reward of right or wrong"
        )


def chance_of_all(marked: np.ndarray, total: np.ndarray, k: int) -> np.ndarray:
    """Return `C(marked, k) / C(total, k)`: all of `k` drawn from `total` are marked.

    A product of `k` fractions, so that no binomial coefficient overflows.
    """
    chance = np.ones_like(total)
    for drawn in range(k):
        chance *= np.maximum(marked - drawn, 0.0) / np.maximum(total - drawn, 1.0)
    return chance
