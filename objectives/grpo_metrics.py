"""Diagnostics of the GRPO family: every one a `Metric`, by local name, and its public name.

Shapes: `B` sequences, `T` response positions. Ratios are pi / pi_old; KLs and mismatches are nats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from objectives.metrics import Metric, MetricAdapter
from objectives.primitives.engine import engine_log_ratio
from objectives.primitives.ratios import sequence_mean, token_log_ratio

METRIC_ADAPTER = MetricAdapter(
    {
        "loss": "train/loss",
        "policy_loss": "train/policy_loss",
        "num_tokens": "train/num_tokens",
        "num_sequences": "train/num_sequences",
        "advantage_mean": "train/advantage/mean",
        "advantage_mean_square": "train/advantage/mean_square",
        "entropy": "train/entropy",
        "kl_reference": "train/kl/reference",
        "kl_old": "train/kl/old",
        "ratio_mean": "train/ratio/mean",
        "ratio_max": "train/ratio/max",
        "clip_low": "train/clip/low_fraction",
        "clip_high": "train/clip/high_fraction",
        "clip_dual": "train/clip/dual_fraction",
        "sequence_clip": "train/clip/sequence_fraction",
        "sequence_ratio_min": "train/ratio/sequence_min",
        "sequence_ratio_max": "train/ratio/sequence_max",
        "sequence_ratio_spread": "train/ratio/sequence_spread",
        "engine_mismatch_mean": "train/engine/mismatch_mean",
        "engine_mismatch_max": "train/engine/mismatch_max",
        "engine_num_missing": "train/engine/num_missing",
        "engine_zeroed": "train/engine/zeroed_fraction",
    }
)
"""Public names of everything that the objective reports."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What one chunk's loss was computed from, per token; [B, T] unless said otherwise.

    Attributes:
        kept: booleans, true on tokens that train.
        logprobs: under the policy, detached.
        old_logprobs: under the behaviour policy.
        advantages: 0 where masked.
        surrogate: diagnostics of the surrogate.
        entropy: of the policy, or None if the model did not give it.
        kl: to the reference, or None without a reference.
        engine_logprobs: NaN where the engine reported none, or None without the column.
        engine_weights: of the correction, or None without one.
    """

    kept: Tensor
    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    surrogate: dict[str, Tensor]
    entropy: Tensor | None
    kl: Tensor | None
    engine_logprobs: Tensor | None
    engine_weights: Tensor | None


@torch.no_grad()
def grpo_metrics(
    seen: Evaluated, *, consults_old_policy: bool, sequence_level: bool
) -> dict[str, Metric]:
    """Return the diagnostics of a chunk by local name; which ones does not depend on its rows."""
    metrics = _data_metrics(seen)
    if seen.entropy is not None:
        metrics["entropy"] = Metric.mean(seen.entropy.detach(), seen.kept)
    if seen.kl is not None:
        metrics["kl_reference"] = Metric.mean(seen.kl.detach(), seen.kept)
    if consults_old_policy:
        metrics |= _ratio_metrics(seen)
    if sequence_level:
        metrics |= _sequence_metrics(seen)
    if seen.engine_logprobs is not None:
        metrics |= _engine_metrics(seen, seen.engine_logprobs)
    if seen.engine_weights is not None:
        metrics["engine_zeroed"] = Metric.mean((seen.engine_weights == 0).double(), seen.kept)
    return metrics


def _data_metrics(seen: Evaluated) -> dict[str, Metric]:
    return {
        "num_tokens": Metric.sum(seen.kept.sum()),
        "num_sequences": Metric.sum(seen.kept.any(1).sum()),
        "advantage_mean": Metric.mean(seen.advantages, seen.kept),
        "advantage_mean_square": Metric.mean(seen.advantages.square(), seen.kept),
    }


def _ratio_metrics(seen: Evaluated) -> dict[str, Metric]:
    surrogate, kept = seen.surrogate, seen.kept
    ratio = surrogate["log_ratio"].exp()
    log_ratio = token_log_ratio(seen.logprobs, seen.old_logprobs, kept)
    return {
        "ratio_mean": Metric.mean(ratio, kept),
        "ratio_max": Metric.max(ratio, kept),
        # k3 of KL(pi_old, pi): its samples are pi_old's.
        "kl_old": Metric.mean(torch.expm1(log_ratio) - log_ratio, kept),
        "clip_low": Metric.mean(surrogate["clipped_low"], kept),
        "clip_high": Metric.mean(surrogate["clipped_high"], kept),
        "clip_dual": Metric.mean(surrogate["dual_clipped"], kept),
    }


def _sequence_metrics(seen: Evaluated) -> dict[str, Metric]:
    rows = seen.kept.any(1)
    clipped = seen.surrogate["clipped_low"] + seen.surrogate["clipped_high"]
    ratio = sequence_mean(seen.surrogate["log_ratio"], seen.kept).exp()
    return {
        "sequence_clip": Metric.mean((clipped > 0).any(1).double(), rows),
        "sequence_ratio_min": Metric.min(ratio, rows),
        "sequence_ratio_max": Metric.max(ratio, rows),
        "sequence_ratio_spread": Metric.mean((ratio - 1).square(), rows),
    }


def _engine_metrics(seen: Evaluated, engine_logprobs: Tensor) -> dict[str, Metric]:
    missing = seen.kept & engine_logprobs.isnan()
    known = seen.kept & ~missing
    mismatch = engine_log_ratio(seen.old_logprobs, engine_logprobs, seen.kept).abs()
    return {
        "engine_mismatch_mean": Metric.mean(mismatch, known),
        "engine_mismatch_max": Metric.max(mismatch, known),
        "engine_num_missing": Metric.sum(missing.sum()),
    }
