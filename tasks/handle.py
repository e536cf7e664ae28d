"""The handles that tasks pass: a policy by its directories, and the run that it belongs to."""

import shutil
from pathlib import Path

from flytekit import FlyteContextManager
from flytekit.types.directory import FlyteDirectory
from pydantic import BaseModel, ConfigDict

from tasks.policy.files import PolicyFiles


class Policy(BaseModel):
    """One version of the policy; its directories are never written twice."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    """Updates that it has behind it; rows that it sampled carry this number."""

    step: int
    """The next step to train."""

    digest: str
    """SHA-256 of the weight files."""

    state_digest: str
    """Digest of the trainer state; empty before the first update."""

    identity: str
    """Digest of the objective that trained it; empty before the first update."""

    weights: FlyteDirectory
    """A Hugging Face directory."""

    trainer_state: FlyteDirectory
    """The optimizer's state."""

    def local(self) -> PolicyFiles:
        """Return the policy on local disk, downloaded first where it is elsewhere."""
        return PolicyFiles(
            version=self.version,
            digest=self.digest,
            state_digest=self.state_digest,
            weights=Path(self.weights.download()),
            trainer_state=self._local_state(),
        )

    def _local_state(self) -> Path:
        """Before the first update there is none, and an object store has no empty directories."""
        if self.state_digest or not _stores_remotely():
            return Path(self.trainer_state.download())
        access = FlyteContextManager.current_context().file_access
        return Path(access.get_random_local_directory())


class Run(BaseModel):
    """What tasks need to know of the run that they are part of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mlflow_run_id: str
    """The tracking run; empty: nothing is tracked."""

    directory: str
    """Absolute path of the run's directory."""

    start_step: int
    """The first step of this execution; above 0 after a resume."""

    checkpoint: str
    """The checkpoint that this execution starts from; empty: the initial policy."""

    identity: str
    """Digest of the objective's identity."""

    lineage: str
    """JSON of what a run must share with a checkpoint that it continues from."""

    opened_at: float
    """When this execution opened the run, in seconds since the epoch."""

    elapsed_before_s: float
    """Seconds that earlier executions of the run took, up to the step resumed from."""

    setup_s: float
    """Seconds that opening the run took, imports and the tracking database included."""


def handle(files: PolicyFiles, *, step: int, identity: str) -> Policy:
    """Return the handle of a policy that is on disk for good (a checkpoint, the initial one)."""
    return Policy(
        version=files.version,
        step=step,
        digest=files.digest,
        state_digest=files.state_digest,
        identity=identity,
        weights=in_place(files.weights),
        trainer_state=in_place(files.trainer_state),
    )


def in_place(path: Path) -> FlyteDirectory:
    """Return a directory by reference where the store is a disk, else as something to upload."""
    if _stores_remotely():
        return FlyteDirectory(str(path))
    return FlyteDirectory(str(path), remote_directory=False)


def new_directory() -> Path:
    """Return a fresh empty directory whose content can be handed on without a copy.

    On a local store it lies among the task's raw outputs; on an object store it is a scratch
    directory that is uploaded once.
    """
    access = FlyteContextManager.current_context().file_access
    remote = _stores_remotely()
    path = access.get_random_local_directory() if remote else access.get_random_remote_directory()
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def release(policy: Policy) -> None:
    """Delete the directories of a superseded hand-off between two tasks.

    Only what `new_directory` made on a local store goes; checkpoints, models of the user and
    everything on an object store (which has its own lifecycle rules) stay.
    """
    access = FlyteContextManager.current_context().file_access
    if _stores_remotely():
        return
    scratch = Path(access.raw_output_prefix).resolve()
    for directory in (policy.weights, policy.trainer_state):
        path = Path(directory.path).resolve()
        if path.is_relative_to(scratch) and path.is_dir():
            shutil.rmtree(path)


def _stores_remotely() -> bool:
    access = FlyteContextManager.current_context().file_access
    return access.is_remote(access.raw_output_prefix)
