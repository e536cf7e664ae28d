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
    """Return a JSON object, or an empty one if the file does not exist.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged: {error}; delete it to go on from the newest checkpoint, in a new "
            "MLflow run"
        ) from error
