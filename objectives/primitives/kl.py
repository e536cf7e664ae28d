"""Per-token estimators of the KL divergence from a frozen reference."""

import torch
from torch import Tensor

from objectives.primitives.shapes import keep, require_token_matrix

LOG_RATIO_CAP = 20.0
"""Upper bound on k3's exponent: exp stays finite, and so does its gradient."""


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, estimator: str) -> Tensor:
    """Return an estimate of KL(policy, reference) at each sampled token; 0 where masked.

    With c the policy's and ref the reference's log-probability of the sampled token, in nats:
    k1 = c - ref; k2 = (c - ref)^2 / 2; k3 = exp(x) - x - 1 with x = min(ref - c, 20)
    (J. Schulman, "Approximating KL divergence", 2020; k3 in GRPO, arXiv:2402.03300). The clamp acts
    on the input, since behind an infinite exp the gradient is NaN, and from above only, so that a
    token that has become far more probable than under the reference is still pulled back.

    Args:
        logprobs: [B, T] under the policy; carries gradient.
        ref_logprobs: [B, T] under the reference; frozen.
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.
        estimator: `k1`, `k2` or `k3`.

    Raises:
        ValueError: for another estimator or disagreeing shapes.

    >>> kl_penalty(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), torch.ones(1, 1), "k3").item()
    0.0
    """
    require_token_matrix(logprobs=logprobs, ref_logprobs=ref_logprobs, mask=mask)
    difference = torch.where(keep(mask), logprobs - ref_logprobs.detach(), 0)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        x = (-difference).clamp(max=LOG_RATIO_CAP)
        return torch.expm1(x) - x
    raise ValueError(f"kl estimator is {estimator!r}, expected k1, k2 or k3")
