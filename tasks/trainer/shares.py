"""Who computes what: the rows of a mini-batch over ranks, and each rank's over chunks."""

from collections import defaultdict
from collections.abc import Callable, Sequence
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
    prompts: Sequence[int] | None = None,
) -> Share:
    """Return the row numbers of one rank's chunks; every rank plans the same by itself.

    Args:
        widths: prompt and response lengths of every row of the batch [N, 2].
        rows: those of the mini-batch, at least one; numbers into `widths`.
        rank: whose share.
        num_ranks: how many ranks share the rows; may exceed them.
        plan: cuts the rows of a rank into chunks.
        prompts: as in `split_rows_over`.
    """
    parts = split_rows_over(widths, rows, num_ranks, prompts)
    plans = [plan(part) if len(part) else [] for part in parts]
    candidates = parts[rank] if len(parts[rank]) else rows
    shortest = candidates[np.argmin(widths[candidates].sum(1))]
    num_idle = max(map(len, plans)) - len(plans[rank])
    return Share(plans[rank], [np.array([shortest])] * num_idle)


def split_rows_over(
    widths: Numbers, rows: Numbers, num_ranks: int, prompts: Sequence[int] | None = None
) -> list[Numbers]:
    """Split rows over ranks so that each gets about as many tokens.

    What is largest goes first, each to the rank with the fewest tokens so far; ties go by number,
    so the split is a function of its arguments.

    Args:
        widths: prompt and response lengths of every row of the batch [N, 2].
        rows: those to split, numbers into `widths`.
        num_ranks: over how many ranks.
        prompts: the prompt's number of every row of the batch, for rows that share one to stay
            together and its tokens to count once; rows that are more than an even share do not.

    >>> widths = np.array([[2, 3], [2, 9], [2, 4], [2, 1]])
    >>> [part.tolist() for part in split_rows_over(widths, np.arange(4), 2)]
    [[1, 3], [0, 2]]
    >>> [part.tolist() for part in split_rows_over(widths, np.arange(4), 2, [0, 1, 0, 1])]
    [[1, 3], [0, 2]]
    >>> [part.tolist() for part in split_rows_over(widths, np.arange(4), 2, [0, 0, 1, 1])]
    [[1], [0, 2, 3]]
    """
    if num_ranks == 1:
        return [rows]
    even_share = widths[rows].sum() / num_ranks
    units: list[tuple[int, list[int]]] = []
    for members in _grouped(rows, prompts):
        prompt, responses = widths[members[0], 0], widths[members, 1].tolist()
        if prompt + sum(responses) <= even_share:
            units.append((int(prompt) + sum(responses), members))
        else:
            units += [(int(widths[row].sum()), [row]) for row in members]
    parts: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for size, members in sorted(units, key=lambda unit: (-unit[0], unit[1])):
        rank = loads.index(min(loads))
        parts[rank] += members
        loads[rank] += size
    return [np.array(sorted(part), dtype=np.int64) for part in parts]


def _grouped(rows: Numbers, prompts: Sequence[int] | None) -> list[list[int]]:
    """Return rows in order, those of one prompt together, or each by itself."""
    if prompts is None:
        return [[row] for row in rows.tolist()]
    groups: dict[int, list[int]] = defaultdict(list)
    for row in sorted(rows.tolist()):
        groups[prompts[row]].append(row)
    return list(groups.values())
