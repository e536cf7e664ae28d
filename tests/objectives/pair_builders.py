"""Pairs for the tests: completions of a bigram policy, and points of a linear denoiser."""

import torch
from torch import Tensor, nn

from objectives.pairs import DiffusionBatch, PreferenceBatch
from tests.objectives.builders import BigramPolicy, make_batch

PAIR_LENGTHS = ((5, 2), (1, 3), (4, 4), (2, 0))
"""Tokens of the chosen and of the rejected completion; the last pair has a side of none."""


def make_pairs(
    lengths: tuple[tuple[int, int], ...] = PAIR_LENGTHS,
    *,
    reference: BigramPolicy | None = None,
    dtype: torch.dtype = torch.float64,
) -> PreferenceBatch:
    """Pairs scored by a reference; garbage where the reference was never asked."""
    chosen, rejected = zip(*lengths, strict=True)
    responses = make_batch((*chosen, *rejected), dtype=dtype)
    policy = reference or BigramPolicy(seed=9, dtype=dtype)
    with torch.no_grad():
        scored = policy.token_logprobs(responses, temperature=1.0).logprobs
    sums = torch.where(responses.loss_mask != 0, scored, 0).sum(1)
    sums[responses.token_counts == 0] = torch.nan
    first, second = sums.chunk(2)
    return PreferenceBatch(
        pair_ids=torch.arange(len(lengths)) + 40,
        responses=responses,
        reference_chosen=first,
        reference_rejected=second,
    )


class Linear(nn.Module):
    """A denoiser that multiplies a point and its timestep by parameters."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.theta = nn.Parameter(torch.randn(3, 2, generator=g, dtype=torch.float64))

    def predict(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        time = timesteps[:, None].to(noisy)
        return torch.cat([noisy, time], 1) @ self.theta


def make_points(num_pairs: int = 4, *, seed: int = 0) -> DiffusionBatch:
    g = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(num_pairs, 2, generator=g, dtype=torch.float64)

    angle = torch.rand(num_pairs, generator=g, dtype=torch.float64) * 1.5
    return DiffusionBatch(
        pair_ids=torch.arange(num_pairs),
        chosen=normal(),
        rejected=normal(),
        noise=normal(),
        timesteps=torch.arange(num_pairs) % 3,
        signal=angle.cos(),
        spread=angle.sin(),
    )
