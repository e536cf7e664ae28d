"""Small trajectory tables with keyword defaults, in the exact schemas."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tasks.data.schemas import ANNOTATED, PROMPTS, ROLLOUTS, SCORED


def _values(num_rows: int, group_size: int, num_tokens: int) -> dict[str, list]:
    return {
        "group_id": [row // group_size for row in range(num_rows)],
        "prompt_id": [f"p{row // group_size}" for row in range(num_rows)],
        "source": ["arithmetic"] * num_rows,
        "prompt_tokens": [[4, 5, 6]] * num_rows,
        "prompt_text": ["07+45="] * num_rows,
        "answer": ["052"] * num_rows,
        "payload": [""] * num_rows,
        "sample_id": list(range(100, 100 + num_rows)),
        "sample_index": [row % group_size for row in range(num_rows)],
        "response_tokens": [[row + 1] * num_tokens for row in range(num_rows)],
        "engine_logprobs": [[-0.5] * num_tokens for _ in range(num_rows)],
        "response_text": ["052"] * num_rows,
        "finish_reason": ["stop"] * num_rows,
        "policy_version": [7] * num_rows,
        "policy_digest": ["d"] * num_rows,
        "reward": [float(row % 2) for row in range(num_rows)],
        "reward_parts": [[("exact_match", float(row % 2))] for row in range(num_rows)],
        "reward_status": ["ok"] * num_rows,
        "reward_detail": [""] * num_rows,
        "advantage": [0.5] * num_rows,
        "loss_mask": [[True] * num_tokens for _ in range(num_rows)],
        "annotations": [""] * num_rows,
    }


def build(
    schema: pa.Schema,
    num_rows: int = 4,
    *,
    group_size: int = 2,
    num_tokens: int = 3,
    **columns: Sequence[Any],
) -> pa.Table:
    """Return a valid table of `schema`; keywords replace whole columns."""
    values = {**_values(num_rows, group_size, num_tokens), **columns}
    return pa.table({name: values[name] for name in schema.names}, schema=schema)


def prompts(num_rows: int = 3) -> pa.Table:
    return build(PROMPTS, num_rows, group_size=1)


def rollouts(num_rows: int = 4, **columns: Any) -> pa.Table:
    return build(ROLLOUTS, num_rows, **columns)


def scored(num_rows: int = 4, **columns: Any) -> pa.Table:
    return build(SCORED, num_rows, **columns)


def annotated(num_rows: int = 4, **columns: Any) -> pa.Table:
    return build(ANNOTATED, num_rows, **columns)
