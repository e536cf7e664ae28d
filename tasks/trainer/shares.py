"""Who computes what: the rows of a mini-batch over ranks, and each rank's over chunks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Share(NamedTuple):
    """One rank's part of a mini-batch: chunks, or the numbers of their rows.

    All ranks have equally many, since they compute together: a rank with fewer of its own repeats
    a row, whose loss and metrics then count for nothing.

    Attributes:
        own: what counts.
        idle: what only keeps step.
    """

    own: list[Any]
    idle: list[Any]

    def each(self, lay_out: Callable[[Numbers], Any]) -> "Share":
        """Return the share with every chunk's row numbers turned into something else."""
        return Share(*([lay_out(chunk) for chunk in chunks] for chunks in self))


def plan_share(
    widths: Numbers,
    rows: Numbers,
    *,
    rank: int,
    num_ranks: int,
    plan: Callable[[Numbers], list[Numbers]],
) -> Share:
    """Return the row numbers of one rank's chunks; every rank plans the same by itself.

    Args:
        widths: prompt and response lengths of every row of the batch [N, 2].
        rows: those of the mini-batch, at least one; numbers into `widths`.
        rank: whose share.
        num_ranks: how many ranks share the rows; may exceed them.
        plan: cuts the rows of a rank into chunks.
    """
    parts = split_rows_over(widths, rows, num_ranks)
    plans = [plan(part) if len(part) else [] for part in parts]
    candidates = parts[rank] if len(parts[rank]) else rows
    shortest = candidates[np.argmin(widths[candidates].sum(1))]
    num_idle = max(map(len, plans)) - len(plans[rank])
    return Share(plans[rank], [np.array([shortest])] * num_idle)


def split_rows_over(widths: Numbers, rows: Numbers, num_ranks: int) -> list[Numbers]:
    """Split rows over ranks so that each gets about as many tokens.

    The longest row first, each to the rank with the fewest tokens so far; ties go by number, so
    the split is a function of its arguments.

    >>> widths = np.array([[2, 3], [2, 9], [2, 4], [2, 1]])
    >>> [part.tolist() for part in split_rows_over(widths, np.arange(4), 2)]
    [[1, 3], [0, 2]]
    """
    if num_ranks == 1:
        return [rows]
    sizes = widths[rows].sum(1)
    parts: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for place in np.lexsort((rows, -sizes)).tolist():
        rank = loads.index(min(loads))
        parts[rank].append(int(rows[place]))
        loads[rank] += int(sizes[place])
    return [np.array(sorted(part), dtype=np.int64) for part in parts]
