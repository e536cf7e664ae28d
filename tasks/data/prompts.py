"""From problems to a pool of tokenised prompts, and from the pool to the prompts of a step."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tasks.data.problems import Problem
from tasks.data.schemas import PROMPTS, TOKENS, require

Encode = Callable[[list[str]], list[list[int] | None]]
"""Token ids of every text, in order; None for a text that would smuggle in a control token."""

REFILLS = 2**20
"""Refills count as epochs from here on, which no run's ordinary epochs reach."""

Pick = tuple[int, int]
"""A group id and the row of the pool that it stands for."""


class Pool(NamedTuple):
    """Every usable problem as a PROMPTS row whose `group_id` is its row number.

    Attributes:
        table: PROMPTS.
        too_long: ids of problems longer than allowed.
        unsafe: ids of problems whose text spells a control token.
    """

    table: pa.Table
    too_long: list[str]
    unsafe: list[str]


def build_pool(problems: Sequence[Problem], encode: Encode, *, max_prompt_tokens: int) -> Pool:
    """Tokenise problems once; leave out, and name, those that cannot be prompts.

    Raises:
        ValueError: if no problem is left.
    """
    encoded = encode([problem.text for problem in problems])
    pairs = list(zip(problems, encoded, strict=True))
    usable = [(p, ids) for p, ids in pairs if ids and len(ids) <= max_prompt_tokens]
    too_long = [p.problem_id for p, ids in pairs if ids and len(ids) > max_prompt_tokens]
    if not usable:
        raise ValueError(
            f"none of {len(pairs)} problems is a usable prompt: {len(too_long)} are longer than "
            f"rollout.max_prompt_tokens={max_prompt_tokens}"
        )
    unsafe = [p.problem_id for p, ids in pairs if not ids]
    return Pool(_table([p for p, _ in usable], [ids for _, ids in usable]), too_long, unsafe)


def select(
    num_rows: int,
    step: int,
    *,
    num_prompts: int,
    data_seed: int,
    setting: str = "rollout.prompts_per_step",
) -> list[Pick]:
    """Return `(group_id, row)` of the prompts of `step`, counted from 0.

    The steps cut one endless stream, a new permutation of all rows per epoch, into pieces of
    `num_prompts`; a step may straddle two epochs, and no row is left out or repeated within one.
    The result depends on nothing but the arguments. `group_id` is `row + epoch * num_rows`, so that
    the same prompt is another group in another epoch.

    Raises:
        ValueError: `step` is negative, or the pool has fewer rows than one step needs.
    """
    if step < 0:
        raise ValueError(f"step={step}: expected 0 or more")
    if not 1 <= num_prompts <= num_rows:
        raise ValueError(
            f"{setting}={num_prompts}: expected 1 to {num_rows}, the training rows of the source; "
            f"lower {setting} or choose a larger source"
        )
    start = step * num_prompts
    stop = start + num_prompts
    picks: list[Pick] = []
    for epoch in range(start // num_rows, (stop - 1) // num_rows + 1):
        first = epoch * num_rows
        part = _permutation(num_rows, data_seed, epoch)[max(start - first, 0) : stop - first]
        picks += [(first + row, row) for row in part.tolist()]
    return picks


def select_refill(
    num_rows: int, step: int, *, refill: int, num_prompts: int, per_step: int, data_seed: int
) -> list[Pick]:
    """Return `(group_id, row)` of prompts that replace groups of a step that carry no signal.

    None of them is a prompt of the step or of another of its refills, and the prompts of no step
    change. A function of the arguments alone.

    Args:
        num_rows: rows of the pool.
        step: the training step.
        refill: 1 for the first refill of the step.
        num_prompts: prompts to replace, at most `per_step`.
        per_step: `rollout.prompts_per_step`.
        data_seed: `data.seed`.

    Raises:
        ValueError: the pool has no prompts left for this refill.
    """
    if num_rows < (refill + 1) * per_step:
        raise ValueError(
            f"refill {refill} of a step of {per_step} prompts needs {(refill + 1) * per_step} "
            f"training prompts, the source has {num_rows}; lower rl.dynamic_sampling_rounds"
        )
    regular = {row for _, row in select(num_rows, step, num_prompts=per_step, data_seed=data_seed)}
    order = _permutation(num_rows, data_seed, REFILLS, step).tolist()
    others = [row for row in order if row not in regular]
    start = (refill - 1) * per_step
    first = (REFILLS + step) * num_rows
    return [(first + row, row) for row in others[start : start + num_prompts]]


def take(pool: pa.Table, picks: Sequence[Pick], *, key: str = "group_id") -> pa.Table:
    """Return some rows of a pool, in the column `key` under the ids that they were picked with."""
    ids, rows = zip(*picks, strict=True)
    table = pool.take(list(rows))
    place = table.schema.get_field_index(key)
    return table.set_column(place, table.schema.field(key), pa.array(ids, pa.int64()))


def _permutation(rows: int, *entropy: int) -> np.ndarray:
    seed = np.random.SeedSequence(entropy)
    return np.random.Generator(np.random.PCG64(seed)).permutation(rows)


def _table(problems: Sequence[Problem], tokens: list[list[int]]) -> pa.Table:
    ids, sources, texts, answers, payloads = (list(c) for c in zip(*problems, strict=True))
    rows = list(range(len(problems)))
    columns = [rows, ids, sources, pa.array(tokens, TOKENS), texts, answers, payloads]
    table = pa.table(dict(zip(PROMPTS.names, columns, strict=True)), schema=PROMPTS)
    return require(table, PROMPTS, stage="prepare_prompts")
