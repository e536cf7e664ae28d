"""Small tables of evaluated prompts, and evaluations kept on disk."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.data.arrow import write_table
from tasks.data.schemas import OUTCOMES
from tasks.evaluation.record import OUTCOMES_FILE, RECORD_FILE, Kept, Record, read_evaluation

RECORD = Record(
    origin="initial",
    step=0,
    policy_digest="d" * 64,
    prompts="f" * 64,
    reward={"provider": "exact_match", "correct_part": "exact_match"},
    sampling={"num_samples": 1, "temperature": 0.0, "seed": 0},
    pass_at=[],
    metrics={"val/accuracy": 0.5},
)


def outcome_rows(**columns: list[Any]) -> pa.Table:
    """Two prompts, one right response each, unless columns say otherwise."""
    num_rows = len(next(iter(columns.values()), [0, 0]))
    rows = list(range(num_rows))
    values = {
        "group_id": rows,
        "prompt_id": [f"p{row}" for row in rows],
        "source": ["arithmetic"] * num_rows,
        "prompt_text": [f"{row}+1=" for row in rows],
        "answer": [str(row + 1) for row in rows],
        "num_samples": [1] * num_rows,
        "num_judged": columns.get("num_samples", [1] * num_rows),
        "num_correct": [1] * num_rows,
        "num_error": [0] * num_rows,
        "num_timeout": [0] * num_rows,
        "num_truncated": [0] * num_rows,
        "num_tokens": [1] * num_rows,
        "mean_reward": [1.0] * num_rows,
        "pass_at": [[] for _ in rows],
    }
    return pa.table({**values, **columns}, schema=OUTCOMES)


def kept(folder: Path, table: pa.Table, **fields: Any) -> Kept:
    """Write an evaluation and read it back."""
    write_table(folder / OUTCOMES_FILE, table)
    (folder / RECORD_FILE).write_text(json.dumps(asdict(replace(RECORD, **fields))))
    return read_evaluation(folder)
