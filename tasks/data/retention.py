"""Which tables between tasks are of no more use."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tasks.data.arrow import FILE_NAME
from tasks.data.schemas import read_stamp


def spent_tables(root: Path, *, run: str, step: int) -> Iterator[Path]:
    """Yield the directories under `root` that hold a table of an earlier step than `step`.

    A table says itself, in its stamp, which run and step it is of; one without a stamp, such as a
    pool of prompts, is of no step and stays.
    """
    for path in root.glob(f"*/{FILE_NAME}"):
        with pa.memory_map(str(path)) as source:
            stamp = read_stamp(pa.ipc.open_file(source))
        if stamp.get("run") == run and int(stamp["step"]) < step:
            yield path.parent
