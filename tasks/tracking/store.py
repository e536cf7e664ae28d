"""Where runs are recorded: an MLflow store under the output root, or the one the user names."""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.tracking.quiet import quieten

if TYPE_CHECKING:
    from mlflow import MlflowClient

SQLITE = "sqlite:///"
DATABASE_NAME = "mlflow.db"
ARTIFACTS_NAME = "mlartifacts"


def store_uri(uri: str, output_root: str | Path) -> str:
    """Return the absolute tracking URI; an empty `uri` means `<output_root>/mlflow.db`.

    Relative paths are resolved here, once, against the current directory.
    """
    if not uri:
        return f"{SQLITE}{Path(output_root).resolve() / DATABASE_NAME}"
    if uri.startswith(SQLITE):
        return f"{SQLITE}{Path(uri.removeprefix(SQLITE)).resolve()}"
    return uri


def open_store(uri: str, output_root: str | Path) -> "MlflowClient":
    """Return a client of the store, whose database is created first if there is none.

    Safe to call from several processes at once, and cheap to call again in one: the client of a
    URI is kept. Artifacts of a local database go to `mlartifacts` beside it, so nothing is written
    to the current directory.

    Args:
        uri: `tracking.uri`: empty for the default store, else any MLflow tracking URI.
        output_root: `job.output_root`; read only when `uri` is empty.
    """
    return _open(store_uri(uri, output_root))


@cache
def _open(uri: str) -> "MlflowClient":
    quieten()
    from mlflow import MlflowClient

    if uri.startswith(SQLITE):
        database = Path(uri.removeprefix(SQLITE))
        _initialise(database)
        _relax_fsync(database)
    return MlflowClient(tracking_uri=uri)


def artifact_location(client: "MlflowClient") -> str | None:
    """Return where a new experiment keeps its files; None leaves that to the tracking server."""
    if not client.tracking_uri.startswith(SQLITE):
        return None
    return str(Path(client.tracking_uri.removeprefix(SQLITE)).with_name(ARTIFACTS_NAME))


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _initialise(database: Path) -> None:
    """Create the database unless it exists; it appears complete or not at all.

    mlflow runs some sixty migrations at first use and two processes that do so at once both fail;
    a kill between two of them leaves a database that can neither be used nor upgraded. Hence a lock
    and a sibling that is renamed when it is whole.
    """
    database.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(database.with_name(f"{database.name}.lock")):
        if database.exists():
            return
        unfinished = database.with_name(f"{database.name}.unfinished")
        unfinished.unlink(missing_ok=True)
        _migrate(unfinished, database.with_name(ARTIFACTS_NAME))
        unfinished.rename(database)


def _migrate(database: Path, artifacts: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(f"{SQLITE}{database}", str(artifacts))
    store.engine.dispose()
    with closing(sqlite3.connect(database)) as connection:
        # Kept in the file: a step is appended to one log instead of rewriting pages twice.
        connection.execute("PRAGMA journal_mode = WAL")


def _relax_fsync(database: Path) -> None:
    """Let commits to this database skip the fsync, for connections made from now on.

    With a write-ahead log, `NORMAL` keeps every commit when the process is killed, and keeps the
    database sound when the machine dies; only the last commits before a power cut may be lost. A
    database whose owner chose another journal keeps its settings.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def relax(connection: object, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection) and _is_logged(connection, database):
            connection.execute("PRAGMA synchronous = NORMAL")

    event.listen(Engine, "connect", relax)


def _is_logged(connection: sqlite3.Connection, database: Path) -> bool:
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return path == str(database) and mode == "wal"
