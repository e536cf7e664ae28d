"""Surrogates beside the clipped one; same arguments, same returns (see `policy_gradient`)."""

import torch
from torch import Tensor

from objectives.primitives.diagnostics import surrogate_diagnostics
from objectives.primitives.ratios import sequence_mean, token_log_ratio
from objectives.primitives.shapes import keep, spread_advantages


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -sg[clip(r, 1 - epsilon_low, 1 + epsilon_high)] A c at each token.

    CISPO (arXiv:2506.13585): the importance weight is clipped, not the update, so that every token
    keeps its gradient. The cap on the weight is 1 + epsilon_high: an `epsilon_high` of 4 allows
    weights up to 5. (Some libraries read the same knob as the cap itself.)

    Args:
        logprobs: [B, T] in nats under the policy; carries gradient.
        old_logprobs: [B, T] under the frozen behaviour policy.
        advantages: [B] or [B, T].
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.
        epsilon_low: the weight is at least 1 minus this; 1 sets no lower bound.
        epsilon_high: the weight is at most 1 plus this.

    Raises:
        ValueError: if shapes disagree.

    >>> o = torch.tensor([[-2.0]])
    >>> cispo_loss(o + 1, o, torch.ones(1), torch.ones(1, 1), epsilon_low=1.0, epsilon_high=0.5)[0]
    tensor([[1.5000]])
    """
    log_ratio = token_log_ratio(logprobs, old_logprobs, mask)
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    loss = -weight * spread_advantages(advantages, mask) * torch.where(keep(mask), logprobs, 0)
    return loss, surrogate_diagnostics(
        log_ratio, clipped_low=ratio < 1 - epsilon_low, clipped_high=ratio > 1 + epsilon_high
    )


def sapo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    temperature_positive: float,
    temperature_negative: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -f(r) A at each token with the soft gate f(r) = 4 / tau * sigmoid(tau (r - 1)).

    SAPO (arXiv:2511.20347). tau is the positive temperature where A > 0 and the negative one
    elsewhere. f has slope 1 at r = 1, and a larger tau closes the gate faster on either side.

    Args:
        logprobs: [B, T] in nats under the policy; carries gradient.
        old_logprobs: [B, T] under the frozen behaviour policy.
        advantages: [B] or [B, T].
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.
        temperature_positive: tau for positive advantages, above 0.
        temperature_negative: tau for the others, above 0.

    Raises:
        ValueError: if shapes disagree or a temperature is not positive.

    >>> c, one = torch.tensor([[-1.0]]), torch.ones(1, 1)
    >>> sapo_loss(c, c, one[0], one, temperature_positive=1.0, temperature_negative=1.05)[0]
    tensor([[-2.]])
    """
    if not (temperature_positive > 0 and temperature_negative > 0):
        raise ValueError(
            f"SAPO temperatures are {temperature_positive} and {temperature_negative}, "
            "expected positive numbers"
        )
    log_ratio = token_log_ratio(logprobs, old_logprobs, mask)
    advantage_BT = spread_advantages(advantages, mask)
    tau = torch.full_like(advantage_BT, temperature_negative)
    tau = torch.where(advantage_BT > 0, temperature_positive, tau)
    gate = 4 / tau * torch.sigmoid(tau * (log_ratio.exp() - 1))
    return -gate * advantage_BT, surrogate_diagnostics(log_ratio)


def gmpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -A g_i on every kept token, where g_i is the geometric mean of clipped ratios.

    GMPO (arXiv:2507.20673). In log space d = c - o is clipped on the side that the advantage pushes
    to: min(d, epsilon_high) where A > 0 and max(d, -epsilon_low) where A < 0; the epsilons are
    nats. g_i = exp(mean over kept tokens). As g_i stands on each of the sequence's tokens, the
    paper's objective is the `seq-mean-token-mean` of this loss.

    Args:
        logprobs: [B, T] in nats under the policy; carries gradient.
        old_logprobs: [B, T] under the frozen behaviour policy.
        advantages: [B] or [B, T].
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.
        epsilon_low: nats below 0 at which d is clipped for negative advantages.
        epsilon_high: nats above 0 at which d is clipped for positive advantages.

    Raises:
        ValueError: if shapes disagree.

    >>> o = torch.zeros(1, 2)
    >>> c = torch.tensor([[0.1, 0.5]])
    >>> gmpo_loss(c, o, torch.ones(1), torch.ones(1, 2), epsilon_low=0.4, epsilon_high=0.3)[0]
    tensor([[-1.2214, -1.2214]])
    """
    log_ratio = token_log_ratio(logprobs, old_logprobs, mask)
    advantage_BT = spread_advantages(advantages, mask)
    above = (advantage_BT > 0) & (log_ratio > epsilon_high)
    below = (advantage_BT < 0) & (log_ratio < -epsilon_low)
    clipped = torch.where(above, epsilon_high, log_ratio)
    clipped = torch.where(below, -epsilon_low, clipped)
    geometric_mean = sequence_mean(clipped, mask).exp().unsqueeze(1)
    return -advantage_BT * geometric_mean, surrogate_diagnostics(
        log_ratio, clipped_low=below, clipped_high=above
    )
