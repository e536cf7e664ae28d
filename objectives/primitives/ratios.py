"""Importance ratios in log space, per token and per sequence.

Shapes: `B` sequences, `T` response positions. Log-probabilities are in nats.
"""

import torch
from torch import Tensor

from objectives.primitives.shapes import keep, require_shape, require_token_matrix

TOKEN_LOG_RATIO_BOUND = 20.0
"""A single token's log-ratio is clamped to +-this: exp(20) is finite in every float format used."""

SEQUENCE_LOG_RATIO_CAP = 10.0
"""Upper bound of a sequence's mean log-ratio; without a dual clip nothing else bounds A < 0."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return c - o on kept tokens and 0 elsewhere, [B, T]; pi_old carries no gradient.

    Raises:
        ValueError: if shapes disagree.
    """
    require_token_matrix(logprobs=logprobs, old_logprobs=old_logprobs, mask=mask)
    return torch.where(keep(mask), logprobs - old_logprobs.detach(), 0)


def token_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return log pi(y_t) - log pi_old(y_t), clamped to [-20, 20]; 0 where masked.

    Args:
        logprobs: [B, T] under the policy; carries gradient.
        old_logprobs: [B, T] under the frozen behaviour policy.
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.

    Raises:
        ValueError: if shapes disagree.

    >>> c = torch.tensor([[-1.0, -2.0, 50.0]])
    >>> o = torch.tensor([[-1.5, -2.0, float("nan")]])
    >>> token_log_ratio(c, o, torch.tensor([[1, 1, 0]])).tolist()
    [[0.5, 0.0, 0.0]]
    """
    ratio = log_ratio(logprobs, old_logprobs, mask)
    return ratio.clamp(-TOKEN_LOG_RATIO_BOUND, TOKEN_LOG_RATIO_BOUND)


def sequence_log_ratio(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, token_counts: Tensor
) -> Tensor:
    """Return GSPO's log-ratio min(sg[z_i] + c_t - sg[c_t], 10) on kept tokens, 0 elsewhere.

    z_i = sum_t m_t (c_t - o_t) / token_counts_i is the log of the sequence's geometric-mean ratio
    (GSPO, arXiv:2507.18071). Every kept token has its value, and the gradient reaches each token's
    own log-probability. There is no bound from below: clipping acts there.

    Args:
        logprobs: [B, T] under the policy; carries gradient.
        old_logprobs: [B, T] under the frozen behaviour policy.
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.
        token_counts: [B] number of tokens of each sequence that train; 0 gives a row of zeros.

    Raises:
        ValueError: if shapes disagree.

    >>> c, o = torch.tensor([[-0.7, -1.1, -0.9]]), torch.tensor([[-1.0, -1.0, -1.0]])
    >>> ratio = sequence_log_ratio(c, o, torch.ones(1, 3), torch.tensor([3])).exp()
    >>> [round(value, 6) for value in ratio[0].tolist()]
    [1.105171, 1.105171, 1.105171]
    """
    difference = log_ratio(logprobs, old_logprobs, mask)
    require_shape("token_counts", token_counts, (logprobs.shape[0],))
    kept = keep(mask)
    mean_log_ratio = difference.detach().sum(1) / token_counts.clamp(min=1)
    own = torch.where(kept, logprobs - logprobs.detach(), 0)
    shared = mean_log_ratio.unsqueeze(1) + own
    return torch.where(kept, shared.clamp(max=SEQUENCE_LOG_RATIO_CAP), 0)


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over each sequence's kept tokens, [B]; 0 for a sequence without any.

    Args:
        values: [B, T]; what stands where the mask is 0 is never read.
        mask: [B, T].

    >>> sequence_mean(torch.tensor([[1.0, 3.0], [5.0, 5.0]]), torch.tensor([[1, 1], [0, 0]]))
    tensor([2., 0.])
    """
    kept = keep(mask)
    return torch.where(kept, values, 0).sum(1) / kept.sum(1).clamp(min=1)
