"""The policy before its first step, as the `model` section says."""

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from configs.data import Data
from configs.dpo import Denoiser
from configs.model import Model
from tasks.policy import checkpoints
from tasks.policy.digests import file_digest
from tasks.policy.fetching import fetch
from tasks.policy.files import PolicyFiles

HERE = Path(__file__).parent
CODE = tuple(
    HERE / name for name in ("embedded.py", "directory.py", "adapter.py", "../data/arithmetic.py")
)
"""Modules whose text the embedded model or an untrained adapter depends on."""

SMOLLM2_VERSION = file_digest(HERE / "smollm2.py")[:16]
"""Version of the unpacked SmolLM2."""

CODE_VERSION = hashlib.sha256("".join(map(file_digest, CODE)).encode()).hexdigest()[:16]
"""Its version: an edit of these modules is a new one."""

POLICY_VERSION = f"{CODE_VERSION}-{SMOLLM2_VERSION}"
"""Version of the cached task that opens a policy of any source."""

DENOISER_CODE = (HERE / "denoiser.py", HERE.parent / "data" / "points.py")
DENOISER_VERSION = hashlib.sha256("".join(map(file_digest, DENOISER_CODE)).encode()).hexdigest()[
    :16
]
"""The same of the denoiser of points."""

SHAPE = ("hidden_size", "num_timesteps", "prediction", "warm_start_steps")
"""Settings of a denoiser that its untrained weights depend on."""


def initial_policy(model: Model, data: Data, *, seed: int, output_root: Path) -> PolicyFiles:
    """Return the untrained policy; one that is built is built once and kept under `output_root`.

    With `model.lora` it is an adapter, which leads to its base.
    """
    cache = output_root / "cache"
    base = _whole(model, data, seed=seed, cache=cache)
    return _adapted(base, model, seed=seed, cache=cache) if model.lora.rank else base


def _whole(model: Model, data: Data, *, seed: int, cache: Path) -> PolicyFiles:
    match model.source:
        case "embedded":
            return _embedded(model, data, seed=seed, cache=cache)
        case "smollm2":
            return _smollm2(cache)
        case "pretrained":
            return _pretrained(model, cache)


def embedded_key(model: Model, data: Data, *, seed: int) -> str:
    """Return a digest of everything that the embedded model is a function of."""
    inputs = {
        "model": model.embedded.model_dump(),
        "data": data.model_dump(),
        "seed": seed,
        "code": CODE_VERSION,
        "libraries": [version(name) for name in ("torch", "transformers", "tokenizers")],
    }
    return _key(inputs)


def _embedded(model: Model, data: Data, *, seed: int, cache: Path) -> PolicyFiles:
    def build(weights: Path) -> None:
        from tasks.policy.embedded import bootstrap

        bootstrap(model.embedded, data, seed=seed, to=weights)

    return _built(cache / f"embedded-{embedded_key(model, data, seed=seed)}", build)


def _smollm2(cache: Path) -> PolicyFiles:
    def build(weights: Path) -> None:
        from tasks.policy.smollm2 import bootstrap_smollm2

        bootstrap_smollm2(to=weights)

    return _built(cache / f"smollm2-{SMOLLM2_VERSION}", build)


def initial_denoiser(denoiser: Denoiser, *, seed: int, output_root: Path) -> PolicyFiles:
    """Return the untrained denoiser of points, built once and kept under `output_root`."""

    def build(weights: Path) -> None:
        from tasks.policy.denoiser import bootstrap_denoiser

        bootstrap_denoiser(denoiser, seed=seed, to=weights)

    inputs = {
        "denoiser": denoiser.model_dump(include=set(SHAPE)),
        "seed": seed,
        "code": DENOISER_VERSION,
        "libraries": [version(name) for name in ("torch", "transformers", "numpy")],
    }
    return _built(output_root / "cache" / f"denoiser-{_key(inputs)}", build)


def _adapted(policy: PolicyFiles, model: Model, *, seed: int, cache: Path) -> PolicyFiles:
    """Return a policy with an untrained adapter on it; a hub's name is kept with its commit."""
    from_hub = model.source == "pretrained" and not Path(model.name_or_path).is_dir()
    weights = policy.weights.resolve()
    where = (model.name_or_path, policy.weights.name) if from_hub else (str(weights), "")

    def build(weights: Path) -> None:
        from tasks.policy.adapter import Base, write_adapter

        write_adapter(model.lora, Base(*where, policy.digest), seed=seed, to=weights)

    inputs = {
        "base": [*where, policy.digest],
        "lora": model.lora.model_dump(),
        "seed": seed,
        "code": CODE_VERSION,
        "libraries": [version(name) for name in ("torch", "transformers", "peft")],
    }
    return _built(cache / f"lora-{_key(inputs)}", build)


def _key(inputs: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _built(root: Path, build: Callable[[Path], None]) -> PolicyFiles:
    """Return the policy that is kept under `root`, or the one that `build` writes."""
    found = checkpoints.newest(root)
    if found is not None:
        return found.policy
    with TemporaryDirectory() as scratch:
        weights, trainer_state = Path(scratch, "weights"), Path(scratch, "trainer_state")
        weights.mkdir()
        trainer_state.mkdir()
        build(weights)
        policy = _untrained(weights, trainer_state)
        return checkpoints.publish(root, policy, step=0, lineage={}, mlflow_run_id="").policy


def _pretrained(model: Model, cache: Path) -> PolicyFiles:
    from tasks.policy.directory import has_adapter

    weights = fetch(model.name_or_path, model.revision)
    if has_adapter(weights):
        raise ValueError(
            f"model.name_or_path={model.name_or_path!r} holds an adapter, expected a whole model; "
            "merge the two first: python -m tasks.policy.merge ADAPTER TO"
        )
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
