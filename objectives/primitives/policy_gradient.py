"""Per-token policy-gradient losses: the plain one and the clipped surrogate.

Shapes: `B` sequences, `T` response positions. Losses are for minimising. Every surrogate returns
its loss [B, T], 0 where masked, and a dict of detached per-token diagnostics [B, T], 0 where
masked: `log_ratio` (nats), and as 0 or 1 `clipped_low`, `clipped_high` and `dual_clipped`.
"""

import torch
from torch import Tensor

from objectives.primitives.diagnostics import surrogate_diagnostics
from objectives.primitives.engine import engine_weights
from objectives.primitives.ratios import sequence_log_ratio, token_log_ratio
from objectives.primitives.shapes import keep, require_token_matrix, spread_advantages
from objectives.primitives.variants import cispo_loss, gmpo_loss, sapo_loss

__all__ = [
    "cispo_loss",
    "clipped_policy_gradient_loss",
    "engine_weights",
    "gmpo_loss",
    "policy_gradient_loss",
    "sapo_loss",
]


def policy_gradient_loss(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return the plain policy-gradient loss -A c at each token, [B, T]; 0 where masked.

    Args:
        logprobs: [B, T] in nats under the policy; carries gradient.
        advantages: [B] or [B, T].
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.

    Raises:
        ValueError: if shapes disagree.

    >>> policy_gradient_loss(torch.tensor([[-0.5]]), torch.tensor([2.0]), torch.ones(1, 1)).item()
    1.0
    """
    require_token_matrix(logprobs=logprobs, mask=mask)
    return -spread_advantages(advantages, mask) * torch.where(keep(mask), logprobs, 0)


def clipped_policy_gradient_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    lower_bound_ratio: float = 0.0,
    importance_sampling_level: str = "token",
    token_counts: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) at each token.

    PPO's surrogate (arXiv:1707.06347) with separate bounds (clip-higher, DAPO, arXiv:2503.14476).
    With `lower_bound_ratio` k, where A < 0 the loss is at most -k A (dual clip, arXiv:1912.09729).
    At the `sequence` level r is the geometric-mean ratio of the sequence (GSPO, arXiv:2507.18071).

    Args:
        logprobs: [B, T] in nats under the policy; carries gradient.
        old_logprobs: [B, T] under the frozen behaviour policy.
        advantages: [B], or [B, T] at the token level.
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.
        epsilon_low: the ratio is clipped below 1 minus this, in [0, 1].
        epsilon_high: the ratio is clipped above 1 plus this, at least 0.
        lower_bound_ratio: k > 1, or 0 for none; token level only.
        importance_sampling_level: `token` or `sequence`.
        token_counts: [B] kept tokens per sequence, read at the sequence level; None: counted in
            the mask.

    Raises:
        ValueError: if shapes disagree, a knob is out of range, or the sequence level is given
            per-token advantages or a dual clip.

    >>> c, o = torch.tensor([[0.0]]), torch.tensor([[-0.6931472]])
    >>> loss, _ = clipped_policy_gradient_loss(
    ...     c, o, torch.tensor([1.0]), torch.ones(1, 1), epsilon_low=0.2, epsilon_high=0.2
    ... )
    >>> round(loss.item(), 6)
    -1.2
    """
    _check_clip(epsilon_low, epsilon_high, lower_bound_ratio)
    if importance_sampling_level == "sequence":
        _check_sequence_level(advantages, lower_bound_ratio)
        counts = keep(mask).sum(1) if token_counts is None else token_counts
        log_ratio = sequence_log_ratio(logprobs, old_logprobs, mask, counts)
    elif importance_sampling_level == "token":
        log_ratio = token_log_ratio(logprobs, old_logprobs, mask)
    else:
        raise ValueError(
            f"importance_sampling_level is {importance_sampling_level!r}, "
            "expected 'token' or 'sequence'"
        )
    advantage_BT = spread_advantages(advantages, mask)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    loss = torch.maximum(-ratio * advantage_BT, -clipped * advantage_BT)
    bad = advantage_BT < 0
    dual_clipped = bad & (ratio > lower_bound_ratio) if lower_bound_ratio else torch.zeros_like(bad)
    diagnostics = surrogate_diagnostics(
        log_ratio,
        clipped_low=bad & (ratio < 1 - epsilon_low),
        clipped_high=(advantage_BT > 0) & (ratio > 1 + epsilon_high),
        dual_clipped=dual_clipped,
    )
    return torch.where(dual_clipped, -lower_bound_ratio * advantage_BT, loss), diagnostics


def _check_clip(epsilon_low: float, epsilon_high: float, lower_bound_ratio: float) -> None:
    if not 0 <= epsilon_low <= 1:
        raise ValueError(f"epsilon_low is {epsilon_low}, expected a number between 0 and 1")
    if not epsilon_high >= 0:
        raise ValueError(f"epsilon_high is {epsilon_high}, expected a number of at least 0")
    if lower_bound_ratio != 0 and not lower_bound_ratio > 1:
        raise ValueError(
            f"lower_bound_ratio is {lower_bound_ratio}, expected more than 1, or 0 for no dual clip"
        )


def _check_sequence_level(advantages: Tensor, lower_bound_ratio: float) -> None:
    if advantages.ndim != 1:
        raise ValueError(
            f"advantages have shape {list(advantages.shape)}; the sequence level has one ratio per "
            "sequence and needs one advantage per sequence, [B]"
        )
    if lower_bound_ratio != 0:
        raise ValueError(
            f"lower_bound_ratio is {lower_bound_ratio}; the sequence level has no dual clip, set 0"
        )
