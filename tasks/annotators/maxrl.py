"""The mean-normalised advantage of maximum-likelihood reinforcement learning."""

import numpy as np

from tasks.annotators.groups import gather


def maxrl_advantages(rewards: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """Return `(r - mean) / mean` over each row's group, 0 where the mean is 0: [N] float64.

    MaxRL (arXiv:2602.02710). For rewards of 0 and 1 the mean is the group's pass rate, and dividing
    by it turns the gradient of the pass rate into one of its logarithm, estimated to an order that
    grows with the group; rare successes weigh more than under GRPO. Unscored rows (NaN) and groups
    of equal rewards get exactly 0.

    Raises:
        ValueError: a reward is negative or infinite, or the shapes differ or are not [N].

    >>> maxrl_advantages(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4))
    array([ 3., -1., -1., -1.])
    """
    groups = gather(rewards, group_ids)
    if (groups.rewards < 0.0).any():
        raise ValueError(
            f"rl.advantage=maxrl: the lowest reward is {groups.rewards.min()}, expected 0 or more;"
            " use a reward without penalties or another rl.advantage"
        )
    means = np.where(groups.means > 0.0, groups.means, 1.0)
    return groups.centred / means[groups.index]
