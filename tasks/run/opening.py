"""The first thing a run does: find where it starts, and open its tracking run."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from configs.plan import AnyConfig, to_yaml
from tasks.policy import checkpoints
from tasks.policy.checkpoints import Checkpoint
from tasks.run.files import RUN_FILE, read_json, write_text
from tasks.run.lineage import lineage
from tasks.run.lock import hold
from tasks.tracking.metrics import history
from tasks.tracking.runs import abandon, create_run, reopen_run, run_tags
from tasks.tracking.store import open_store

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from objectives.objective import Objective


def open_training_run(
    config: AnyConfig, objective: "Objective", fingerprint: str, resume_from: str
) -> dict[str, object]:
    """Find the starting point, open the MLflow run and write the run's own files.

    Args:
        config: the run's.
        objective: whose identity the run is tied to.
        fingerprint: of its prompts or pairs.
        resume_from: a checkpoint of any run to start from if this one has none of its own.

    Returns:
        The fields of `tasks.handle.Run`.

    Raises:
        ValueError: if the checkpoint to continue from belongs to another kind of run.
    """
    started = time.time()
    directory = Path(config.directory).resolve()
    hold(directory)
    if config.schedule.resume == "off":
        set_aside(directory, config.schedule_name)
    digest = objective.identity_digest()
    wanted = lineage(config, objective.identity, fingerprint)
    start = starting_point(directory, resume_from, wanted, section=config.schedule_name)
    _tell_start(start, config.schedule.max_steps, config.schedule_name)
    client = open_store(config.tracking.uri, config.job.output_root)
    tags = _tags(config, digest, fingerprint)
    run_id = _tracking_run(client, config, directory, start, tags)
    fields = {
        "mlflow_run_id": run_id,
        "directory": str(directory),
        "start_step": start.step if start else 0,
        "checkpoint": str(start.path) if start else "",
        "identity": digest,
        "lineage": json.dumps(wanted),
        "opened_at": time.time(),
        "elapsed_before_s": _elapsed(client, run_id, start),
        "setup_s": time.time() - started,
    }
    write_text(directory / RUN_FILE, json.dumps(fields, indent=2))
    write_text(directory / "config.json", config.model_dump_json(indent=2))
    return fields


def set_aside(directory: Path, section: str) -> None:
    """Rename the directory of an earlier run of this name, so that nothing of it is lost."""
    if not directory.exists():
        return
    number = 1
    while (target := directory.with_name(f"{directory.name}.{number}")).exists():
        number += 1
    directory.rename(target)
    print(f"{section}.resume=off: the earlier run now lies in {target}")


def starting_point(
    directory: Path, resume_from: str, wanted: Mapping[str, object], *, section: str = "rl"
) -> Checkpoint | None:
    """Return the run's newest intact checkpoint, else the one asked for, else None.

    Newer ones that are damaged are renamed, and named to the user.

    Raises:
        ValueError: if it belongs to another kind of run, or `resume_from` is no checkpoint.
    """
    found, damaged = checkpoints.recover(directory / "checkpoints")
    for path in damaged:
        print(f"warning: a checkpoint was damaged, and is passed over; it now lies in {path}")
    if found is None and resume_from:
        found = checkpoints.read(Path(resume_from).resolve())
        if found is None:
            raise ValueError(
                f"resume_from={resume_from!r} is not an intact checkpoint; expected a directory "
                f"step-NNNNNN with a {checkpoints.MANIFEST} that verifies"
            )
    if found is not None:
        checkpoints.require_lineage(found, wanted, section=section)
    return found


def _tell_start(start: Checkpoint | None, num_steps: int, section: str) -> None:
    if start is None:
        print(f"starting with the first of {num_steps} steps")
        return
    if start.step < num_steps:
        print(f"continuing after step {start.step} of {num_steps}, from {start.path}")
    else:
        print(
            f"nothing left to train: {start.path} has all {num_steps} steps; "
            f"raise {section}.max_steps to go on, or set {section}.resume=off to start over"
        )


def _tracking_run(
    client: "MlflowClient",
    config: AnyConfig,
    directory: Path,
    start: Checkpoint | None,
    tags: Mapping[str, str],
) -> str:
    """Continue the tracking run of this directory, or create one."""
    text, params = to_yaml(config), config.model_dump()
    own = read_json(directory / RUN_FILE).get("mlflow_run_id", "")
    continued = start is not None and start.path.is_relative_to(directory)
    if own and continued:
        reopen_run(client, str(own), params=params, tags=tags, config_text=text)
        return str(own)
    if own:
        abandon(client, str(own))
    return create_run(
        client,
        experiment=config.tracking.experiment,
        run_name=config.job.name,
        params=params,
        tags=tags,
        config_text=text,
    )


def _tags(config: AnyConfig, digest: str, fingerprint: str) -> dict[str, str]:
    return run_tags(
        algorithm=config.algorithm,
        objective_identity=digest,
        data_fingerprint=fingerprint,
        code_version=code_version(),
        flyte_execution=os.environ.get("FLYTE_INTERNAL_EXECUTION_ID", "local"),
        seed=config.job.seed,
    )


def _elapsed(client: "MlflowClient", run_id: str, start: Checkpoint | None) -> float:
    if start is None:
        return 0.0
    points = dict(history(client, run_id, "perf/elapsed_s"))
    return points.get(start.step - 1, 0.0)


def code_version() -> str:
    """Return the commit of this checkout, marked if it was changed since; `unknown` without git."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=here, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
