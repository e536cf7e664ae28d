"""From per-token losses to one loss and the weight it was divided by.

Shapes: `B` sequences, `T` response positions.
"""

import torch
from torch import Tensor

from objectives.primitives.ratios import sequence_mean
from objectives.primitives.shapes import keep, require_token_matrix

LOSS_TYPES = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-fixed",
)
"""Every way of weighting tokens that `reduce_policy_gradient_loss` knows."""


def reduce_policy_gradient_loss(
    per_token_loss: Tensor,
    mask: Tensor,
    loss_type: str,
    *,
    max_response_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `(loss, weight)` where loss = numerator / weight.

    | `loss_type`                | numerator                               | weight            |
    |----------------------------|-----------------------------------------|-------------------|
    | `token-mean`               | sum of m l                              | kept tokens       |
    | `seq-mean-token-mean`      | sum_i (sum_t m l) / L_i                 | kept sequences    |
    | `seq-mean-token-sum`       | sum_i sum_t m l                         | kept sequences    |
    | `seq-mean-token-sum-fixed` | sum_i (sum_t m l) / max_response_length | kept sequences    |

    L_i is the number of kept tokens of sequence i; a sequence is kept if L_i > 0. The last type is
    Dr-GRPO's (arXiv:2503.20783). Numerators and weights of several chunks add up; only their totals
    may be divided. With weight 0 the loss is a finite zero on the graph.

    Args:
        per_token_loss: [B, T]; what stands where the mask is 0 is never read.
        mask: [B, T], 1 on tokens that train.
        loss_type: one of `LOSS_TYPES`.
        max_response_length: tokens, the bound that rollouts were sampled under; read by
            `seq-mean-token-sum-fixed` only.

    Returns:
        Two scalars: the loss, and the weight without gradient.

    Raises:
        ValueError: for an unknown loss type, disagreeing shapes, or a missing or invalid
            `max_response_length` where it is read.

    >>> losses = torch.tensor([[1.0] + [0.0] * 8, [2.0] * 9])
    >>> mask = torch.tensor([[1] + [0] * 8, [1] * 9])
    >>> [round(x.item(), 4) for x in reduce_policy_gradient_loss(losses, mask, "token-mean")]
    [1.9, 10.0]
    """
    require_token_matrix(per_token_loss=per_token_loss, mask=mask)
    kept = keep(mask)
    loss_BT = torch.where(kept, per_token_loss, 0)
    if loss_type == "token-mean":
        return _divide(loss_BT.sum(), kept.sum())
    if loss_type == "seq-mean-token-mean":
        loss_B = sequence_mean(loss_BT, kept)
    elif loss_type == "seq-mean-token-sum":
        loss_B = loss_BT.sum(1)
    elif loss_type == "seq-mean-token-sum-fixed":
        loss_B = loss_BT.sum(1) / require_response_length(max_response_length)
    else:
        raise ValueError(f"loss_type is {loss_type!r}, expected one of {', '.join(LOSS_TYPES)}")
    return _divide(loss_B.sum(), kept.any(1).sum())


def _divide(numerator: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    weight = count.to(numerator.dtype)
    return numerator / weight.clamp(min=1), weight


def require_response_length(max_response_length: object) -> int:
    """Return the bound if it is a positive whole number.

    Raises:
        ValueError: for a bool, a fraction, zero, a negative number or None.

    >>> require_response_length(12)
    12
    """
    if (
        isinstance(max_response_length, bool)
        or not isinstance(max_response_length, int)
        or max_response_length < 1
    ):
        raise ValueError(
            f"max_response_length is {max_response_length!r}, expected a positive whole number of "
            "tokens; it is rollout.max_tokens"
        )
    return max_response_length
