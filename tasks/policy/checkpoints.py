"""Published checkpoints: whole or absent, whatever happens while one is written.

A checkpoint is a directory `step-000012` with `weights/` (a Hugging Face directory),
`trainer_state/` and `manifest.json`. It is written under a temporary name, synced, given its
manifest last and then renamed, so a reader never meets half of one.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tasks.policy.digests import file_digest
from tasks.policy.files import PolicyFiles

MANIFEST = "manifest.json"
MANIFEST_DIGEST = "manifest_digest"
PREFIX = "step-"
WEIGHTS, TRAINER_STATE = "weights", "trainer_state"
UNFINISHED = ".unfinished-"
DAMAGED = "damaged-"

Lineage = Mapping[str, object]
"""What a run must share with the checkpoint that it continues from: flat JSON values."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A published policy.

    Attributes:
        path: its directory.
        step: the next step to train.
        policy: its files.
        lineage: what a run that continues from it must share.
        mlflow_run_id: the tracking run that it belongs to.
    """

    path: Path
    step: int
    policy: PolicyFiles
    lineage: Lineage
    mlflow_run_id: str


def publish(
    root: Path, policy: PolicyFiles, *, step: int, lineage: Lineage, mlflow_run_id: str
) -> Checkpoint:
    """Copy a policy into `root/step-<step>` atomically; an equal one already there is kept.

    Args:
        root: the run's `checkpoints` directory.
        policy: what to publish.
        step: the next step to train.
        lineage: what a run that continues from it must share.
        mlflow_run_id: the tracking run.
    """
    target = root / f"{PREFIX}{step:06d}"
    found = read(target)
    if found is not None and found.policy.key == policy.key:
        return found
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    unfinished = root / f"{UNFINISHED}{target.name}"
    _fill(unfinished, policy)
    body = {
        "step": step,
        "version": policy.version,
        "digest": policy.digest,
        "state_digest": policy.state_digest,
        "lineage": dict(lineage),
        "mlflow_run_id": mlflow_run_id,
        "files": {
            str(path.relative_to(unfinished)): file_digest(path) for path in _files(unfinished)
        },
    }
    manifest = {**body, MANIFEST_DIGEST: _body_digest(body)}
    _write_synced(unfinished / MANIFEST, json.dumps(manifest, indent=2).encode())
    _sync_directory(unfinished)
    _swap_in(unfinished, target)
    return cast("Checkpoint", read(target))


def read(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a directory, or None if it is absent, partial or altered.

    A copy under the number of another step is none: it would pass for a newer one.
    """
    body = _intact_manifest(path)
    if body is None or (_number(path).isdecimal() and body["step"] != _step(path)):
        return None
    policy = PolicyFiles(
        version=body["version"],
        digest=body["digest"],
        state_digest=body["state_digest"],
        weights=path / WEIGHTS,
        trainer_state=path / TRAINER_STATE,
    )
    return Checkpoint(
        path=path,
        step=body["step"],
        policy=policy,
        lineage=body["lineage"],
        mlflow_run_id=body["mlflow_run_id"],
    )


def _intact_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest's body if it and all files that it lists are as they were written."""
    try:
        body = json.loads((path / MANIFEST).read_text())
        if not isinstance(body, dict) or body.pop(MANIFEST_DIGEST, None) != _body_digest(body):
            return None
        intact = all(file_digest(path / name) == digest for name, digest in body["files"].items())
    except (OSError, RecursionError, ValueError):
        return None
    return body if intact else None


def _body_digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def newest(root: Path) -> Checkpoint | None:
    """Return the newest checkpoint under `root` whose manifest verifies."""
    found = (read(path) for path in reversed(paths(root)))
    return next((checkpoint for checkpoint in found if checkpoint is not None), None)


def recover(root: Path) -> tuple[Checkpoint | None, list[Path]]:
    """Return the newest intact checkpoint, and where the newer ones that are damaged now lie.

    They are renamed, so that none of them is taken for one of the newest that are kept.
    """
    aside = []
    for path in reversed(paths(root)):
        found = read(path)
        if found is not None:
            return found, aside
        aside.append(_set_aside(path))
    return None, aside


def _set_aside(path: Path) -> Path:
    number = 1
    while (target := path.with_name(f"{DAMAGED}{path.name}.{number}")).exists():
        number += 1
    return path.rename(target)


def paths(root: Path) -> list[Path]:
    """Return the published directories under `root`, oldest first."""
    found = root.glob(f"{PREFIX}*") if root.is_dir() else ()
    return sorted((path for path in found if _number(path).isdecimal()), key=_step)


def _number(path: Path) -> str:
    return path.name.removeprefix(PREFIX)


def _step(path: Path) -> int:
    return int(_number(path))


def prune(root: Path, *, keep_last: int, keep_every: int) -> None:
    """Delete all but the newest `keep_last` checkpoints and those of every `keep_every`-th step."""
    for path in paths(root)[:-keep_last]:
        step = _step(path)
        if keep_every == 0 or step % keep_every:
            _delete(path)


def sweep(root: Path) -> None:
    """Delete what a killed process has left half-written."""
    for path in root.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path)


def difference(stored: Lineage, wanted: Lineage) -> list[str]:
    """Return one line for each key in which two lineages differ."""
    keys = sorted(stored.keys() | wanted.keys())
    return [
        f"{key}: the checkpoint has {stored.get(key)!r}, this run has {wanted.get(key)!r}"
        for key in keys
        if stored.get(key) != wanted.get(key)
    ]


def require_lineage(checkpoint: Checkpoint, wanted: Lineage, *, section: str = "rl") -> None:
    """Refuse to continue another kind of run; `section` is where `resume` is set.

    Raises:
        ValueError: listing every key that differs.
    """
    lines = difference(checkpoint.lineage, wanted)
    if lines:
        raise ValueError(
            f"cannot resume from {checkpoint.path}:\n"
            + "\n".join(f"  {line}" for line in lines)
            + "\nrestore these settings, choose another job.name, or start over with "
            f"{section}.resume=off"
        )


def _fill(unfinished: Path, policy: PolicyFiles) -> None:
    for name, source in ((WEIGHTS, policy.weights), (TRAINER_STATE, policy.trainer_state)):
        (unfinished / name).mkdir(parents=True)
        for path in _files(source):
            _copy_synced(path, unfinished / name / path.relative_to(source))
        _sync_directory(unfinished / name)


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def _copy_synced(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer)
        writer.flush()
        os.fsync(writer.fileno())


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap_in(unfinished: Path, target: Path) -> None:
    """Put the finished directory in place; one that did not verify makes way for it."""
    if target.exists():
        _delete(target)
    unfinished.rename(target)
    _sync_directory(target.parent)


def _delete(path: Path) -> None:
    """Take a checkpoint out of sight at once, then delete it."""
    condemned = path.with_name(f"{UNFINISHED}deleting-{path.name}")
    path.rename(condemned)
    shutil.rmtree(condemned)
