"""GRPO's group-relative advantage."""

import numpy as np

from tasks.annotators.groups import gather


def group_advantages(
    rewards: np.ndarray,
    group_ids: np.ndarray,
    *,
    unbiased_advantage: bool = False,
    eps: float = 1e-6,
) -> np.ndarray:
    """Return `(r - mean) / (std + eps)` over each row's group, or `r - mean` if unbiased.

    GRPO (arXiv:2402.03300); without the division it is Dr-GRPO's (arXiv:2503.20783). The standard
    deviation is the population's and two-pass, so a group of `G` has |advantage| <= sqrt(G). A
    group whose rewards are all equal gives exactly 0.

    Args:
        rewards: [N]; NaN is a response that could not be scored: it gets 0 and enters no statistic.
        group_ids: [N] integers; rows of a group need not be neighbours.
        unbiased_advantage: leave out the division.
        eps: in units of reward.

    Returns:
        [N] float64.

    Raises:
        ValueError: the shapes differ or are not [N], or a reward is infinite.

    >>> group_advantages(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4), unbiased_advantage=True)
    array([ 0.75, -0.25, -0.25, -0.25])
    """
    groups = gather(rewards, group_ids)
    if unbiased_advantage:
        return groups.centred
    variance = groups.total(groups.centred**2) / np.maximum(groups.counts, 1.0)
    return groups.centred / (np.sqrt(variance) + eps)[groups.index]
