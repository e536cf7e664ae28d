"""ANNOTATED to TEACHER: which teacher scores a row, and its scores as columns of the table.

Dimensions: `n` tokens of a response, `N` tokens of all rows, `K` likeliest tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from configs.distillation import TEACHER as DEFAULT_ROLE
from configs.distillation import role_of
from tasks.data.schemas import LOGPROBS, TEACHER, TOKENS, extend, require

UNKNOWN_LOGPROB = -100.0
"""Of a token beyond the shared vocabulary, which the teacher never writes, in nats."""

Scores = npt.NDArray[np.float64]
"""What a teacher says of a response's tokens [n, 1 + 2 K]: the log-probability of each (nats),
those of its K likeliest tokens, most probable first, and their ids."""

NO_SCORES: Scores = np.zeros((0, 1))
"""Of a response without tokens."""


def rows_by_role(
    sources: Sequence[str], teachers: Mapping[str, object]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each teacher: its own source's, or those of all without one."""
    roles = [role_of(source) if role_of(source) in teachers else DEFAULT_ROLE for source in sources]
    return {role: np.flatnonzero(np.array(roles) == role) for role in sorted(set(roles))}


def with_scores(table: pa.Table, scores: Sequence[Scores]) -> pa.Table:
    """Return the TEACHER table of an ANNOTATED one, given the scores of every row.

    Raises:
        TypeError: `table` is not an ANNOTATED table.
        ValueError: a row has another number of scores than of tokens.
    """
    num_values = max((part.shape[1] for part in scores), default=1)
    empty = np.zeros((0, num_values))
    flat = np.concatenate([empty, *(part for part in scores if len(part))])
    offsets = np.cumsum([0, *map(len, scores)]).astype(np.int32)
    num_likeliest = (num_values - 1) // 2
    logprobs, ids = flat[:, 1 : 1 + num_likeliest], flat[:, 1 + num_likeliest :]
    columns = {
        "teacher_logprobs": pa.ListArray.from_arrays(offsets, flat[:, 0].astype(np.float32)),
        "teacher_topk_ids": _nested(offsets, ids.astype(np.int32), TOKENS),
        "teacher_topk_logprobs": _nested(offsets, logprobs.astype(np.float32), LOGPROBS),
    }
    chunked = {name: pa.chunked_array([column]) for name, column in columns.items()}
    return require(
        extend(table, TEACHER, chunked, stage="teacher_score"), TEACHER, stage="teacher_score"
    )


def _nested(
    offsets: npt.NDArray[np.int32], matrix: npt.NDArray[np.generic], kind: pa.DataType
) -> pa.Array:
    """Return a list of lists per row, or nulls for a matrix without columns."""
    num_tokens, num_values = matrix.shape
    if not num_values:
        return pa.nulls(len(offsets) - 1, pa.list_(kind))
    inner = np.arange(num_tokens + 1, dtype=np.int32) * num_values
    tokens = pa.ListArray.from_arrays(inner, pa.array(matrix.reshape(-1)))
    return pa.ListArray.from_arrays(offsets, tokens)
