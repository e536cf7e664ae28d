"""What a transformers model can do in training beyond what every one can.

Dimensions: `B` sequences, `S` positions, `H` hidden width.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tasks.trainer.packing import PROMPT, attention_mask

ATTENTION_SPEED = 0.5
"""About how fast attention scores are computed, next to matrix products of as many operations."""

NOISE = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest relative difference of two results that rounding explains, by type of the weights."""

MODEL_NOISE = NOISE | {torch.float64: 1e-4}
"""The same of hidden states: norms compute in float32 whatever the type."""

Hidden = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From token ids [B, S], attention mask and positions [B, S] to hidden states [B, S, H]."""


def attention_scale(model: PreTrainedModel) -> float:
    """Return the length at which attention costs as much as the rest of a layer.

    A token takes `2 P` operations for the `P` weights of a layer, and `4 H` for every token that it
    may attend to.
    """
    config = model.config.get_text_config()
    weights = model.num_parameters(exclude_embeddings=True) / config.num_hidden_layers
    return ATTENTION_SPEED * 2 * weights / (4 * config.hidden_size)


def forward_noise(model: PreTrainedModel) -> float:
    """Return the largest relative difference of two gradients that rounding explains."""
    return NOISE[model.dtype]


def shares_prompts(model: PreTrainedModel, hidden: Hidden) -> bool:
    """Return whether responses behind one copy of a prompt have the hidden states they have alone.

    Where attention takes no mask of one's own, or reaches back no further than a window, they have
    not; a model whose code hides it is found out by trying.
    """
    return _takes_own_mask(model) and _probe(hidden, model.device)


def _takes_own_mask(model: PreTrainedModel) -> bool:
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    has_window = getattr(config, "sliding_window", None) is not None
    return (
        config._attn_implementation == "sdpa"  # noqa: SLF001 - there is no public name
        and kinds == {"full_attention"}
        and not has_window
    )


@torch.no_grad()
def _probe(hidden: Hidden, device: torch.device) -> bool:
    rows = torch.tensor([[0, 1, 1], [0, 2, 2]], device=device)
    ones = torch.ones_like(rows)
    alone = hidden(rows, ones, ones.cumsum(1) - 1)
    packed = hidden(
        torch.tensor([[0, 1, 1, 2, 2]], device=device),
        attention_mask(torch.tensor([[PROMPT, 0, 0, 1, 1]], device=device)),
        torch.tensor([[0, 1, 2, 1, 2]], device=device),
    )
    expected = torch.cat([alone[0], alone[1, 1:]])
    error = (packed[0] - expected).abs().max() / expected.abs().max().clamp(min=1e-6)
    return bool(error <= MODEL_NOISE[expected.dtype])
