"""ANNOTATED to TEACHER: what the teacher says about every sampled token."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from configs.distillation import TEACHER as DEFAULT_ROLE
from configs.distillation import role_of
from configs.run import RunConfig
from tasks.data.schemas import LOGPROBS, TEACHER, TOKENS, extend, require
from tasks.policy.files import PolicyFiles
from tasks.trainer.rows import Rows, collate, plan_chunks, read_rows
from tasks.trainer.teacher import FrozenTeacher, open_teacher

Scores = npt.NDArray[np.float64]


def add_teacher_scores(
    table: pa.Table, config: RunConfig, teachers: Mapping[str, PolicyFiles]
) -> pa.Table:
    """Return the TEACHER table of an ANNOTATED one, each row scored by its source's teacher.

    Token t of a response is scored given the prompt and the tokens before it, at the temperature
    of the loss.

    Args:
        table: ANNOTATED.
        config: the run's.
        teachers: by role.
    """
    if config.trainer.num_threads:
        torch.set_num_threads(config.trainer.num_threads)
    rows = read_rows(table)
    scores: list[Scores] = [np.zeros((0, 1))] * len(rows)
    for role, picked in rows_by_role(table["source"].to_pylist(), teachers).items():
        teacher = open_teacher(teachers[role], role, dtype=config.teacher.dtype)
        _score(rows, picked, teacher, config, scores)
    return _extended(table, scores)


def rows_by_role(
    sources: Sequence[str], teachers: Mapping[str, PolicyFiles]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each teacher: its own source's, or those of all without one."""
    roles = [role_of(source) if role_of(source) in teachers else DEFAULT_ROLE for source in sources]
    return {role: np.flatnonzero(np.array(roles) == role) for role in sorted(set(roles))}


def _score(
    rows: Rows,
    picked: npt.NDArray[np.int64],
    teacher: FrozenTeacher,
    config: RunConfig,
    scores: list[Scores],
) -> None:
    """Fill in the scores of some rows."""
    device = next(teacher.model.parameters()).device
    written = picked[rows.widths[picked, 1] > 0]
    for chunk in plan_chunks(rows.widths, written, max_tokens=config.trainer.max_tokens_per_chunk):
        values = teacher.score(
            collate(rows, chunk, device),
            temperature=config.rl.temperature,
            topk=config.rl.teacher_topk,
        )
        ends = np.cumsum(rows.widths[chunk, 1])
        parts = np.split(values.cpu().numpy(), ends[:-1])
        for row, part in zip(chunk.tolist(), parts, strict=True):
            scores[row] = part


def _extended(table: pa.Table, scores: list[Scores]) -> pa.Table:
    num_values = max((part.shape[1] for part in scores), default=1)
    flat = np.concatenate([part.reshape(len(part), -1) for part in scores if len(part)])
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
