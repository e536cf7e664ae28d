"""Which rows, and which leading tokens, do not train; statistics are over by then."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.annotators.groups import gather
from tasks.data.schemas import lengths


def unscored(rewards: np.ndarray) -> np.ndarray:
    """Return [N] bool: the reward is NaN, because the response could not be scored."""
    return np.isnan(rewards)


def truncated(finish_reasons: pa.ChunkedArray) -> np.ndarray:
    """Return [N] bool: the response ran into the token limit."""
    return pc.equal(finish_reasons, "length").to_numpy()


def zero_variance(rewards: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """Return [N] bool: the scored rewards of the row's group are all equal, or at most one is."""
    groups = gather(rewards, group_ids)
    return groups.degenerate[groups.index]


def shared_prefix(
    responses: pa.ChunkedArray, group_ids: np.ndarray, *, min_tokens: int
) -> np.ndarray:
    """Return [N] int64: the number of leading tokens that the row shares with its whole group.

    It is 0 when the group's longest common token prefix is shorter than `min_tokens`, and in a
    group of one response, which shares nothing. Memory is linear in the number of tokens.

    Raises:
        ValueError: `min_tokens` is below 1.
    """
    if min_tokens < 1:
        raise ValueError(f"rl.min_shared_prefix_tokens={min_tokens}: expected 1 or more to mask")
    num_tokens = lengths(responses)
    _, leader, index, sizes = np.unique(
        group_ids, return_index=True, return_inverse=True, return_counts=True
    )
    agreed = _agreement(pc.list_flatten(responses).to_numpy(), num_tokens, leader[index])
    common = np.full(len(sizes), np.iinfo(np.int64).max)
    np.minimum.at(common, index, agreed)
    common[(sizes == 1) | (common < min_tokens)] = 0
    return common[index]


def token_positions(num_tokens: np.ndarray) -> np.ndarray:
    """Return the position within its row of every token of rows laid end to end: [sum] int64.

    >>> token_positions(np.array([2, 0, 3]))
    array([0, 1, 0, 1, 2])
    """
    starts = np.cumsum(num_tokens) - num_tokens
    return np.arange(num_tokens.sum()) - np.repeat(starts, num_tokens)


def _agreement(tokens: np.ndarray, num_tokens: np.ndarray, leader: np.ndarray) -> np.ndarray:
    """Return [N]: the length of the common prefix of every row and the row that leads its group."""
    starts = np.cumsum(num_tokens) - num_tokens
    limit = np.minimum(num_tokens, num_tokens[leader])
    positions = token_positions(limit)
    rows = np.repeat(np.arange(len(limit)), limit)
    differs = tokens[starts[rows] + positions] != tokens[starts[leader[rows]] + positions]
    agreed = limit.copy()
    np.minimum.at(agreed, rows[differs], positions[differs])
    return agreed
