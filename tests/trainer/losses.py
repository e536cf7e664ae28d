"""Objectives for the trainer's tests: every built-in recipe, and custom ones, right and wrong."""

import itertools

import torch
from torch import Tensor

from configs.rl import Rl
from objectives.batch import PolicyAdapter, TrajectoryBatch
from objectives.build import ModelContext
from objectives.grpo import build_objective
from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric, MetricAdapter
from objectives.objective import Objective, Reduction, Term
from objectives.primitives.reductions import LOSS_TYPES
from tasks.trainer.reference import FrozenReference

GSPO = {"importance_sampling_level": "sequence", "lower_bound_ratio": 0.0}
TERMS = {"kl_beta": 0.1, "entropy_coef": 0.02, "temperature": 0.9}
SURROGATES = {
    "clipped": {},
    "sequence": GSPO,
    "cispo": {"grpo_surrogate": "cispo"},
    "sapo": {"grpo_surrogate": "sapo"},
}
RECIPES = {
    **{
        f"{name} {loss_type}": {"loss_type": loss_type, **knobs}
        for (name, knobs), loss_type in itertools.product(SURROGATES.items(), LOSS_TYPES)
    },
    "gmpo": {"grpo_surrogate": "gmpo"},
    "legacy_pg": {"grpo_surrogate": "legacy_pg"},
    "kl and entropy": TERMS,
    "engine truncate": {"engine_correction": "truncate", "engine_correction_high": 1.5},
    **{
        f"engine {kind}": {
            "engine_correction": kind,
            "engine_correction_low": 0.2,
            "engine_correction_high": 5.0,
        }
        for kind in ("mask", "sequence-mask")
    },
}


def built_in(recipe: str, *, behaviour: PolicyAdapter, everything: TrajectoryBatch) -> Objective:
    """Build a recipe whose old log-probabilities are another policy's, so that ratios are not 1."""
    objective = build_objective(
        Rl(mini_batches=2, **RECIPES[recipe]),
        ModelContext(name_or_path="toy", max_response_length=12),
        reference_scorer=FrozenReference(behaviour),
    )
    if objective.old_logp_cache is not None:
        scores = FrozenReference(behaviour).reference_logprobs(everything, temperature=1.0)
        objective.old_logp_cache.freeze(everything.row_ids, scores)
    return objective


def custom(fn: object, reduction: Reduction = Reduction.TOKEN_SUM) -> Objective:
    return Objective(
        fn, reduction, requires=(), metric_adapter=MetricAdapter({}), identity={"name": "custom"}
    )


def _sums(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the advantage-weighted sum of the kept tokens, their number, and that of sequences."""
    logprobs = model.token_logprobs(batch, temperature=1.0).logprobs
    mask = batch.loss_mask.to(logprobs)
    total = -(logprobs * mask * batch.advantages[:, None]).sum()
    return total, mask.sum(), mask.any(1).to(logprobs).sum()


def weighted(loss: Tensor, weight: Tensor) -> tuple[Tensor, dict[str, Metric]]:
    return loss, {OBJECTIVE_WEIGHT_SUM: Metric.sum(weight)}


def token_mean(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    total, num_tokens, _ = _sums(model, batch)
    return weighted(total / num_tokens.clamp(min=1), num_tokens)


def sequences_as_tokens(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    total, num_tokens, num_sequences = _sums(model, batch)
    return weighted(total / num_tokens.clamp(min=1), num_sequences)


def weight_of_another_mask(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    total, num_tokens, _ = _sums(model, batch)
    return weighted(total / num_tokens.clamp(min=1), batch.response_mask.sum().to(total))


def two_terms(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    """A mean over tokens plus a mean over sequences of a square: two units, two weights."""
    total, num_tokens, num_sequences = _sums(model, batch)
    logprobs = model.token_logprobs(batch, temperature=1.0).logprobs
    squares = (logprobs * batch.loss_mask).sum(1).square().sum()
    return (Term(total, num_tokens), Term(squares, num_sequences)), {}


def mean_over_sequences(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    logprobs = model.token_logprobs(batch, temperature=1.0).logprobs
    return (logprobs * batch.loss_mask).sum(1).mean(), {}


def infinite(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    total, num_tokens, _ = _sums(model, batch)
    return weighted(total * torch.inf, num_tokens)


def not_a_number(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    """The gradient is finite, and the loss is not."""
    loss, metrics = token_mean(model, batch)
    return loss + torch.nan, metrics


def rounding_alone(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    """Its advantages are what is left where log-probabilities cancel: last bits, other ones in
    every chunk."""
    logprobs = model.token_logprobs(batch, temperature=1.0).logprobs
    mask = batch.loss_mask.to(logprobs)
    generator = torch.Generator().manual_seed(batch.num_sequences)
    left = torch.finfo(logprobs.dtype).eps * torch.randn(logprobs.shape, generator=generator)
    return weighted((logprobs * left * mask).sum() / mask.sum().clamp(min=1), mask.sum())


def small_and_wrong(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    loss, metrics = sequences_as_tokens(model, batch)
    return loss * 1e-3, metrics


def build_sequences_as_tokens(_rl: Rl, _context: ModelContext) -> Objective:
    return custom(sequences_as_tokens)
