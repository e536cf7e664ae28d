"""One process at a time trains a run; the system lets go of the lock however that process ends."""

import fcntl
import os
from io import TextIOWrapper
from pathlib import Path

_held: dict[Path, TextIOWrapper] = {}


def hold(directory: Path) -> None:
    """Keep other processes from opening the run in `directory` for as long as this one lives.

    Where every task is a process of its own, the orchestrator keeps executions apart, and the lock
    lasts no longer than the task that opens the run.

    Raises:
        ValueError: if another process holds it, naming that process.
    """
    path = directory.with_name(f".{directory.name}.lock")
    if path in _held:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise ValueError(
            f"process {holder} is training the run in {directory}; wait for it, stop it, or choose "
            "another job.name"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    _held[path] = file
