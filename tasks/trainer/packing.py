"""Shared-prompt packing: responses to one prompt behind a single copy of it.

A pack is a sequence of the prompt and several of its responses. Every response sees the prompt and
itself alone, at the positions that it would have by itself, so its hidden states are those of the
plain layout, and the prompt is computed once instead of once per response.

Dimensions: `B` rows, `S` prompt plus response positions, `T` response positions, `N` response
tokens without padding, `G` packs, `L` positions of a pack.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from objectives.batch import TrajectoryBatch
from tasks.trainer.rows import Rows, plan_chunks

PROMPT, PADDING = -1, -2
"""What stands in `Packed.segments` where no row's response does."""


class Row(NamedTuple):
    """What packing needs to know of a row: which prompt it answers, and its lengths."""

    prompt: int
    prompt_length: int
    response_length: int


class Packed(NamedTuple):
    """Packs as the inputs of a decoder.

    Attributes:
        input_ids: [G, L] token ids.
        positions: [G, L] position of every token in its own prompt and response.
        segments: [G, L] the row whose response a token is of, or `PROMPT`, or `PADDING`.
        predictors: [N] index into the flattened [G * L] of the token that predicts each response
            token, rows in their order.
        sources: [G, L] index of a token into the flattened [B * S] of the batch; any at padding.
    """

    input_ids: Tensor
    positions: Tensor
    segments: Tensor
    predictors: Tensor
    sources: Tensor


def attention_mask(segments: Tensor) -> Tensor:
    """Return which token may see which, [G, 1, L, L] bool; padding sees itself alone.

    Args:
        segments: [G, L], as in `Packed`.
    """
    queries, keys = segments[:, :, None], segments[:, None, :]
    width = segments.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    own = torch.eye(width, dtype=torch.bool, device=segments.device)
    seen = causal & ((queries == keys) | (keys == PROMPT)) & (keys != PADDING)
    return (seen | own)[:, None]


def split_packs(
    rows: Sequence[Row], *, attention_scale: float, max_tokens: float = inf
) -> list[list[int]]:
    """Cut rows into packs: neighbours that answer the same prompt, while that is cheaper.

    A sequence of `L` tokens costs `L * (1 + L / attention_scale)`: attention scores of a pack are
    computed for all pairs of its tokens, so long responses are better left apart.

    Args:
        rows: in the order in which they are to be packed.
        attention_scale: length at which attention costs as much as the rest of a layer.
        max_tokens: most tokens of a pack; a longer row gets one of its own.

    >>> rows = [Row(7, 10, 600), Row(7, 10, 600), Row(8, 10, 600)]
    >>> split_packs(rows, attention_scale=1e6)
    [[0, 1], [2]]
    >>> split_packs(rows, attention_scale=3e3)
    [[0], [1], [2]]
    """
    packs: list[list[int]] = []
    width, prompt = 0, None
    for index, row in enumerate(rows):
        alone = row.prompt_length + row.response_length
        joined = width + row.response_length
        extra = joined**2 - width**2 - alone**2
        is_cheaper = extra < attention_scale * row.prompt_length
        if row.prompt == prompt and is_cheaper and joined <= max_tokens:
            packs[-1].append(index)
            width = joined
        else:
            packs.append([index])
            width, prompt = alone, row.prompt
    return packs


def plan_rows(
    rows: Rows, picked: npt.NDArray[np.int64], attention_scale: float, *, max_tokens: int
) -> list[npt.NDArray[np.int64]]:
    """Group some rows into chunks of bounded size, those that share a prompt side by side.

    Args:
        rows: of a batch.
        picked: the ones to plan, numbers into `rows`.
        attention_scale: as in `split_packs`; 0: by length alone.
        max_tokens: most padded tokens of a chunk.
    """
    if not attention_scale:
        return plan_chunks(rows.widths, picked, max_tokens=max_tokens)
    described = [
        Row(rows.prompt_numbers[row], len(rows.prompts[row]), len(rows.responses[row]))
        for row in picked.tolist()
    ]
    chunks = plan_packs(described, attention_scale=attention_scale, max_tokens=max_tokens)
    return [picked[chunk] for chunk in chunks]


def plan_packs(rows: Sequence[Row], *, attention_scale: float, max_tokens: int) -> list[list[int]]:
    """Group rows into chunks whose packs, padded to the widest, stay within a bound.

    Rows that share a prompt come together, longest response first; packs are taken by width, widest
    first, so that a chunk pads little. Ties keep their order: the plan is a function of its
    arguments.

    Args:
        rows: any rows.
        attention_scale: as in `split_packs`.
        max_tokens: most padded tokens of a chunk.

    Returns:
        Indices into `rows`, chunk by chunk, those of a pack side by side.
    """
    order = sorted(range(len(rows)), key=lambda row: (rows[row].prompt, -rows[row].response_length))
    sorted_rows = [rows[row] for row in order]
    packs = split_packs(sorted_rows, attention_scale=attention_scale, max_tokens=max_tokens)
    widths = [_width(sorted_rows, members) for members in packs]
    chunks: list[list[int]] = []
    num_packs = widest = 0
    for number in sorted(range(len(packs)), key=lambda number: -widths[number]):
        if not chunks or (num_packs + 1) * widest > max_tokens:
            chunks.append([])
            num_packs, widest = 0, widths[number]
        chunks[-1] += [order[row] for row in packs[number]]
        num_packs += 1
    return chunks


def _width(rows: Sequence[Row], members: list[int]) -> int:
    return rows[members[0]].prompt_length + sum(rows[row].response_length for row in members)


def pack(batch: TrajectoryBatch, *, attention_scale: float) -> Packed:
    """Return the packs of a batch, whose neighbouring rows are those that share a prompt."""
    num_columns = batch.input_ids.shape[1]
    num_prompt = num_columns - batch.response_tokens.shape[1]
    prompts = batch.input_ids[:, :num_prompt]
    prompt_mask = batch.attention_mask[:, :num_prompt].bool()
    response_mask = batch.response_mask.bool()
    rows = _describe(prompts, prompt_mask, response_mask)
    packs = split_packs(rows, attention_scale=attention_scale)
    pack_of_B, start_of_B, width = (value.to(prompts.device) for value in _places(rows, packs))

    shape = (len(packs), int(width))
    sources, positions = (prompts.new_zeros(shape) for _ in range(2))
    segments = prompts.new_full(shape, PADDING)

    leaders = torch.tensor([members[0] for members in packs], device=prompts.device)
    pack_P, column_P = prompt_mask[leaders].nonzero().unbind(1)
    place_P = column_P - num_prompt + prompt_mask[leaders].sum(1)[pack_P]
    sources[pack_P, place_P] = leaders[pack_P] * num_columns + column_P
    positions[pack_P, place_P] = place_P
    segments[pack_P, place_P] = PROMPT

    row_N, offset_N = response_mask.nonzero().unbind(1)
    pack_N, place_N = pack_of_B[row_N], start_of_B[row_N] + offset_N
    prompt_length_N = prompt_mask.sum(1)[row_N]
    sources[pack_N, place_N] = row_N * num_columns + num_prompt + offset_N
    positions[pack_N, place_N] = prompt_length_N + offset_N
    segments[pack_N, place_N] = row_N
    before_N = torch.where(offset_N == 0, prompt_length_N, place_N) - 1
    input_ids, predictors = batch.input_ids.take(sources), pack_N * shape[1] + before_N
    return Packed(input_ids, positions, segments, predictors, sources)


def _describe(prompts: Tensor, prompt_mask: Tensor, response_mask: Tensor) -> list[Row]:
    tokens = torch.where(prompt_mask, prompts, -1)
    _, prompt_of_B = torch.unique(tokens, dim=0, return_inverse=True)
    columns = (prompt_of_B, prompt_mask.sum(1), response_mask.sum(1))
    return [Row(*values) for values in torch.stack(columns, 1).tolist()]


def _places(rows: Sequence[Row], packs: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's pack, where its response starts in it, and the width of the widest."""
    pack_of, start_of = [0] * len(rows), [0] * len(rows)
    widest = 0
    for number, members in enumerate(packs):
        width = rows[members[0]].prompt_length
        for row in members:
            pack_of[row], start_of[row] = number, width
            width += rows[row].response_length
        widest = max(widest, width)
    return torch.tensor(pack_of), torch.tensor(start_of), torch.tensor(widest)
