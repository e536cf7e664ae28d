"""Small files of a run's directory, written whole or not at all."""

import json
import os
from pathlib import Path

RUN_FILE = "run.json"


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a restart after a kill, sees the old text or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, object]:
    """Return a JSON object, or an empty one if the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
