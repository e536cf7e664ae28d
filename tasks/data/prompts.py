"""Which prompts a step trains on, and the PROMPTS table of them."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tasks.data.prompt_source import Prompt, PromptSource
from tasks.data.schemas import PROMPTS, TOKENS, require

Encode = Callable[[list[str]], list[list[int]]]
"""Token ids of every text, in order."""

REFILLS = 2**20
"""Refills count as epochs from here on, which no run's ordinary epochs reach."""

Pick = tuple[int, int]
"""A group id and the source row it stands for."""


def select(source: PromptSource, step: int, *, num_prompts: int, data_seed: int) -> list[Pick]:
    """Return `(group_id, row)` of the prompts of `step`, counted from 0.

    The steps cut one endless stream, a new permutation of all rows per epoch, into pieces of
    `num_prompts`; a step may straddle two epochs, and no row is left out or repeated within one.
    The result depends on nothing but the arguments. `group_id` is `row + epoch * rows`, so that
    the same prompt is another group in another epoch.

    Raises:
        ValueError: `step` is negative, or the source has fewer rows than one step needs.
    """
    rows = source.num_prompts
    if step < 0:
        raise ValueError(f"step={step}: expected 0 or more")
    if not 1 <= num_prompts <= rows:
        raise ValueError(
            f"rollout.prompts_per_step={num_prompts}: expected 1 to {rows}, the training prompts of"
            " the source; lower rollout.prompts_per_step or choose a larger source"
        )
    start = step * num_prompts
    stop = start + num_prompts
    picks: list[Pick] = []
    for epoch in range(start // rows, (stop - 1) // rows + 1):
        first = epoch * rows
        part = _permutation(rows, data_seed, epoch)[max(start - first, 0) : stop - first]
        picks += [(first + row, row) for row in part.tolist()]
    return picks


def select_refill(
    source: PromptSource, step: int, *, refill: int, num_prompts: int, per_step: int, data_seed: int
) -> list[Pick]:
    """Return `(group_id, row)` of prompts that replace groups of a step that carry no signal.

    None of them is a prompt of the step or of another of its refills, and the prompts of no step
    change. A function of the arguments alone.

    Args:
        source: where prompts come from.
        step: the training step.
        refill: 1 for the first refill of the step.
        num_prompts: prompts to replace, at most `per_step`.
        per_step: `rollout.prompts_per_step`.
        data_seed: `data.seed`.

    Raises:
        ValueError: the source has no prompts left for this refill.
    """
    rows = source.num_prompts
    if rows < (refill + 1) * per_step:
        raise ValueError(
            f"refill {refill} of a step of {per_step} prompts needs {(refill + 1) * per_step} "
            f"training prompts, the source has {rows}; lower rl.dynamic_sampling_rounds"
        )
    regular = {row for _, row in select(source, step, num_prompts=per_step, data_seed=data_seed)}
    others = [
        row for row in _permutation(rows, data_seed, REFILLS, step).tolist() if row not in regular
    ]
    start = (refill - 1) * per_step
    first = (REFILLS + step) * rows
    return [(first + row, row) for row in others[start : start + num_prompts]]


def prompts_table(source: PromptSource, picks: Sequence[Pick], encode: Encode) -> pa.Table:
    """Return the PROMPTS table of training rows, in the order of `picks`.

    Raises:
        ValueError: `encode` gave another number of lists than texts, or an empty one.
    """
    group_ids = [group_id for group_id, _ in picks]
    return _table(group_ids, [source.row(row) for _, row in picks], encode)


def held_out_table(
    source: PromptSource, encode: Encode, *, num_prompts: int | None = None
) -> pa.Table:
    """Return the PROMPTS table of the first `num_prompts` held-out rows, all of them by default.

    `group_id` is the held-out row: it may equal one of training, so the two are never mixed.

    Raises:
        ValueError: there are not that many held-out rows, or as `prompts_table`.
    """
    count = source.num_held_out if num_prompts is None else num_prompts
    if not 1 <= count <= source.num_held_out:
        raise ValueError(
            f"evaluation.num_prompts={count}: expected 1 to {source.num_held_out}, the held-out"
            " prompts of the source; lower it or raise data.num_held_out"
        )
    rows = range(count)
    return _table(list(rows), [source.held_out_row(row) for row in rows], encode)


def _permutation(rows: int, *entropy: int) -> np.ndarray:
    seed = np.random.SeedSequence(entropy)
    return np.random.Generator(np.random.PCG64(seed)).permutation(rows)


def _table(group_ids: list[int], prompts: list[Prompt], encode: Encode) -> pa.Table:
    prompt_ids, sources, texts, answers, payloads = (
        [list(column) for column in zip(*prompts, strict=True)] if prompts else [[]] * 5
    )
    tokens = encode(texts)
    if len(tokens) != len(texts) or not all(tokens):
        raise ValueError(
            f"the tokenizer gave {len(tokens)} lists for {len(texts)} prompts,"
            f" {sum(not ids for ids in tokens)} of them empty; expected one id or more for each"
        )
    columns = [group_ids, prompt_ids, sources, pa.array(tokens, TOKENS), texts, answers, payloads]
    table = pa.table(dict(zip(PROMPTS.names, columns, strict=True)), schema=PROMPTS)
    return require(table, PROMPTS, stage="select_prompts")
