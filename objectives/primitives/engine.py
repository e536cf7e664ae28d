"""What to do about tokens on which the sampling engine and the trainer disagree."""

import torch
from torch import Tensor

from objectives.primitives.ratios import TOKEN_LOG_RATIO_BOUND, sequence_mean
from objectives.primitives.shapes import keep, require_token_matrix


def engine_log_ratio(old_logprobs: Tensor, engine_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Return log pi_old - log mu, [B, T], without gradient; 0 where masked or where mu is NaN.

    Raises:
        ValueError: if shapes disagree.
    """
    require_token_matrix(old_logprobs=old_logprobs, engine_logprobs=engine_logprobs, mask=mask)
    known = keep(mask) & ~engine_logprobs.isnan()
    return torch.where(known, old_logprobs - engine_logprobs, 0).detach()


def engine_weights(
    old_logprobs: Tensor,
    engine_logprobs: Tensor,
    mask: Tensor,
    *,
    correction: str,
    low: float,
    high: float,
) -> Tensor:
    """Return the weight of each token's loss that corrects for the engine, [B, T]; 0 where masked.

    With w = exp(log pi_old - log mu), where mu is the engine's probability of the token it sampled:

    * `none`: 1.
    * `truncate`: min(w, high) (truncated importance sampling).
    * `mask`: w inside [low, high] and 0 outside (IcePop, arXiv:2510.18855).
    * `sequence-mask`: w for the sequences whose geometric mean of w lies inside [low, high], 0 for
      every token of the others.

    A weight of 0 takes a token out of the numerator only: it still counts in the loss's weight.

    Args:
        old_logprobs: [B, T] in nats, by the trainer.
        engine_logprobs: [B, T] by the engine; NaN counts as w = 1.
        mask: [B, T], 1 on tokens that train; what stands elsewhere is never read.
        correction: one of the four above.
        low: lower bound of w; read by the two masks.
        high: upper bound of w.

    Raises:
        ValueError: for another correction or disagreeing shapes.

    >>> o, mu = torch.zeros(1, 3), torch.tensor([[0.0, -1.0, float("nan")]])
    >>> engine_weights(o, mu, torch.ones(1, 3), correction="truncate", low=0.5, high=2.0)
    tensor([[1., 2., 1.]])
    """
    log_weight = engine_log_ratio(old_logprobs, engine_logprobs, mask)
    bounded = log_weight.clamp(-TOKEN_LOG_RATIO_BOUND, TOKEN_LOG_RATIO_BOUND)
    weight = bounded.exp()
    if correction == "none":
        weight = torch.ones_like(weight)
    elif correction == "truncate":
        weight = weight.clamp(max=high)
    elif correction == "mask":
        weight = torch.where((weight >= low) & (weight <= high), weight, 0)
    elif correction == "sequence-mask":
        mean = sequence_mean(bounded, mask).exp().unsqueeze(1)
        weight = torch.where((mean >= low) & (mean <= high), weight, 0)
    else:
        raise ValueError(
            f"engine correction is {correction!r}, expected none, truncate, mask or sequence-mask"
        )
    return torch.where(keep(mask), weight, 0)
