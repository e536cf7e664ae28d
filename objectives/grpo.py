"""GRPO and its relatives: one objective whose surrogate and knobs the `rl` section selects.

Shapes: `B` sequences, `T` response positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from configs.rl import Rl, SurrogateKnobs
from configs.surrogates import SURROGATES, SurrogateRow
from objectives.batch import PolicyAdapter, ReferenceScorer, TokenLogprobs, TrajectoryBatch
from objectives.build import ModelContext
from objectives.grpo_identity import grpo_identity
from objectives.grpo_metrics import METRIC_ADAPTER, Evaluated, grpo_metrics
from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric
from objectives.objective import Objective, Reduction
from objectives.old_logp import OldLogpCache
from objectives.primitives.kl import kl_penalty
from objectives.primitives.policy_gradient import engine_weights
from objectives.primitives.reductions import reduce_policy_gradient_loss, require_response_length
from objectives.primitives.shapes import keep, spread_advantages
from objectives.surrogates import SURROGATE_LOSSES, SurrogateInputs


@dataclass(frozen=True, kw_only=True)
class GrpoLoss:
    """The `fn` of a GRPO objective: surrogate, KL and entropy over one declared weight.

    Attributes:
        rl: the `rl` section.
        loss_type: reduction of all terms.
        max_response_length: tokens; read by the fixed-length reduction.
        old_logp_cache: serves log pi_old; None if each batch gets one update, as then pi_old is the
            policy itself.
        reference_scorer: scores the frozen reference; needed if `rl.kl_beta` is not 0.
    """

    rl: Rl
    loss_type: str
    max_response_length: int
    old_logp_cache: OldLogpCache | None
    reference_scorer: ReferenceScorer | None

    def __call__(
        self, model: PolicyAdapter, batch: TrajectoryBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Score the chunk and return its loss and metrics.

        Raises:
            ValueError: if a column or a scorer that the configuration needs is not there.
            KeyError: if log pi_old of a row was not frozen.
        """
        scored = model.token_logprobs(batch, temperature=self.rl.temperature, with_entropy=True)
        return self.from_scores(scored, batch)

    def from_scores(
        self, scored: TokenLogprobs, batch: TrajectoryBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss and metrics of a chunk that the policy has scored.

        An objective with advantages of its own per token calls this with a batch that holds them.
        """
        old_logprobs = self.old_logprobs(scored.logprobs, batch)
        policy_loss, diagnostics, weights = self._policy_loss(scored.logprobs, old_logprobs, batch)
        kl = self._kl(scored.logprobs, batch)
        total = self._total(policy_loss, kl, scored.entropy, batch.loss_mask)
        loss, weight = self._reduce(total, batch.loss_mask)
        policy_part, _ = self._reduce(policy_loss.detach(), batch.loss_mask)
        seen = Evaluated(
            kept=keep(batch.loss_mask),
            logprobs=scored.logprobs.detach(),
            old_logprobs=old_logprobs,
            advantages=spread_advantages(batch.advantages, batch.loss_mask),
            surrogate=diagnostics,
            entropy=scored.entropy,
            kl=kl,
            engine_logprobs=batch.engine_logprobs,
            engine_weights=weights,
        )
        metrics = grpo_metrics(
            seen,
            consults_old_policy=SURROGATES[self.rl.grpo_surrogate].consults_old_policy,
            sequence_level=self.rl.importance_sampling_level == "sequence",
        )
        metrics["loss"] = Metric(loss.detach() * weight, weight)
        metrics["policy_loss"] = Metric(policy_part * weight, weight)
        return loss, metrics | {OBJECTIVE_WEIGHT_SUM: Metric.sum(weight)}

    def old_logprobs(self, logprobs: Tensor, batch: TrajectoryBatch) -> Tensor:
        """Return log pi_old [B, T]: frozen, or the policy's own when it is updated once."""
        if self.old_logp_cache is None:
            return logprobs.detach()
        return self.old_logp_cache.rows(batch.row_ids, width=logprobs.shape[1])

    def _policy_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, batch: TrajectoryBatch
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        inputs = SurrogateInputs(logprobs, old_logprobs, batch.advantages, batch.loss_mask)
        loss, diagnostics = SURROGATE_LOSSES[self.rl.grpo_surrogate].loss(inputs, self.rl)
        if self.rl.engine_correction == "none":
            return loss, diagnostics, None
        if batch.engine_logprobs is None:
            raise ValueError(
                f"rl.engine_correction={self.rl.engine_correction!r} needs the column "
                "'engine_logprobs', which the rollout stage produces"
            )
        weights = engine_weights(
            old_logprobs,
            batch.engine_logprobs,
            batch.loss_mask,
            correction=self.rl.engine_correction,
            low=self.rl.engine_correction_low,
            high=self.rl.engine_correction_high,
        )
        return loss * weights, diagnostics, weights

    def _kl(self, logprobs: Tensor, batch: TrajectoryBatch) -> Tensor | None:
        if self.rl.kl_beta == 0:
            return None
        if self.reference_scorer is None:
            raise ValueError(
                f"rl.kl_beta={self.rl.kl_beta} needs a reference; hand build_objective a "
                "reference_scorer, or set rl.kl_beta=0"
            )
        with torch.no_grad():
            reference = self.reference_scorer.reference_logprobs(
                batch, temperature=self.rl.temperature
            )
        return kl_penalty(logprobs, reference, batch.loss_mask, self.rl.kl_estimator)

    def _total(
        self, policy_loss: Tensor, kl: Tensor | None, entropy: Tensor | None, mask: Tensor
    ) -> Tensor:
        total = policy_loss if kl is None else policy_loss + self.rl.kl_beta * kl
        if self.rl.entropy_coef == 0:
            return total
        if entropy is None:
            raise ValueError(
                f"rl.entropy_coef={self.rl.entropy_coef} needs entropies, but the policy adapter "
                "returned none; its token_logprobs must honour with_entropy=True"
            )
        return total - self.rl.entropy_coef * torch.where(keep(mask), entropy, 0)

    def _reduce(self, per_token_loss: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return reduce_policy_gradient_loss(
            per_token_loss, mask, self.loss_type, max_response_length=self.max_response_length
        )


def build_objective(
    rl: Rl,
    model_context: ModelContext,
    *,
    reference_scorer: ReferenceScorer | None = None,
    staleness: int = 0,
) -> Objective:
    """Build the GRPO-family objective that the `rl` section describes.

    Dr-GRPO, GSPO and DAPO are values of the section's knobs. All terms share one weight, that of
    the loss type, and the trainer divides by its total once.

    Args:
        rl: the resolved `rl` section.
        model_context: only `max_response_length` is read.
        reference_scorer: scorer of the frozen reference; used if `rl.kl_beta` is not 0, and then
            needed before the first loss.
        staleness: most policy versions between sampling and training; above 0 the behaviour
            policy's log-probabilities are frozen even if each batch gets one update.

    Raises:
        ValueError: for an invalid `max_response_length`, a knob that the surrogate never reads, or
            a dual clip at the sequence level.
    """
    row = SURROGATES[rl.grpo_surrogate]
    max_response_length = require_response_length(model_context.max_response_length)
    _refuse_unread_knobs(rl, row)
    loss_type = SURROGATE_LOSSES[rl.grpo_surrogate].loss_type or rl.loss_type
    frozen = row.consults_old_policy and (rl.mini_batches > 1 or staleness > 0)
    cache = OldLogpCache() if frozen else None
    scorer = reference_scorer if rl.kl_beta else None
    return Objective(
        GrpoLoss(
            rl=rl,
            loss_type=loss_type,
            max_response_length=max_response_length,
            old_logp_cache=cache,
            reference_scorer=scorer,
        ),
        Reduction.TOKEN_SUM,
        requires=row.requires + _engine_columns(rl),
        metric_adapter=METRIC_ADAPTER,
        identity=grpo_identity(
            rl,
            loss_type=loss_type,
            max_response_length=max_response_length,
            staleness=staleness,
        ),
        old_logp_cache=cache,
        reference_scorer=scorer,
    )


def _engine_columns(rl: Rl) -> tuple[str, ...]:
    reads = rl.engine_correction != "none" or rl.old_logprobs == "engine"
    return ("engine_logprobs",) if reads else ()


def _refuse_unread_knobs(rl: Rl, row: SurrogateRow) -> None:
    terms = {"kl_beta", "kl_estimator", "entropy_coef", "engine_correction"}
    knobs = (SurrogateKnobs.model_fields.keys() - {"grpo_surrogate"}) | terms
    unread = sorted(rl.changed() & (knobs - row.reads))
    if unread:
        raise ValueError(
            f"rl.{unread[0]} is {getattr(rl, unread[0])!r}, but the surrogate "
            f"{rl.grpo_surrogate!r} never reads it; leave it at its default"
        )
    if rl.importance_sampling_level == "sequence" and rl.lower_bound_ratio:
        raise ValueError(
            f"rl.lower_bound_ratio is {rl.lower_bound_ratio}, but the sequence level has no dual "
            "clip; set it to 0"
        )
