"""ANNOTATED to TEACHER, by a teacher in transformers."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from configs.run import RunConfig
from tasks.data.teaching import NO_SCORES, Scores, rows_by_role, with_scores
from tasks.policy.files import PolicyFiles
from tasks.trainer.rows import Rows, collate, plan_chunks, read_rows
from tasks.trainer.teacher import FrozenTeacher, open_teacher


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
    scores: list[Scores] = [NO_SCORES] * len(rows)
    for role, picked in rows_by_role(table["source"].to_pylist(), teachers).items():
        teacher = open_teacher(teachers[role], role, dtype=config.teacher.dtype)
        _score(rows, picked, teacher, config, scores)
    return with_scores(table, scores)


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
