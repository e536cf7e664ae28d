"""One token per row, drawn from the logits by inversion of the cumulative distribution.

Dimensions: `B` rows, `V` vocabulary, `K` blocks of `W` tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

FEW = 64
"""Most tokens of a vocabulary that is searched in one go."""
BLOCK = 256
"""Tokens summed at once; only the block that a draw falls into is searched token by token."""
CACHED = 2**19
"""Logits that a CPU handles at once: 2 MiB of them, which stay in its cache."""
BELOW_ONE = 1 - 2**-53
"""The largest float64 below 1."""


def draw(logits_BV: Tensor, uniforms_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return a token per row and its log-probability under the distribution it was drawn from.

    The token is the inverse of the cumulative distribution at the row's uniform number, so equal
    numbers give equal tokens whatever else is in the batch. Temperature 0 takes the likeliest
    token, with its log-probability at temperature 1. Logits are float32, uniform numbers float64.
    """
    num_rows, vocabulary = logits_BV.shape
    if vocabulary <= FEW:
        return _draw_from_few(logits_BV, uniforms_B, temperature)
    at_once = max(1, CACHED // vocabulary) if logits_BV.device.type == "cpu" else max(1, num_rows)
    parts = zip(logits_BV.split(at_once), uniforms_B.split(at_once), strict=True)
    drawn = [_draw_from_many(*part, temperature) for part in parts]
    tokens, logprobs = zip(*drawn, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _draw_from_few(
    logits_BV: Tensor, uniforms_B: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logprobs_BV = torch.log_softmax(logits_BV / (temperature or 1.0), -1)
    if temperature == 0:
        tokens_B1 = logprobs_BV.argmax(-1, keepdim=True)
    else:
        tokens_B1, _ = _invert(logprobs_BV.exp(), uniforms_B[:, None])
    return tokens_B1[:, 0], logprobs_BV.gather(-1, tokens_B1)[:, 0]


def _draw_from_many(
    logits_BV: Tensor, uniforms_B: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """One exponential per token, relative to the likeliest, and sums in float64 over blocks.

    `log_softmax` sums in float32, which is off by some 1e-5 with so many terms.
    """
    scale = temperature or 1.0
    peak_B1 = logits_BV.amax(-1, keepdim=True)
    weights_BV = (logits_BV - peak_B1).div_(scale).exp_()
    tokens_B1, total_B1 = _invert_by_blocks(weights_BV, uniforms_B[:, None])
    if temperature == 0:
        tokens_B1 = logits_BV.argmax(-1, keepdim=True)
    below_peak_B1 = (logits_BV.gather(-1, tokens_B1).double() - peak_B1) / scale
    return tokens_B1[:, 0], (below_peak_B1 - total_B1.log())[:, 0].float()


def _invert(weights_BV: Tensor, uniforms_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first token whose cumulative weight exceeds its share of the sum, and the sum.

    Such a token has a weight above 0, as a share is below 1.
    """
    cumulative_BV = weights_BV.cumsum(-1, dtype=torch.float64)
    total_B1 = cumulative_BV[:, -1:]
    tokens_B1 = torch.searchsorted(cumulative_BV, uniforms_B1 * total_B1, right=True)
    return tokens_B1.clamp_(max=weights_BV.shape[-1] - 1), total_B1


def _invert_by_blocks(weights_BV: Tensor, uniforms_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same in two steps: find the block, then the token in it."""
    weights_BKW = pad(weights_BV, (0, -weights_BV.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums_BK = weights_BKW.sum(-1).double()
    block_B1, total_B1 = _invert(sums_BK, uniforms_B1)
    before_B1 = (sums_BK.cumsum(-1) - sums_BK).gather(-1, block_B1)
    share_B1 = (uniforms_B1 * total_B1 - before_B1) / sums_BK.gather(-1, block_B1)
    weights_BW = weights_BKW.take_along_dim(block_B1[..., None], 1)[:, 0]
    within_B1, _ = _invert(weights_BW, share_B1.clamp_(0.0, BELOW_ONE))
    return (block_B1 * BLOCK + within_B1).clamp_(max=weights_BV.shape[-1] - 1), total_B1
