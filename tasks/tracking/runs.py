"""One MLflow run per training run: created once, reopened by id, closed with a status."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, get_args

from tasks.tracking.metrics import forget
from tasks.tracking.store import artifact_location

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]

CONFIG_FILE = "config.yaml"
CONFIG_DIGEST = "config_digest"
CONFIG_DIFF = "config_diff"
MAX_PARAM_CHARS = 500
MAX_TAG_CHARS = 5000  # what REST stores accept; a local one accepts 8000
CUT = "..."


def config_digest(config_text: str) -> str:
    """Return the SHA-256 of the resolved configuration's text, in hexadecimal."""
    return hashlib.sha256(config_text.encode()).hexdigest()


def run_tags(
    *,
    algorithm: str,
    objective_identity: str,
    data_fingerprint: str,
    code_version: str,
    flyte_execution: str,
    seed: int,
) -> dict[str, str]:
    """Return the tags that say what a run is and where it came from; all of them, always."""
    return {
        "algorithm": algorithm,
        "objective_identity": objective_identity,
        "data_fingerprint": data_fingerprint,
        "code_version": code_version,
        "flyte_execution": flyte_execution,
        "seed": str(seed),
    }


def flatten(params: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return nested values under dotted names, as JSON, each at most 500 characters.

    >>> flatten({"rl": {"max_steps": 2, "kl_beta": 0.0}, "algorithm": "grpo"})
    {'rl.max_steps': '2', 'rl.kl_beta': '0.0', 'algorithm': 'grpo'}
    """
    return {name: _cut(_text(value), MAX_PARAM_CHARS) for name, value in _leaves(params, prefix)}


def create_run(
    client: "MlflowClient",
    *,
    experiment: str,
    run_name: str,
    params: Mapping[str, object],
    tags: Mapping[str, str],
    config_text: str,
) -> str:
    """Create a run in state RUNNING and return its id.

    The whole of `config_text` becomes the artifact `config.yaml` and its digest the param
    `config_digest`, so that a cut param can hide no difference.

    Args:
        client: from `open_store`.
        experiment: name; created if there is none.
        run_name: what the UI shows; need not be unique.
        params: flat or nested; stored as `flatten` gives them.
        tags: see `run_tags`.
        config_text: the resolved configuration as YAML.

    Raises:
        ValueError: the experiment has been deleted.
    """
    identifier = _experiment_id(client, experiment)
    run = client.create_run(identifier, run_name=run_name)
    run_id = run.info.run_id
    try:
        _log(client, run_id, _with_digest(params, config_text), tags)
        client.log_text(run_id, config_text, CONFIG_FILE)
    except Exception:
        # Nobody else knows the id yet, so nobody else could close the run.
        finish(client, run_id, "FAILED")
        raise
    return run_id


def reopen_run(
    client: "MlflowClient",
    run_id: str,
    *,
    params: Mapping[str, object],
    tags: Mapping[str, str],
    config_text: str,
) -> None:
    """Continue a run: RUNNING again, new params added, changed ones told in the tag `config_diff`.

    Params are write-once in MLflow, so those of the first start stay. A changed configuration is
    kept whole as the artifact `config-<digest>.yaml` beside the first one. Tags are replaced.

    Raises:
        LookupError: the store has no such run.
    """
    run = _find(client, run_id)
    stored = run.data.params
    current = _with_digest(params, config_text)
    added = {name: value for name, value in current.items() if name not in stored}
    difference = config_difference(stored, current)
    if difference:
        client.log_text(run_id, config_text, f"config-{current[CONFIG_DIGEST][:12]}.yaml")
    if difference or CONFIG_DIFF in run.data.tags:
        tags = {**tags, CONFIG_DIFF: difference}
    _log(client, run_id, added, tags)
    client.update_run(run_id, status="RUNNING")
    forget(client, run_id)


def finish(client: "MlflowClient", run_id: str, status: Status) -> None:
    """Close a run as FINISHED, FAILED (an error) or KILLED (stopped on request).

    Raises:
        ValueError: any other status.
    """
    if status not in get_args(Status):
        raise ValueError(f"status is {status!r}; expected one of {', '.join(get_args(Status))}")
    client.set_terminated(run_id, status)


def abandon(client: "MlflowClient", run_id: str) -> None:
    """Mark a run that nobody will continue as killed, if it is still open and still there."""
    try:
        status = _find(client, run_id).info.status
    except LookupError:
        return
    if status == "RUNNING":
        finish(client, run_id, "KILLED")


def config_difference(stored: Mapping[str, str], current: Mapping[str, str]) -> str:
    """Return one line `name: stored -> current` per param that changed or went; empty if none.

    >>> config_difference({"a": "1", "b": "2"}, {"a": "3", "b": "2", "c": "4"})
    'a: 1 -> 3'
    """
    return "\n".join(
        f"{name}: {value} -> {current.get(name, '(absent)')}"
        for name, value in sorted(stored.items())
        if current.get(name) != value
    )


def _leaves(params: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - len(CUT)] + CUT


def _cut_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: _cut(value, MAX_TAG_CHARS) for name, value in tags.items()}


def _with_digest(params: Mapping[str, object], config_text: str) -> dict[str, str]:
    return {**flatten(params), CONFIG_DIGEST: config_digest(config_text)}


def _log(
    client: "MlflowClient", run_id: str, params: Mapping[str, str], tags: Mapping[str, str]
) -> None:
    from mlflow.entities import Param, RunTag

    client.log_batch(
        run_id,
        params=[Param(name, value) for name, value in params.items()],
        tags=[RunTag(name, value) for name, value in _cut_tags(tags).items()],
    )


def _find(client: "MlflowClient", run_id: str) -> "Run":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise LookupError(
            f"the tracking store {client.tracking_uri} has no run {run_id}; point `tracking.uri` at"
            " the store of the run that is resumed, or start over with rl.resume=off"
        ) from error


def _experiment_id(client: "MlflowClient", name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=artifact_location(client))
        except MlflowException as error:
            # Another process may have created it since we looked.
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise ValueError(
            f"experiment {name!r} was deleted from {client.tracking_uri}; restore it with"
            f" `mlflow experiments restore` or set `tracking.experiment` to another name"
        )
    return found.experiment_id
