"""Problems read from JSON lines or Parquet, on disk or on any store that fsspec opens."""

import json
import math
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TypeGuard, TypeVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.data import Data, PromptSource
from tasks.data.problems import Problem, Problems

Item = TypeVar("Item")


def file_problems(data: Data) -> Problems:
    """Return the problems of `data.path`, and those of `data.held_out_path` or a random part of it.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: naming the file and row that cannot be used, or if too few rows are left.
    """
    return Problems(*both_parts(data, lambda path: read_problems(path, data)))


def both_parts(
    data: PromptSource, read: Callable[[str], list[Item]]
) -> tuple[list[Item], list[Item]]:
    """Return what `read` makes of the training file, and of the held-out file or a random part.

    Raises:
        ValueError: if no row is left to train on.
    """
    rows = read(data.path)
    if data.held_out_path:
        held_out = read(data.held_out_path)
        for part, path in ((rows, data.path), (held_out, data.held_out_path)):
            if not part:
                raise ValueError(f"{path} has no rows")
        return rows, held_out
    if data.num_held_out >= len(rows):
        raise ValueError(
            f"data.num_held_out={data.num_held_out} leaves nothing of the {len(rows)} rows of "
            f"{data.path} to train on; lower it or set data.held_out_path"
        )
    order = np.random.Generator(np.random.PCG64(data.seed)).permutation(len(rows)).tolist()
    shuffled = [rows[index] for index in order]
    return shuffled[: -data.num_held_out], shuffled[-data.num_held_out :]


def read_problems(path: str, data: Data) -> list[Problem]:
    """Return every row of a file as a problem, in the file's order.

    The whole row travels along as JSON in `payload`, so that a reward can read other columns.
    """
    name = PurePosixPath(path).name
    return [
        Problem(
            problem_id=f"{name}/{number}",
            source=name,
            text=_text(row, data.prompt_field, path, number),
            answer=_text(row, data.answer_field, path, number),
            payload=json.dumps(row, ensure_ascii=False, default=str),
        )
        for number, row in enumerate(read_objects(path))
    ]


def read_objects(path: str) -> list[dict[str, object]]:
    """Return the rows of a file of JSON lines or Parquet, in its order."""
    with fsspec.open(path, "rb") as file:
        content = file.read()
    if path.endswith(".parquet"):
        try:
            return pq.read_table(pa.BufferReader(content)).to_pylist()
        except pa.ArrowException as error:
            raise ValueError(f"{path}: not a Parquet file that can be read ({error})") from error
    if path.endswith((".jsonl", ".json")):
        return [_json_row(line, path, n) for n, line in enumerate(content.splitlines()) if line]
    raise ValueError(f"data.path={path!r}: expected a file that ends in .jsonl or .parquet")


def _json_row(line: bytes, path: str, number: int) -> dict[str, object]:
    try:
        row = json.loads(line, parse_constant=_no_json)
        if b"\\u" in line:  # the only way to spell half of a surrogate pair
            row = json.loads(_valid(json.dumps(row, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number + 1}: not valid JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(  # noqa: TRY004
            f"{path}, line {number + 1}: expected a JSON object, got {type(row).__name__}"
        )
    return row


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value; write null")


def _valid(text: str) -> str:
    """Return the text with a question mark for every half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def _text(row: dict[str, object], field: str, path: str, number: int) -> str:
    """Return a field as text; a whole number without decimals, which a column with gaps adds."""
    value = row.get(field)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) or (_is_number(value) and math.isfinite(value)):
        text = _valid(str(value))
        if text.strip():
            return text
    raise ValueError(
        f"{path}, row {number}: field {field!r} is {value!r}, expected text; the row has "
        f"{sorted(row)}: set data.prompt_field and data.answer_field"
    )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
