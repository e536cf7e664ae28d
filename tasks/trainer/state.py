"""Everything beside the weights that the next step depends on, on disk and in memory."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from configs.trainer import Optimizer
from tasks.policy.digests import file_digest
from tasks.policy.whole import on_first_rank, parted_like, whole
from tasks.trainer.masters import MasterAdamW, needs_masters

MOMENTS_FILE = "optimizer.safetensors"
COUNTERS_FILE = "counters.json"
MASTER = "master"
"""Kind of a tensor that is a parameter's float32 copy, beside its moments."""

Shapes = dict[str, list[int]]


@dataclass
class TrainerState:
    """A model's optimizer and how many steps it has taken.

    Attributes:
        optimizer: AdamW over the model's parameters.
        num_updates: optimizer steps taken since the run began, skipped ones included.
    """

    optimizer: torch.optim.Optimizer
    num_updates: int = 0


def build_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.AdamW:
    """Return AdamW over the parameters that train, in the model's order.

    Where some have fewer bits than float32, it works on float32 copies of all.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind = MasterAdamW if needs_masters(parameters) else torch.optim.AdamW
    return kind(
        parameters,
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def save_state(state: TrainerState, model: nn.Module, to: Path) -> str:
    """Write the state into an existing directory and return its digest.

    Where several ranks train, all must call it; the first one writes.
    """
    names = _trained_names(model)
    moments = state.optimizer.state_dict()["state"]
    tensors = {
        f"{names[index]}/{key}": value.contiguous()
        for index, values in moments.items()
        for key, value in values.items()
    }
    for name, master in zip(names, _masters(state.optimizer), strict=False):
        tensors[f"{name}/{MASTER}"] = master.detach().contiguous()
    tensors = whole(tensors)
    counters = {"num_updates": state.num_updates, "parameters": _trained_shapes(model)}

    def write() -> str:
        save_file(tensors, to / MOMENTS_FILE)
        (to / COUNTERS_FILE).write_text(json.dumps(counters))
        return state_digest(to)

    return on_first_rank(write)


def state_digest(directory: Path) -> str:
    """Return the digest of a written state."""
    return file_digest(directory / MOMENTS_FILE)[:32] + file_digest(directory / COUNTERS_FILE)[:32]


def load_state(directory: Path, model: nn.Module, config: Optimizer) -> TrainerState:
    """Return the state written to a directory, or a fresh one if it holds none.

    Raises:
        ValueError: if the state is of a model with other parameters.
    """
    optimizer = build_optimizer(model, config)
    if not (directory / MOMENTS_FILE).exists():
        return TrainerState(optimizer)
    counters = json.loads((directory / COUNTERS_FILE).read_text())
    _require_shapes(counters["parameters"], _trained_shapes(model), directory)
    names = {name: index for index, name in enumerate(_trained_names(model))}
    parameters = dict(model.named_parameters())
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(directory / MOMENTS_FILE).items():
        name, _, kind = key.rpartition("/")
        per_element = value.shape == parameters[name].shape
        held = parted_like(value, parameters[name]) if per_element else value
        moments.setdefault(names[name], {})[kind] = held
    for index, master in enumerate(_masters(optimizer)):
        master.data.copy_(moments[index].pop(MASTER))
    groups = optimizer.state_dict()["param_groups"]
    written = {index: values for index, values in moments.items() if values}
    optimizer.load_state_dict({"state": written, "param_groups": groups})
    return TrainerState(optimizer, counters["num_updates"])


def _masters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return optimizer.masters if isinstance(optimizer, MasterAdamW) else []


def _require_shapes(stored: Shapes, wanted: Shapes, directory: Path) -> None:
    for name in stored | wanted:
        if stored.get(name) != wanted.get(name):
            raise ValueError(
                f"the optimizer state in {directory} has parameter {name!r} of shape "
                f"{stored.get(name)}, but the model's is {wanted.get(name)}; it belongs to another "
                "model: start with rl.resume=off"
            )


def _trained_shapes(model: nn.Module) -> Shapes:
    return {n: list(p.shape) for n, p in model.named_parameters() if p.requires_grad}


def _trained_names(model: nn.Module) -> list[str]:
    return list(_trained_shapes(model))
