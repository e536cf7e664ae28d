"""Inputs for the tests, with garbage wherever nothing may be read, and a ten-line policy."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from objectives.batch import TokenLogprobs, TrajectoryBatch
from objectives.metrics import Metric, merge_metrics
from objectives.objective import Objective, loss_terms

LENGTHS = (5, 1, 0, 3)
VOCABULARY = 6
GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e30)


class Tokens(NamedTuple):
    """[B, T] each, but for the [B] advantages."""

    c: Tensor
    o: Tensor
    advantages: Tensor
    mask: Tensor


def spoil(values: Tensor, mask: Tensor) -> Tensor:
    """Put garbage where the mask is 0."""
    pattern = torch.tensor(GARBAGE, dtype=values.dtype).repeat(values.numel())[: values.numel()]
    return torch.where(mask != 0, values, pattern.reshape(values.shape))


def make_mask(lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    return (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()


def make_tokens(seed: int = 0, *, spread: float = 0.6) -> Tokens:
    """Random tokens in float64, two rows of them with ratios on either side of every clip."""
    g = torch.Generator().manual_seed(seed)
    mask = make_mask()
    o = -torch.rand(mask.shape, generator=g, dtype=torch.float64) * 3 - 0.1
    c = o + spread * torch.randn(mask.shape, generator=g, dtype=torch.float64)
    advantages = torch.tensor([1.3, -0.7, 5.0, -1.1], dtype=torch.float64)
    return Tokens(spoil(c, mask).requires_grad_(), spoil(o, mask), advantages, mask)


def make_batch(
    lengths: tuple[int, ...] = LENGTHS, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> TrajectoryBatch:
    """Rows of the given lengths after prompts of two tokens; a padded position at the end."""
    g = torch.Generator().manual_seed(seed)
    mask = nn.functional.pad(make_mask(lengths), (0, 1))
    rows, width = mask.shape
    prompts = torch.randint(VOCABULARY, (rows, 2), generator=g)
    responses = torch.randint(VOCABULARY, (rows, width), generator=g)
    engine = -torch.rand((rows, width), generator=g, dtype=dtype) * 2 - 0.5
    engine[0, 0] = torch.nan
    loss_mask = mask.clone()
    loss_mask[0, 1] = 0
    return TrajectoryBatch(
        row_ids=torch.arange(rows) * 10 + 3,
        input_ids=torch.cat([prompts, responses], 1),
        attention_mask=torch.cat([torch.ones(rows, 2, dtype=torch.long), mask], 1),
        response_tokens=responses,
        loss_mask=loss_mask,
        token_counts=loss_mask.sum(1),
        advantages=torch.randn(rows, generator=g, dtype=dtype),
        engine_logprobs=spoil(engine, loss_mask),
    )


class BigramPolicy(nn.Module):
    """Next-token logits are a row of one parameter; garbage where nothing trains."""

    def __init__(self, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.theta = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=g, dtype=dtype))

    def token_logprobs(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        width = batch.response_tokens.shape[1]
        logits = self.theta[batch.input_ids[:, -width - 1 : -1]] / temperature
        logprobs = logits.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        chosen = logprobs.gather(-1, batch.response_tokens[..., None])[..., 0]
        return TokenLogprobs(
            spoil(chosen, batch.loss_mask),
            spoil(entropy, batch.loss_mask) if with_entropy else None,
        )


class FixedReference:
    """Scores with a policy of its own, never trained."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        self.policy = BigramPolicy(seed=9, dtype=dtype)

    def reference_logprobs(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        return self.policy.token_logprobs(batch, temperature=temperature).logprobs.detach()


def freeze(objective: Objective, batch: TrajectoryBatch, policy: BigramPolicy) -> None:
    assert objective.old_logp_cache is not None
    scored = policy.token_logprobs(batch, temperature=1.0)
    objective.old_logp_cache.freeze(batch.row_ids, scored.logprobs)


def step_gradient(
    objective: Objective, policy: BigramPolicy, chunks: list[TrajectoryBatch]
) -> tuple[Tensor, dict[str, Metric]]:
    """Return what one optimizer step would see: numerators and weights summed, divided once."""
    policy.zero_grad()
    weight, reported = torch.zeros((), dtype=torch.float64), []
    for chunk in chunks:
        loss, metrics = objective.fn(policy, chunk)
        (term,) = loss_terms(
            loss, metrics, reduction=objective.reduction, num_sequences=chunk.num_sequences
        )
        term.numerator.backward()
        weight += term.weight
        reported.append(objective.metric_adapter.adapt(metrics))
    assert policy.theta.grad is not None
    return policy.theta.grad.clone() / weight, merge_metrics(reported)
