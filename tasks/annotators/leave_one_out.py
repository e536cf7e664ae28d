"""The leave-one-out advantage of RLOO."""

import numpy as np

from tasks.annotators.groups import gather


def leave_one_out_advantages(rewards: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """Return the reward minus the mean reward of the group's other scored rows: [N] float64.

    RLOO (arXiv:2402.14740). With `n` scored rows it equals `n / (n - 1) * (r - mean)`. Rows that
    are unscored (NaN), alone in their group, or in a group of equal rewards get exactly 0.

    Raises:
        ValueError: the shapes differ or are not [N], or a reward is infinite.

    >>> leave_one_out_advantages(np.array([1.0, 0.0, 0.0]), np.zeros(3))
    array([ 1. , -0.5, -0.5])
    """
    groups = gather(rewards, group_ids)
    others = np.maximum(groups.counts - 1.0, 1.0)
    return groups.centred * (groups.counts / others)[groups.index]
