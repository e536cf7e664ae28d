"""The batch-whitened advantage of REINFORCE++ with a group baseline."""

import numpy as np

from tasks.annotators.groups import gather


def batch_whitened_advantages(
    rewards: np.ndarray, group_ids: np.ndarray, *, eps: float = 1e-6
) -> np.ndarray:
    """Return `(r - group mean) / (std + eps)`, the std being that of the whole batch: [N] float64.

    REINFORCE++ (arXiv:2501.03262), its variant with a group-mean baseline. Rows count once each,
    however long their response is. The numerators of every group add up to 0, hence the batch's
    mean is 0 already and only the population std of all scored rows is left to divide by. Unscored
    rows (NaN) and groups of equal rewards get exactly 0; the latter still enter the std.

    Raises:
        ValueError: the shapes differ or are not [N], or a reward is infinite.

    >>> batch_whitened_advantages(np.array([2.0, 0.0, 5.0, 5.0]), np.array([0, 0, 1, 1]), eps=0.0)
    array([ 1.41421356, -1.41421356,  0.        ,  0.        ])
    """
    groups = gather(rewards, group_ids)
    num_scored = max(int(groups.scored.sum()), 1)
    std = np.sqrt((groups.centred**2).sum() / num_scored)
    return np.divide(
        groups.centred, std + eps, out=np.zeros_like(groups.centred), where=groups.centred != 0.0
    )
