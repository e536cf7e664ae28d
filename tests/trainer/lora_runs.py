"""Training steps of adapters, in bfloat16 and with recomputed layers; runs in a child process."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import torch
from safetensors import safe_open

from configs.model import Lora
from configs.run import RunConfig
from tasks.policy import resident
from tasks.policy.adapter import adapter_off
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.trainer.loop import Trained, build_objective, train
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.reference import BaseReference, FrozenReference
from tasks.trainer.state import COUNTERS_FILE, MOMENTS_FILE
from tests.policy.adapters import moved, qwen, write_base, write_new
from tests.policy.builders import open_policy, run_config
from tests.trainer.builders import adapter, batch_of, make_rows
from tests.trainer.loop_runs import _two_steps, annotated, forget, place

LORA = {"lora": Lora(rank=2, alpha=8.0)}
RL = {"kl_beta": 0.5, "mini_batches": 2}
FAST = {"learning_rate": 1e-2}


def _config(root: Path, **sections: dict) -> RunConfig:
    return run_config(root, **{"model": LORA, "rl": RL, "trainer": FAST, **sections})


def _files(trained: Trained) -> dict:
    policy = trained.policy
    with safe_open(policy.weights / "adapter_model.safetensors", "pt") as file:
        weights = set(file.keys())
    with safe_open(policy.trainer_state / MOMENTS_FILE, "pt") as file:
        moments = {name.rpartition("/")[0] for name in file.keys()}  # noqa: SIM118
    counters = json.loads((policy.trainer_state / COUNTERS_FILE).read_text())
    return {
        "names": {path.name for path in policy.weights.iterdir()},
        "weights": weights,
        "moments": moments,
        "parameters": set(counters["parameters"]),
    }


def _base_moved(first: PolicyFiles, trained: Trained) -> bool:
    """Return whether any weight of the model that stays live differs from the base's."""
    live = resident.borrow("policy", trained.policy.digest, lambda: None)
    before = load_model(first.weights, dtype="float32").state_dict()
    return any(
        not torch.equal(value, before[name])
        for name, value in live.state_dict().items()
        if "lora_" not in name
    )


def _step(
    config: RunConfig, root: Path, name: str, start: tuple[PolicyFiles, pa.Table], **more: object
) -> Trained:
    forget()
    files, table = start
    return train(config, table, files, place(root, name), **more)


def _adapters(root: Path) -> dict:
    config = _config(root)
    first = open_policy(config)
    base = open_policy(run_config(root))
    live = _two_steps(config, root, "live", forgetful=False)
    kept = sorted(resident._live)
    base_moved = _base_moved(first, live[1])
    cold = _two_steps(config, root, "cold", forgetful=True)
    second = live[0].policy, annotated(config, live[0].policy, 1)
    checkpointing = _config(root, trainer={**FAST, "gradient_checkpointing": True})
    free = _config(root, rl={**RL, "kl_beta": 0.0})
    return {
        "first": first,
        "live": live,
        "cold": cold,
        "kept": kept,
        "files": _files(live[1]),
        "base moved": base_moved,
        "with a model of its own": _step(
            config, root, "separate", second, auxiliary={"reference": base}
        ),
        "recomputing": _step(checkpointing, root, "recomputing", second),
        "without penalty": _step(free, root, "free", second),
    }


def _bfloat16(root: Path) -> dict:
    """Two steps on whole bfloat16 weights at a rate that they cannot hold."""
    config = _config(
        root, model={"dtype": "bfloat16"}, rl={"mini_batches": 2}, trainer={"learning_rate": 1e-6}
    )
    live = _two_steps(config, root, "half", forgetful=False)
    with safe_open(live[0].policy.trainer_state / MOMENTS_FILE, "pt") as file:
        dtypes = {str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118
    lora = _config(root, model={**LORA, "dtype": "bfloat16"})
    return {
        "live": live,
        "cold": _two_steps(config, root, "half-cold", forgetful=True),
        "dtypes": dtypes,
        "lora live": _two_steps(lora, root, "half-lora", forgetful=False),
        "lora cold": _two_steps(lora, root, "half-lora-cold", forgetful=True),
    }


def _gradients(root: Path) -> dict[str, torch.Tensor]:
    """The gradient of a loss with a KL penalty, under each kind of reference."""
    base = write_base(root / "gradients", qwen())
    model = moved(load_model(write_new(base, root / "gradients" / "new"), dtype="float32"))
    policy, batch = PolicyAdapter(PolicyModel(model)), batch_of(make_rows())
    separate = qwen().requires_grad_(requires_grad=False)
    scorers = {
        "adapter off": BaseReference(policy),
        "separate": FrozenReference(adapter(separate)),
        "itself": FrozenReference(policy),
    }
    config = _config(root)
    found = {}
    for name, scorer in scorers.items():
        objective = build_objective(config, scorer)
        objective.old_logp_cache.freeze(
            batch.row_ids, torch.zeros_like(batch.response_mask).float()
        )
        trained = [p for p in policy.module.parameters() if p.requires_grad]
        policy.module.zero_grad(set_to_none=True)
        objective.fn(policy, batch)[0].backward()
        found[name] = torch.cat([p.grad.flatten().clone() for p in trained])
    with torch.no_grad(), adapter_off(model):
        found["scores off"] = policy.token_logprobs(batch, temperature=1.0).logprobs
    found["scores separate"] = scorers["separate"].reference_logprobs(batch, temperature=1.0)
    found["scores on"] = scorers["itself"].reference_logprobs(batch, temperature=1.0)
    return found


def compute() -> dict:
    with TemporaryDirectory() as directory:
        root = Path(directory)
        parts = {"adapters": _adapters, "bfloat16": _bfloat16, "gradients": _gradients}
        done = {}
        for name, part in parts.items():
            (root / name).mkdir()
            done[name] = part(root / name)
        return done
