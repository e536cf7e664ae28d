"""The policy before its first step, as the `model` section says."""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from configs.data import Data
from configs.model import Model
from tasks.policy import checkpoints
from tasks.policy.digests import file_digest
from tasks.policy.files import PolicyFiles

HERE = Path(__file__).parent
CODE = (HERE / "embedded.py", HERE / "directory.py", HERE.parent / "data" / "arithmetic.py")
"""Modules whose text the embedded model depends on."""

CODE_VERSION = hashlib.sha256("".join(map(file_digest, CODE)).encode()).hexdigest()[:16]
"""Version of the cached task that builds it: an edit of these modules is a new version."""


def initial_policy(model: Model, data: Data, *, seed: int, output_root: Path) -> PolicyFiles:
    """Return the untrained policy; an embedded one is built once and kept under `output_root`."""
    if model.source == "embedded":
        return _embedded(model, data, seed=seed, cache=output_root / "cache")
    return _pretrained(model, output_root / "cache")


def embedded_key(model: Model, data: Data, *, seed: int) -> str:
    """Return a digest of everything that the embedded model is a function of."""
    inputs = {
        "model": model.embedded.model_dump(),
        "data": data.model_dump(),
        "seed": seed,
        "code": CODE_VERSION,
        "libraries": [version(name) for name in ("torch", "transformers", "tokenizers")],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _embedded(model: Model, data: Data, *, seed: int, cache: Path) -> PolicyFiles:
    root = cache / f"embedded-{embedded_key(model, data, seed=seed)}"
    found = checkpoints.newest(root)
    if found is not None:
        return found.policy
    from tasks.policy.embedded import bootstrap

    with TemporaryDirectory() as scratch:
        weights, trainer_state = Path(scratch, "weights"), Path(scratch, "trainer_state")
        weights.mkdir()
        trainer_state.mkdir()
        bootstrap(model.embedded, data, seed=seed, to=weights)
        policy = _untrained(weights, trainer_state)
        return checkpoints.publish(root, policy, step=0, lineage={}, mlflow_run_id="").policy


def _pretrained(model: Model, cache: Path) -> PolicyFiles:
    weights = Path(model.name_or_path)
    if not weights.is_dir():
        from huggingface_hub import snapshot_download

        weights = Path(snapshot_download(model.name_or_path, revision=model.revision or None))
    trainer_state = cache / "no_trainer_state"
    trainer_state.mkdir(parents=True, exist_ok=True)
    return _untrained(weights, trainer_state)


def _untrained(weights: Path, trainer_state: Path) -> PolicyFiles:
    from tasks.policy.directory import weights_digest

    return PolicyFiles(
        version=0,
        digest=weights_digest(weights),
        state_digest="",
        weights=weights,
        trainer_state=trainer_state,
    )
