"""The rows of a batch in memory, cut into chunks of bounded size, and a chunk as tensors."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from objectives.batch import TrajectoryBatch
from tasks.data.schemas import ROUTED_EXPERTS
from tasks.policy.routing import FREE

Lists = list[npt.NDArray[np.generic]]

TEACHER_COLUMNS = ("teacher_logprobs", "teacher_topk_ids", "teacher_topk_logprobs")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Trajectories that train, as arrays per row.

    Attributes:
        ids: sample ids [N].
        prompts: token ids of each prompt.
        responses: token ids of each response.
        masks: loss mask of each response.
        advantages: [N].
        engine_logprobs: per response (nats), NaN where the engine reported none.
        teacher_logprobs: per response (nats); None without a teacher.
        teacher_topk_ids: [T, K] per response; None unless they were asked for.
        teacher_topk_logprobs: [T, K] per response; None unless they were asked for.
        routed_experts: [S - 1, R] per row, of all its tokens but the last; None unless recorded.
    """

    ids: npt.NDArray[np.int64]
    prompts: Lists
    responses: Lists
    masks: Lists
    advantages: npt.NDArray[np.float32]
    engine_logprobs: Lists
    teacher_logprobs: Lists | None = None
    teacher_topk_ids: Lists | None = None
    teacher_topk_logprobs: Lists | None = None
    routed_experts: Lists | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def widths(self) -> npt.NDArray[np.int64]:
        """Prompt and response lengths [N, 2]."""
        lengths = zip(map(len, self.prompts), map(len, self.responses), strict=True)
        return np.array(list(lengths), dtype=np.int64).reshape(-1, 2)

    @cached_property
    def prompt_numbers(self) -> list[int]:
        """A number for each row [N], the same for rows of the same prompt tokens."""
        numbers: dict[bytes, int] = {}
        return [numbers.setdefault(prompt.tobytes(), len(numbers)) for prompt in self.prompts]

    def num_training_tokens(self) -> npt.NDArray[np.int64]:
        """Return how many tokens of each row train: [N]."""
        return np.array([mask.sum() for mask in self.masks], dtype=np.int64)


def read_rows(table: pa.Table) -> Rows:
    """Take the columns that train out of an annotated table, in its order; a teacher's as well."""
    return Rows(
        ids=table["sample_id"].to_numpy(),
        prompts=token_lists(table["prompt_tokens"]),
        responses=token_lists(table["response_tokens"]),
        masks=token_lists(table["loss_mask"]),
        advantages=table["advantage"].to_numpy(),
        engine_logprobs=token_lists(table["engine_logprobs"]),
        **{name: _optional_lists(table, name) for name in (*TEACHER_COLUMNS, ROUTED_EXPERTS)},
    )


def _optional_lists(table: pa.Table, name: str) -> Lists | None:
    if name not in table.column_names or table[name].null_count:
        return None
    if pa.types.is_list(table.schema.field(name).type.value_type):
        return _matrices(table[name])
    return token_lists(table[name])


def _matrices(column: pa.ChunkedArray) -> Lists:
    """Return an array [T, K] per row; K is the same throughout."""
    rows = pa.chunked_array([chunk.flatten() for chunk in column.chunks])
    values = np.concatenate([chunk.flatten().to_numpy() for chunk in rows.chunks])
    num_tokens = pc.list_value_length(column).to_numpy()
    matrix = values.reshape(int(num_tokens.sum()), -1)
    return np.split(matrix, np.cumsum(num_tokens)[:-1])


def token_lists(column: pa.ChunkedArray) -> Lists:
    """Return every list of a column as an array of its own."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else array.type.wrap_array([])
    values = array.flatten().to_numpy(zero_copy_only=False)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    return np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []


def split_rows(num_rows: int, num_parts: int) -> list[npt.NDArray[np.int64]]:
    """Cut row numbers into consecutive mini-batches of equal size.

    Raises:
        ValueError: if the rows do not divide evenly.
    """
    if num_rows % num_parts:
        raise ValueError(
            f"{num_rows} rows do not divide into rl.mini_batches={num_parts}; change one of "
            "rollout.prompts_per_step, rollout.group_size and rl.mini_batches"
        )
    return np.split(np.arange(num_rows), num_parts)


def plan_chunks(
    widths: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], *, max_tokens: int
) -> list[npt.NDArray[np.int64]]:
    """Group rows into chunks whose padded size (rows times widest row) stays within a bound.

    Prompts and responses are padded apart. Rows are taken by length, longest first, so that a chunk
    pads little; ties keep their order, so the plan is a function of its arguments. A row that is
    wider than the bound gets a chunk of its own.

    Args:
        widths: prompt and response lengths of every row of the batch [N, 2].
        rows: the rows to plan, numbers into `widths`.
        max_tokens: most padded tokens of a chunk.
    """
    ordered = rows[np.lexsort((rows, -widths[rows].sum(1)))]
    chunks: list[list[int]] = []
    widest = (0, 0)
    for row, prompt, response in zip(ordered.tolist(), *widths[ordered].T.tolist(), strict=True):
        grown = (max(widest[0], prompt), max(widest[1], response))
        if chunks and (len(chunks[-1]) + 1) * sum(grown) <= max_tokens:
            chunks[-1].append(row)
            widest = grown
        else:
            chunks.append([row])
            widest = (prompt, response)
    return [np.array(chunk) for chunk in chunks]


def collate(rows: Rows, chunk: npt.NDArray[np.int64], device: torch.device) -> TrajectoryBatch:
    """Lay rows out as tensors: prompts padded on the left, responses on the right."""
    picked = chunk.tolist()
    responses = [rows.responses[row] for row in picked]
    masks = _pad([rows.masks[row] for row in picked], fill=False, dtype=np.bool_)
    response_tokens = _pad(responses, fill=0, dtype=np.int64)
    prompts = _pad([rows.prompts[row][::-1] for row in picked], fill=0, dtype=np.int64)[:, ::-1]
    prompt_mask = _ones([len(rows.prompts[row]) for row in picked])[:, ::-1]
    attention_mask = np.concatenate([prompt_mask, _ones([len(r) for r in responses])], 1)
    engine = [rows.engine_logprobs[row] for row in picked]

    def tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return TrajectoryBatch(
        row_ids=tensor(rows.ids[chunk]),
        input_ids=tensor(np.concatenate([prompts, response_tokens], 1)),
        attention_mask=tensor(attention_mask),
        response_tokens=tensor(response_tokens),
        loss_mask=tensor(masks),
        token_counts=tensor(masks.sum(1)),
        advantages=tensor(rows.advantages[chunk]),
        engine_logprobs=tensor(_pad(engine, fill=np.nan, dtype=np.float32)),
        **{name: tensor(array) for name, array in _teacher_arrays(rows, picked).items()},
        routed_experts=_experts(rows, picked, prompts.shape[1], device),
    )


def _experts(
    rows: Rows, picked: list[int], prompt_width: int, device: torch.device
) -> torch.Tensor | None:
    """Lay out what routers chose [B, S, R] as the tokens are; the last ones lead nowhere."""
    if rows.routed_experts is None:
        return None
    chosen = [rows.routed_experts[row] for row in picked]
    widest = max(len(rows.responses[row]) for row in picked)
    shape = (len(picked), prompt_width + widest, chosen[0].shape[1])
    laid_out = torch.full(shape, FREE, dtype=torch.int64)
    for place, (row, experts) in enumerate(zip(picked, chosen, strict=True)):
        start = prompt_width - len(rows.prompts[row])
        laid_out[place, start : start + len(experts)] = torch.from_numpy(experts)
    return laid_out.to(device)


def _teacher_arrays(rows: Rows, picked: list[int]) -> dict[str, npt.NDArray[np.generic]]:
    given = {name: getattr(rows, name) for name in TEACHER_COLUMNS}
    dtypes = {"teacher_topk_ids": np.int64}
    return {
        name: _pad([lists[row] for row in picked], fill=0, dtype=dtypes.get(name, np.float32))
        for name, lists in given.items()
        if lists is not None
    }


def _pad(lists: Lists, *, fill: object, dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    shape = (len(lists), max(map(len, lists)), *lists[0].shape[1:])
    padded = np.full(shape, fill, dtype=dtype)
    for row, values in enumerate(lists):
        padded[row, : len(values)] = values
    return padded


def _ones(lengths: list[int]) -> npt.NDArray[np.int64]:
    return (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
