"""A policy on disk: a Hugging Face directory, of a whole model or of an adapter as PEFT writes it.

`from_pretrained` opens both.
"""

import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tasks.policy.digests import file_digest
from tasks.policy.fetching import fetch
from tasks.policy.whole import on_first_rank, whole

WEIGHTS_FILE = "model.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
BASE_FILE = "base.json"
"""Says which weights an adapter is for, and so is part of its digest."""

WEIGHT_SUFFIXES = {".safetensors", ".bin"}


def load_model(directory: str | Path, *, dtype: str) -> PreTrainedModel:
    """Return the causal language model of a directory or hub name, in evaluation mode.

    Dropout stays off in training as well: old and new log-probabilities of a token then differ by
    the update alone. Where the directory holds an adapter, it lies on its base and alone can train.

    Raises:
        ValueError: the base of an adapter is gone, or is not the one that it was trained on.
    """
    if has_adapter(Path(directory)):
        from tasks.policy.adapter import load_adapted

        return load_adapted(Path(directory), dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    return model.eval()


def save_weights(model: PreTrainedModel, *, like: Path, to: Path) -> str:
    """Write the model's weights beside copies of the other files of `like`; return their digest.

    Where `like` holds an adapter, the adapter alone is written.
    Where several ranks train, all must call it; the first one writes.

    Args:
        model: the model whose weights are written; tied tensors are written once.
        like: the directory that the model was loaded from.
        to: an existing empty directory.
    """
    tensors = whole(_written(model, like))

    def write() -> str:
        copy_others(like, to)
        name = ADAPTER_FILE if has_adapter(like) else WEIGHTS_FILE
        save_file(tensors, to / name, metadata={"format": "pt"})
        return weights_digest(to)

    return on_first_rank(write)


def copy_others(like: Path, to: Path) -> None:
    """Copy every file of a directory but those of weights: tokenizer, configs, templates."""
    for path in like.iterdir():
        if path.is_file() and path.suffix not in WEIGHT_SUFFIXES and ".index." not in path.name:
            shutil.copyfile(path, to / path.name)


def _written(model: PreTrainedModel, like: Path) -> dict[str, torch.Tensor]:
    if has_adapter(like):
        from tasks.policy.adapter import adapter_tensors

        return adapter_tensors(model)
    tied = set(model.all_tied_weights_keys)
    return {name: value for name, value in model.state_dict().items() if name not in tied}


def has_adapter(directory: Path) -> bool:
    """Return whether a directory holds an adapter and not a whole model."""
    return (directory / ADAPTER_CONFIG).is_file()


def base_of(directory: Path) -> Path:
    """Return where the base of an adapter is; a directory with a whole model is its own.

    Raises:
        ValueError: the base is gone.
    """
    if not has_adapter(directory):
        return directory
    declared = json.loads((directory / ADAPTER_CONFIG).read_text())
    return fetch(declared["base_model_name_or_path"], declared["revision"] or "")


def adapter_rank(directory: Path) -> int:
    """Return the largest rank among the layers of an adapter."""
    declared = json.loads((directory / ADAPTER_CONFIG).read_text())
    return max([declared["r"], *declared.get("rank_pattern", {}).values()])


def weights_digest(directory: Path) -> str:
    """Return the SHA-256 over the weight files of a directory, by name and content.

    An adapter's says which weights it is for as well.
    """
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix in WEIGHT_SUFFIXES or path.name == BASE_FILE:
            digest.update(path.name.encode())
            digest.update(file_digest(path).encode())
    return digest.hexdigest()


def files_digest(directory: Path) -> str:
    """Return a digest of all files of a directory, by name and content: what responses depend on.

    Beside the weights, these say how to tokenise and where to stop.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.iterdir() if path.is_file()):
        digest.update(f"{path.name}:{file_digest(path)}\n".encode())
    return digest.hexdigest()


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return every token id that the tokenizer or the generation config declares an end."""
    return end_tokens(model.generation_config, tokenizer)


def end_tokens(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the same from a generation config, for engines that open the directory themselves."""
    declared = generation.eos_token_id if generation else None
    several = declared if isinstance(declared, list) else [declared]
    return {int(token) for token in (tokenizer.eos_token_id, *several) if token is not None}
