"""Gradient checkpointing: a decoder layer's activations are computed again in the backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tasks.policy.routing import recompute_contexts

SETTINGS = {
    "use_reentrant": False,
    "preserve_rng_state": False,
    "context_fn": recompute_contexts,
}
"""Of `torch.utils.checkpoint`. Nothing random runs in a layer, so no random state is kept."""


def recompute_layers(model: PreTrainedModel) -> None:
    """Let a model keep the input of each layer alone, wherever gradients are asked for.

    Raises:
        ValueError: the model has no layers that can be recomputed, or dropout inside of them.
    """
    if not model.supports_gradient_checkpointing or not _layers(model):
        raise ValueError(
            f"trainer.gradient_checkpointing=true: {type(model).__name__} does not support it; set "
            "it to false and lower trainer.max_tokens_per_chunk instead"
        )
    if not model.is_activation_checkpointing:
        model.activation_checkpointing_enable(SETTINGS)
        _require_no_dropout(model)


@contextmanager
def recomputing(model: PreTrainedModel) -> Iterator[None]:
    """Let the layers of a model that recomputes do so, although it is in evaluation mode.

    Transformers checkpoints a layer only in training mode. Here the layer itself is told that it
    trains and the modules in it are not, so dropout stays off.
    """
    layers = [layer for layer in _layers(model) if layer.gradient_checkpointing]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _layers(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@torch.no_grad()
def _require_no_dropout(model: PreTrainedModel) -> None:
    """Refuse layers that drop out by themselves and not by a module in them."""
    probe = torch.arange(2, device=model.device)[None]
    expected = model(probe, use_cache=False).logits
    with recomputing(model):
        found = model(probe, use_cache=False).logits
    if not torch.equal(expected, found):
        raise ValueError(
            f"trainer.gradient_checkpointing=true: the layers of {type(model).__name__} turn "
            "dropout on when they are recomputed; set it to false, or the model's dropout to 0"
        )
