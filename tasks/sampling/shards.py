"""A step's prompts divided among several rollouts, and their responses put together again."""

from collections import Counter

import numpy as np
import pyarrow as pa

from tasks.data.schemas import PROMPTS, ROLLOUTS, read_stamp, require

SECONDS = "seconds"
"""Key of a shard's duration in its table's metadata: a mapped task has one output."""


def shard_start(num_prompts: int, shard: int, num_shards: int) -> int:
    """Return the first prompt of a shard; shards are consecutive and differ by one prompt at most.

    >>> [shard_start(10, shard, 4) for shard in range(5)]
    [0, 2, 5, 7, 10]
    """
    return num_prompts * shard // num_shards


def shard_of(prompts: pa.Table, shard: int, num_shards: int) -> pa.Table:
    """Return the prompts, and so the whole groups, that a shard samples."""
    start, stop = (shard_start(len(prompts), s, num_shards) for s in (shard, shard + 1))
    return prompts.slice(start, stop - start)


def timed(table: pa.Table, seconds: float) -> pa.Table:
    """Return a shard's table with the seconds that it took."""
    return table.replace_schema_metadata({**read_stamp(table), SECONDS: repr(seconds)})


def slowest(tables: list[pa.Table]) -> float:
    """Return how long the slowest shard took: shards run side by side."""
    return max(float(read_stamp(table)[SECONDS]) for table in tables)


def join(prompts: pa.Table, tables: list[pa.Table], *, group_size: int) -> pa.Table:
    """Return the table that one rollout of all prompts would have given.

    Rows are found by their ids, so it does not matter which shard sampled them, nor in which order
    the shards come.

    Args:
        prompts: what was divided.
        tables: a ROLLOUTS table per shard.
        group_size: responses per prompt.

    Raises:
        TypeError: a table has another schema.
        ValueError: a group or sample is missing, there twice, or of no prompt; ids are named. Or
            shards differ in run, step, engine or seed.
    """
    prompts = require(prompts, PROMPTS, stage="join_shards")
    plain = [require(table, ROLLOUTS, stage="join_shards") for table in tables]
    origin = _common_origin(plain)
    rows = pa.concat_tables([table.replace_schema_metadata(None) for table in plain])
    groups, samples = (rows[name].to_pylist() for name in ("group_id", "sample_index"))
    place = _places(prompts["group_id"].to_pylist(), group_size)
    _require_each_once(Counter(zip(groups, samples, strict=True)), place)
    order = np.argsort([place[key] for key in zip(groups, samples, strict=True)])
    return rows.take(order).combine_chunks().replace_schema_metadata(origin)


def _common_origin(tables: list[pa.Table]) -> dict[str, str]:
    """Return what all tables say of their origin; how long each took is its own."""
    first, *others = (
        {key: text for key, text in read_stamp(table).items() if key != SECONDS} for table in tables
    )
    for other in others:
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                raise ValueError(
                    f"join_shards: shards differ in {key}: {first.get(key)!r} and "
                    f"{other.get(key)!r}; run the rollout of this step again, all its shards on "
                    "the same image and inputs"
                )
    return first


def _places(group_ids: list[int], group_size: int) -> dict[tuple[int, int], int]:
    keys = [(group, sample) for group in group_ids for sample in range(group_size)]
    return {key: place for place, key in enumerate(keys)}


def _require_each_once(
    found: Counter[tuple[int, int]], expected: dict[tuple[int, int], int]
) -> None:
    wrong = {
        "are missing": expected.keys() - found.keys(),
        "are there more than once": {key for key, count in found.items() if count > 1},
        "belong to no prompt of this step": found.keys() - expected.keys(),
    }
    problems = [
        f"{len(keys)} samples {what}, the first is sample_index={sample} of group_id={group}"
        for what, keys in wrong.items()
        if keys
        for group, sample in [min(keys)]
    ]
    if problems:
        raise ValueError(
            f"join_shards: {'; '.join(problems)}; run the rollout of this step again, all its "
            "shards with the same prompts"
        )
