"""Low-rank adapters (LoRA, arXiv:2106.09685): a policy that is a base's weights and a few more.

An adapter's directory is in PEFT's layout, which leads to the base: without a `config.json`, beside
which libraries would look for whole weights. `base.json` says what the base's weights must be. PEFT
puts its layers into the model, which stays the class that it was.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from peft import (
    LoraConfig,
    get_peft_model_state_dict,
    inject_adapter_in_model,
    set_peft_model_state_dict,
)
from peft.tuners.tuners_utils import BaseTunerLayer, cast_adapter_dtype
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from configs.model import ALL_LINEAR, Lora
from tasks.policy.directory import (
    ADAPTER_FILE,
    BASE_FILE,
    base_of,
    copy_others,
    load_model,
    weights_digest,
)
from tasks.policy.fetching import fetch

ADAPTER_NAME = "default"
"""Name of the one adapter in a model, which PEFT's own default is."""

PREFIX = "base_model.model."
"""Of every name in an adapter's file, as PEFT writes them."""


class Base(NamedTuple):
    """The weights that an adapter is for.

    Attributes:
        name: absolute path or hub name.
        revision: commit of a hub name; empty for a path.
        digest: of the weights.
    """

    name: str
    revision: str
    digest: str


def write_adapter(lora: Lora, base: Base, *, seed: int, to: Path) -> None:
    """Write an untrained adapter, which changes no output of its base.

    Args:
        lora: rank, scale and place.
        base: what it is for.
        seed: of the one factor; the other is 0.
        to: an existing empty directory.

    Raises:
        ValueError: the base has no such layers, or its vocabulary head is one of them.
    """
    directory = fetch(base.name, base.revision)
    model = load_model(directory, dtype="float32")
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=_layers(model, lora.target_modules),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base.name,
        revision=base.revision or None,
    )
    _inject(model, config, seed=seed)
    copy_others(directory, to)
    (to / "config.json").unlink()
    config.target_modules = sorted(config.target_modules or ())
    config.inference_mode = True
    config.save_pretrained(str(to))
    (to / BASE_FILE).write_text(json.dumps({"weights_digest": base.digest}))
    save_file(adapter_tensors(model), to / ADAPTER_FILE, metadata={"format": "pt"})


def load_adapted(directory: Path, *, dtype: str) -> PreTrainedModel:
    """Return the base of an adapter with the adapter on it, in evaluation mode.

    The base has the type asked for and is frozen. The adapter is float32 whatever that is, so that
    small updates are not rounded away.

    Raises:
        ValueError: the base is gone, or is not the one that the adapter was trained on.
    """
    base = base_of(directory)
    _require_base(directory, base)
    model = load_model(base, dtype=dtype)
    config = LoraConfig.from_pretrained(str(directory))
    config.inference_mode = False
    _inject(model, config, seed=0)
    tensors = load_file(directory / ADAPTER_FILE)
    named = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    loaded = set_peft_model_state_dict(model, named)
    absent = named.keys() ^ adapter_tensors(model, prefix="").keys()
    if absent or loaded.unexpected_keys:
        raise ValueError(f"the adapter in {directory} has other layers than it declares: {absent}")
    return model.eval()


def adapter_tensors(model: PreTrainedModel, *, prefix: str = PREFIX) -> dict[str, torch.Tensor]:
    """Return what an adapter's file holds, by PEFT's names."""
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {f"{prefix}{name}": tensor.contiguous() for name, tensor in state.items()}


@contextmanager
def adapter_off(module: nn.Module) -> Iterator[None]:
    """Let a model, wrapped or not, compute what its base does."""
    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)


def _inject(model: PreTrainedModel, config: LoraConfig, *, seed: int) -> None:
    """Put a new adapter into a model and freeze all else; the random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, ADAPTER_NAME)
    cast_adapter_dtype(model, ADAPTER_NAME)


def _layers(model: PreTrainedModel, names: Sequence[str]) -> list[str] | str:
    """Return layers as PEFT takes them, each of which the model must have."""
    if list(names) == [ALL_LINEAR]:
        return ALL_LINEAR
    head = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]
    unknown = [name for name in names if not any(_is_named(path, name) for path in linear)]
    if unknown:
        known = sorted({path.rpartition(".")[2] for path in linear})
        raise ValueError(
            f"model.lora.target_modules: {', '.join(unknown)} names no linear layer of "
            f"{type(model).__name__} (or its vocabulary head, which stays as it is); expected some "
            f"of {', '.join(known)}, or {ALL_LINEAR}"
        )
    return list(names)


def _is_named(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _require_base(directory: Path, base: Path) -> None:
    wanted = json.loads((directory / BASE_FILE).read_text())["weights_digest"]
    found = weights_digest(base)
    if found != wanted:
        raise ValueError(
            f"the adapter in {directory} was trained on weights {wanted[:16]}, but its base {base} "
            f"holds {found[:16]}; put the base back as it was, or start over from the new one"
        )
