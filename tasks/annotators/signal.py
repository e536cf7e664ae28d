"""Dynamic sampling: groups whose rewards are all equal make way for groups that carry signal.

Source: DAPO (arXiv:2503.14476), section 3.2.
"""

import numpy as np
import pyarrow as pa

from tasks.annotators.annotate import read_rewards
from tasks.annotators.groups import gather
from tasks.data.schemas import SCORED, require


def num_missing(table: pa.Table, *, num_groups: int) -> int:
    """Return how many of `num_groups` groups of a SCORED table do not carry signal."""
    groups = gather(read_rewards(table), table["group_id"].to_numpy())
    return num_groups - int((~groups.degenerate).sum())


def merge(first: pa.Table, second: pa.Table, *, num_groups: int) -> pa.Table:
    """Return `num_groups` whole groups of two SCORED tables, those with signal before the others.

    Within both kinds, groups keep their order, and those of `first` come before those of `second`.

    Raises:
        ValueError: the tables share a sample or a group, or hold fewer groups than that.
    """
    table = pa.concat_tables([first, second.replace_schema_metadata(first.schema.metadata)])
    table = require(table.combine_chunks(), SCORED, stage="merge_groups")
    group_ids = table["group_id"].to_numpy()
    groups = gather(read_rewards(table), group_ids)
    _, first_rows = np.unique(groups.index, return_index=True)
    rank = np.lexsort((first_rows, groups.degenerate))
    if len(rank) < num_groups:
        raise ValueError(f"{len(rank)} groups in all, expected at least {num_groups}")
    place = np.full(groups.num_groups, len(table))
    place[rank[:num_groups]] = np.arange(num_groups)
    kept = np.flatnonzero(place[groups.index] < len(table))
    return table.take(kept[np.argsort(place[groups.index][kept], kind="stable")])
