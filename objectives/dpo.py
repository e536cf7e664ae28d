"""DPO and its relatives: one objective over preference pairs, whose form the `dpo` section selects.

Shapes: `P` pairs, `T` response positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from configs.dpo import Dpo
from configs.dpo_preflight import SMOOTHED
from objectives.batch import PolicyAdapter
from objectives.dpo_metrics import DPO_METRICS, preference_metrics
from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric
from objectives.objective import JsonValue, Objective, Reduction
from objectives.pairs import PreferenceBatch
from objectives.primitives.preferences import preference_loss, sequence_logprobs

TEMPERATURE = 1.0
"""Completions were written, not sampled: they are scored under the model's own distribution."""

OF_MEANS = "ipo"
"""The kind that compares per-token means in place of sums."""

REFERENCE_COLUMNS = ("reference_chosen_logprob", "reference_rejected_logprob")


@dataclass(frozen=True)
class DpoLoss:
    """The `fn` of a DPO objective; its weight is the number of pairs.

    The supervised term is a mean per token within a pair and then a mean over pairs, so that both
    terms have one weight.

    Attributes:
        dpo: the `dpo` section.
    """

    dpo: Dpo

    def __call__(
        self, model: PolicyAdapter, batch: PreferenceBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Score both completions of every pair in one pass; return the loss and its metrics."""
        scored = model.token_logprobs(batch.responses, temperature=TEMPERATURE)
        sums = sequence_logprobs(scored.logprobs, batch.responses.loss_mask)
        return self.from_sums(sums, batch)

    def from_sums(self, sums: Tensor, batch: PreferenceBatch) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss and metrics of pairs from log-probabilities [2 P], chosen ones first."""
        trains = batch.trains
        references = torch.cat([batch.reference_chosen, batch.reference_rejected])
        references = torch.where(trains.repeat(2), references, 0).to(sums.dtype)
        counts = batch.responses.token_counts.clamp(min=1)
        divisor = counts if self.dpo.kind == OF_MEANS else torch.ones_like(counts)
        policy, reference = (sums / divisor).chunk(2), (references / divisor).chunk(2)
        loss_P = preference_loss(
            *policy,
            *reference,
            beta=self.dpo.beta,
            kind=self.dpo.kind,
            label_smoothing=self.dpo.label_smoothing,
        )
        sft_P = -sums.chunk(2)[0] / counts.chunk(2)[0]
        total_P = loss_P + self.dpo.sft_coef * sft_P if self.dpo.sft_coef else loss_P
        chosen, rejected = (
            self.dpo.beta * (ours - theirs).detach()
            for ours, theirs in zip(policy, reference, strict=True)
        )
        metrics = preference_metrics(total_P.detach(), (chosen, rejected), trains)
        num_tokens = (batch.responses.token_counts * trains.repeat(2)).sum()
        metrics["num_tokens"] = Metric.sum(num_tokens)
        if self.dpo.sft_coef:
            metrics["sft_loss"] = Metric.mean(sft_P.detach(), trains)
        loss, weight = mean_over_pairs(total_P, trains)
        return loss, metrics | {OBJECTIVE_WEIGHT_SUM: Metric.sum(weight)}


def mean_over_pairs(loss: Tensor, trains: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss of the pairs that train, and their number; of none, a 0 on the graph."""
    weight = trains.sum().to(loss.dtype)
    return torch.where(trains, loss, 0).sum() / weight.clamp(min=1), weight


def build_objective(dpo: Dpo) -> Objective:
    """Build the objective over pairs of completions that the `dpo` section describes.

    Raises:
        ValueError: for a label smoothing that the kind never reads.
    """
    refuse_unread_smoothing(dpo)
    return Objective(
        DpoLoss(dpo),
        Reduction.TOKEN_SUM,
        requires=("chosen_tokens", "rejected_tokens", *REFERENCE_COLUMNS),
        metric_adapter=DPO_METRICS,
        identity=preference_identity(dpo) | {"objective": "dpo", "sft_coef": dpo.sft_coef},
    )


def refuse_unread_smoothing(dpo: Dpo) -> None:
    """Raise `ValueError` for a label smoothing under a kind that never reads it."""
    if dpo.label_smoothing and dpo.kind not in SMOOTHED:
        raise ValueError(
            f"dpo.label_smoothing is {dpo.label_smoothing}, but dpo.kind={dpo.kind!r} never reads "
            "it; set 0"
        )


def preference_identity(dpo: Dpo) -> dict[str, JsonValue]:
    """Return what changes the loss of a pair, whatever a pair holds, and nothing else."""
    identity: dict[str, JsonValue] = {
        "reduction": "token-sum",
        "weight": "pairs",
        "kind": dpo.kind,
        "beta": dpo.beta,
        "mini_batches": dpo.mini_batches,
    }
    if dpo.kind in SMOOTHED:
        identity["label_smoothing"] = dpo.label_smoothing
    return identity
