"""Pairwise preference losses over sequence log-probabilities."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from objectives.primitives.shapes import keep, require_shape, require_token_matrix

SMOOTHED_KINDS = ("sigmoid", "robust")
"""The kinds that read `label_smoothing`."""


def sequence_logprobs(logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return the log-probability of each sequence [B], the sum over its kept tokens, in nats.

    Args:
        logprobs: [B, T] of the tokens.
        mask: [B, T], 1 on tokens that count; what stands elsewhere is never read.

    Raises:
        ValueError: if shapes disagree.

    >>> sequence_logprobs(torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[1, 1, 0]]))
    tensor([-3.])
    """
    require_token_matrix(logprobs=logprobs, mask=mask)
    return torch.where(keep(mask), logprobs, 0).sum(1)


def preference_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float,
    kind: str,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the loss of each (chosen, rejected) pair, [B].

    With the margin h = (policy_chosen - policy_rejected) - (reference_chosen - reference_rejected)
    and s = `label_smoothing`, the assumed share of swapped labels:

    * `sigmoid`: -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h) (DPO, arXiv:2305.18290; s > 0
      is its conservative form).
    * `robust`: [-(1 - s) log sigmoid(beta h) + s log sigmoid(-beta h)] / (1 - 2 s), unbiased under
      swapped labels (arXiv:2403.00409).
    * `ipo`: (h - 1 / (2 beta))^2 (arXiv:2310.12036); the caller passes per-token means.
    * `hinge`: max(0, 1 - beta h) (SLiC, arXiv:2305.10425).

    Args:
        policy_chosen: [B] log-probability of the chosen response, in nats; carries gradient.
        policy_rejected: [B] of the rejected response.
        reference_chosen: [B] under the frozen reference.
        reference_rejected: [B] under the frozen reference.
        beta: strength of the pull to the reference, above 0.
        kind: one of the four above.
        label_smoothing: s in [0, 0.5); read by `sigmoid` and `robust`, must be 0 elsewhere.

    Raises:
        ValueError: for another kind, disagreeing shapes, or a knob that is out of range or unread.

    >>> zero = torch.zeros(1)
    >>> preference_loss(zero, zero, zero, zero, beta=0.1, kind="sigmoid")
    tensor([0.6931])
    """
    _check_knobs(beta, kind, label_smoothing)
    margin = _margin(policy_chosen, policy_rejected, reference_chosen, reference_rejected)
    if kind == "ipo":
        return (margin - 1 / (2 * beta)).square()
    if kind == "hinge":
        return relu(1 - beta * margin)
    right = -(1 - label_smoothing) * logsigmoid(beta * margin)
    swapped = -label_smoothing * logsigmoid(-beta * margin)
    if kind == "sigmoid":
        return right + swapped
    return (right - swapped) / (1 - 2 * label_smoothing)


def _margin(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
) -> Tensor:
    require_shape("policy_chosen", policy_chosen, (None,))
    others = {
        "policy_rejected": policy_rejected,
        "reference_chosen": reference_chosen,
        "reference_rejected": reference_rejected,
    }
    for name, tensor in others.items():
        require_shape(name, tensor, tuple(policy_chosen.shape))
    reference = (reference_chosen - reference_rejected).detach()
    return policy_chosen - policy_rejected - reference


def _check_knobs(beta: float, kind: str, label_smoothing: float) -> None:
    if kind not in {*SMOOTHED_KINDS, "ipo", "hinge"}:
        raise ValueError(f"preference kind is {kind!r}, expected sigmoid, robust, ipo or hinge")
    if not beta > 0:
        raise ValueError(f"beta is {beta}, expected a number above 0")
    if not 0 <= 2 * label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected at least 0, under 0.5")
    if label_smoothing and kind not in SMOOTHED_KINDS:
        raise ValueError(
            f"label_smoothing is {label_smoothing}, but {kind!r} never reads it; set 0"
        )
