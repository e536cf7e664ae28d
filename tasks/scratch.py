"""What a local run leaves in temporary directories, and when it goes.

On a cluster every task has a machine's disk of its own, and the object store its lifecycle rules.
A local run is one process, in which flytekit deletes nothing: without this, a run of a thousand
steps leaves a thousand times the tables of one.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from flytekit import FlyteContextManager, current_context

SANDBOX, CHECKPOINT = "user_space", "__cp"
"""Names that flytekit gives the working directory of a task, and a folder in it."""

DECK = "deck.html"


def sweep(run: str, step: int) -> None:
    """Delete what the steps before `step` have left between tasks, if all tasks share a process."""
    context = FlyteContextManager.current_context()
    state, access = context.execution_state, context.file_access
    if state is None or not state.is_local_execution():
        return
    from tasks.data.retention import spent_tables

    for directory in spent_tables(Path(access.raw_output_prefix), run=run, step=step):
        shutil.rmtree(directory)
    for directory in _old_decks(Path(access.local_sandbox_dir)):
        shutil.rmtree(directory)
    for directory in _empty_sandboxes(Path(current_context().working_directory)):
        (directory / CHECKPOINT).rmdir()
        directory.rmdir()


def _old_decks(root: Path) -> list[Path]:
    """Return the directories of all decks but the newest; the run's own report stays with it."""
    decks = sorted(root.glob(f"*/{DECK}"), key=lambda path: path.stat().st_mtime_ns)
    return [path.parent for path in decks[:-1]]


def _empty_sandboxes(own: Path) -> Iterator[Path]:
    """Yield working directories that tasks left empty, but not that of a task still running.

    The name of a task's directory continues that of the dynamic task that it is part of.
    """
    for path in own.parent.glob(f"{SANDBOX}?*"):
        if not own.name.startswith(path.name) and list(path.rglob("*")) == [path / CHECKPOINT]:
            yield path
