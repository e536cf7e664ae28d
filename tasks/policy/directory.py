"""A policy on disk: a plain Hugging Face directory that `from_pretrained` and servers open."""

import hashlib
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
from tasks.policy.whole import on_first_rank, whole

WEIGHTS_FILE = "model.safetensors"
WEIGHT_SUFFIXES = {".safetensors", ".bin"}


def load_model(directory: str | Path, *, dtype: str) -> PreTrainedModel:
    """Return the causal language model of a directory or hub name, in evaluation mode.

    Dropout stays off in training as well: old and new log-probabilities of a token then differ by
    the update alone.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    return model.eval()


def save_weights(model: PreTrainedModel, *, like: Path, to: Path) -> str:
    """Write the model's weights beside copies of the other files of `like`; return their digest.

    Where several ranks train, all must call it; the first one writes.

    Args:
        model: the model whose weights are written; tied tensors are written once.
        like: the directory that the model was loaded from.
        to: an existing empty directory.
    """
    tied = set(model.all_tied_weights_keys)
    tensors = whole({name: value for name, value in model.state_dict().items() if name not in tied})

    def write() -> str:
        for path in like.iterdir():
            if path.is_file() and path.suffix not in WEIGHT_SUFFIXES and ".index." not in path.name:
                shutil.copyfile(path, to / path.name)
        save_file(tensors, to / WEIGHTS_FILE, metadata={"format": "pt"})
        return weights_digest(to)

    return on_first_rank(write)


def weights_digest(directory: Path) -> str:
    """Return the SHA-256 over the weight files of a directory, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix in WEIGHT_SUFFIXES:
            digest.update(path.name.encode())
            digest.update(file_digest(path).encode())
    return digest.hexdigest()


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return every token id that the tokenizer or the generation config declares an end."""
    return end_tokens(model.generation_config, tokenizer)


def end_tokens(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the same from a generation config, for engines that open the directory themselves."""
    declared = generation.eos_token_id if generation else None
    several = declared if isinstance(declared, list) else [declared]
    return {int(token) for token in (tokenizer.eos_token_id, *several) if token is not None}
