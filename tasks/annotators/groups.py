"""Rewards by group: the sums that every advantage estimator is made of.

Shapes: `N` rows, `M` groups. Everything is float64, and statistics leave out unscored rows.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Groups:
    """The rows of a table by group; groups are whole here and nowhere later.

    Attributes:
        rewards: [N] raw rewards, 0 where unscored.
        scored: [N] bool.
        index: [N] the group of every row, in `range(M)`.
        num_groups: `M`.
    """

    rewards: np.ndarray
    scored: np.ndarray
    index: np.ndarray
    num_groups: int

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of `values` [N] over the scored rows of every group: [M]."""
        weights = np.where(self.scored, values, 0.0)
        sums = np.bincount(self.index, weights=weights, minlength=self.num_groups)
        return sums.astype(np.float64)  # of no rows, bincount makes integers

    @cached_property
    def sizes(self) -> np.ndarray:
        """Rows per group, scored or not: [M] int64."""
        return np.bincount(self.index, minlength=self.num_groups)

    @cached_property
    def counts(self) -> np.ndarray:
        """Scored rows per group: [M] float64."""
        return self.total(np.ones_like(self.rewards))

    @cached_property
    def means(self) -> np.ndarray:
        """Mean reward per group, 0 for a group without a scored row: [M]."""
        return self.total(self.rewards) / np.maximum(self.counts, 1.0)

    @cached_property
    def centred(self) -> np.ndarray:
        """Reward minus the group's mean, exactly 0 where there is no signal: [N]."""
        return self.spread(self.rewards - self.means[self.index])

    @cached_property
    def degenerate(self) -> np.ndarray:
        """Whether a group's scored rewards are all equal, or there is at most one: [M] bool."""
        highest = np.full(self.num_groups, -np.inf)
        lowest = np.full(self.num_groups, np.inf)
        np.maximum.at(highest, self.index[self.scored], self.rewards[self.scored])
        np.minimum.at(lowest, self.index[self.scored], self.rewards[self.scored])
        return highest <= lowest

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return `values` [N], exactly 0 on unscored rows and in degenerate groups."""
        return np.where(self.scored & ~self.degenerate[self.index], values, 0.0)


def gather(rewards: np.ndarray, group_ids: np.ndarray) -> Groups:
    """Group rewards [N] by id [N]; a NaN reward is an unscored row.

    Raises:
        ValueError: the shapes are not [N] and [N], or a reward is infinite.
    """
    values, ids = np.asarray(rewards, dtype=np.float64), np.asarray(group_ids)
    if values.ndim != 1 or values.shape != ids.shape:
        raise ValueError(
            f"rewards have shape {values.shape} and group ids {ids.shape}, expected [N] and [N]"
        )
    if np.isinf(values).any():
        raise ValueError(
            f"{np.isinf(values).sum()} rewards are infinite, expected finite numbers, or NaN where"
            " a response could not be scored"
        )
    unique, index = np.unique(ids, return_inverse=True)
    scored = ~np.isnan(values)
    return Groups(np.where(scored, values, 0.0), scored, index, len(unique))
