"""An objective of one's own: wrong responses push with another strength than right ones.

It stands outside the project's packages. `recipe.yaml` beside it names it in `rl.builder`, and
`PYTHONPATH` names the directory that holds it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from configs.rl import AdvantageKnobs, Regularisers, Rl, SurrogateKnobs
from objectives.batch import PolicyAdapter, TrajectoryBatch
from objectives.build import ModelContext
from objectives.objective import (
    OBJECTIVE_WEIGHT_SUM,
    Metric,
    MetricAdapter,
    Objective,
    OldLogpCache,
    Reduction,
)
from objectives.primitives.policy_gradient import clipped_policy_gradient_loss
from objectives.primitives.reductions import reduce_policy_gradient_loss
from objectives.primitives.shapes import keep, spread_advantages

READS = ("temperature", "loss_type", "epsilon_low", "epsilon_high")
"""Knobs of the `rl` section that this loss depends on; every other one is refused when set."""

METRIC_ADAPTER = MetricAdapter(
    {
        "loss": "train/loss",
        "negative": "train/asymmetric/negative_fraction",
        "clipped": "train/asymmetric/clipped_fraction",
    }
)


@dataclass(frozen=True, kw_only=True)
class AsymmetricLoss:
    """The clipped surrogate over advantages of which the negative ones are scaled.

    Attributes:
        rl: the `rl` section; `READS` says what is read.
        strength: what negative advantages are multiplied by.
        max_response_length: tokens; read by the fixed-length reduction.
        old_logp_cache: serves log pi_old; None if each batch gets one update.
    """

    rl: Rl
    strength: float
    max_response_length: int
    old_logp_cache: OldLogpCache | None

    def __call__(
        self, model: PolicyAdapter, batch: TrajectoryBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Score the chunk and return its loss, its metrics and the weight of both."""
        logprobs_BT = model.token_logprobs(batch, temperature=self.rl.temperature).logprobs
        advantage_BT = spread_advantages(batch.advantages, batch.loss_mask)
        per_token_loss_BT, seen = clipped_policy_gradient_loss(
            logprobs_BT,
            self._old_logprobs(logprobs_BT, batch),
            torch.where(advantage_BT < 0, self.strength * advantage_BT, advantage_BT),
            batch.loss_mask,
            epsilon_low=self.rl.epsilon_low,
            epsilon_high=self.rl.epsilon_high,
        )
        loss, weight = reduce_policy_gradient_loss(
            per_token_loss_BT,
            batch.loss_mask,
            self.rl.loss_type,
            max_response_length=self.max_response_length,
        )
        kept = keep(batch.loss_mask)
        return loss, {
            OBJECTIVE_WEIGHT_SUM: Metric.sum(weight),
            "loss": Metric(loss.detach() * weight, weight),
            "negative": Metric.mean((advantage_BT < 0).double(), kept),
            "clipped": Metric.mean(seen["clipped_low"] + seen["clipped_high"], kept),
        }

    def _old_logprobs(self, logprobs_BT: Tensor, batch: TrajectoryBatch) -> Tensor:
        if self.old_logp_cache is None:
            return logprobs_BT.detach()
        return self.old_logp_cache.rows(batch.row_ids, width=logprobs_BT.shape[1])


def build_objective(rl: Rl, model_context: ModelContext, *, strength: float) -> Objective:
    """Build the objective; `rl.builder_arguments.strength` is above 0, and 1 is plain GRPO.

    Raises:
        ValueError: for another strength, or a knob that is set but never read.
    """
    if not strength > 0:
        raise ValueError(f"rl.builder_arguments.strength={strength}: expected a number above 0")
    _refuse_unread_knobs(rl)
    cache = OldLogpCache() if rl.mini_batches > 1 else None
    max_response_length = model_context.max_response_length
    loss = AsymmetricLoss(
        rl=rl,
        strength=strength,
        max_response_length=max_response_length,
        old_logp_cache=cache,
    )
    read = (*READS, "mini_batches", *AdvantageKnobs.model_fields)
    return Objective(
        loss,
        Reduction.TOKEN_SUM,
        requires=("response_tokens", "loss_mask", "advantage"),
        metric_adapter=METRIC_ADAPTER,
        identity={
            "objective": "asymmetric",
            "strength": float(strength),
            "max_response_length": max_response_length,
            **{name: getattr(rl, name) for name in read},
        },
        old_logp_cache=cache,
    )


def _refuse_unread_knobs(rl: Rl) -> None:
    knobs = SurrogateKnobs.model_fields.keys() | Regularisers.model_fields.keys()
    unread = sorted(rl.changed() & (knobs - set(READS)))
    if unread:
        raise ValueError(f"rl.{unread[0]} is set, but {rl.builder} never reads it; remove it")
