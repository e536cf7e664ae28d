"""Diffusion DPO (arXiv:2311.12908): the preference loss on denoising errors.

Shapes: `P` pairs, `...` the shape of one point or image.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from configs.dpo import Dpo
from objectives.dpo import mean_over_pairs, preference_identity, refuse_unread_smoothing
from objectives.dpo_metrics import DPO_METRICS, preference_metrics
from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric
from objectives.objective import Objective, Reduction
from objectives.pairs import Denoiser, DiffusionBatch
from objectives.primitives.denoising import denoising_error, denoising_target, noised
from objectives.primitives.preferences import preference_loss

CHOSEN, REJECTED = 0, 1


@dataclass(frozen=True, kw_only=True)
class DiffusionDpoLoss:
    """The `fn` of a diffusion DPO objective; its weight is the number of pairs.

    With the error e of a point, -log sigmoid(-beta / 2 [(e_w - e_w_ref) - (e_l - e_l_ref)]): minus
    the error stands where a language model has a log-probability, and half of beta where it has
    beta. Both members of a pair share noise and timestep, and so do policy and reference.

    Attributes:
        dpo: the `dpo` section.
        prediction: `noise` or `velocity`, what the networks predict.
        reference: the frozen network; None if the objective is only asked for its identity.
    """

    dpo: Dpo
    prediction: str
    reference: Denoiser | None

    def __call__(self, model: Denoiser, batch: DiffusionBatch) -> tuple[Tensor, dict[str, Metric]]:
        """Denoise both members of every pair; return the loss and its metrics.

        Raises:
            ValueError: if the objective was built without a reference.
        """
        if self.reference is None:
            raise ValueError("diffusion DPO needs a reference; hand build_objective one")
        errors = self._errors(model, batch)
        with torch.no_grad():
            frozen = self._errors(self.reference, batch)
        loss_P = preference_loss(
            *(-error for error in errors),
            *(-error for error in frozen),
            beta=self.dpo.beta / 2,
            kind=self.dpo.kind,
            label_smoothing=self.dpo.label_smoothing,
        )
        trains = torch.ones_like(batch.pair_ids, dtype=torch.bool)
        chosen, rejected = (
            self.dpo.beta / 2 * (theirs - ours.detach())
            for ours, theirs in zip(errors, frozen, strict=True)
        )
        metrics = preference_metrics(loss_P.detach(), (chosen, rejected), trains)
        metrics["error_chosen"] = Metric.mean(errors[CHOSEN].detach(), trains)
        metrics["error_rejected"] = Metric.mean(errors[REJECTED].detach(), trains)
        loss, weight = mean_over_pairs(loss_P, trains)
        return loss, metrics | {OBJECTIVE_WEIGHT_SUM: Metric.sum(weight)}

    def _errors(self, model: Denoiser, batch: DiffusionBatch) -> tuple[Tensor, Tensor]:
        """Return the errors of the chosen and of the rejected points, [P] each, in one pass."""
        clean = torch.cat([batch.chosen, batch.rejected])
        repeated = [torch.cat([x, x]) for x in (batch.noise, batch.signal, batch.spread)]
        predicted = model.predict(noised(clean, *repeated), batch.timesteps.repeat(2))
        target = denoising_target(clean, *repeated, prediction=self.prediction)
        chosen, rejected = denoising_error(predicted, target).chunk(2)
        return chosen, rejected


def build_objective(dpo: Dpo, *, prediction: str, reference: Denoiser | None = None) -> Objective:
    """Build the objective over pairs of points that the `dpo` section describes.

    Args:
        dpo: the `dpo` section.
        prediction: `noise` or `velocity`, what the networks predict.
        reference: the frozen network; needed before the first loss.

    Raises:
        ValueError: for a label smoothing that the kind never reads.
    """
    refuse_unread_smoothing(dpo)
    return Objective(
        DiffusionDpoLoss(dpo=dpo, prediction=prediction, reference=reference),
        Reduction.TOKEN_SUM,
        requires=("chosen_point", "rejected_point"),
        metric_adapter=DPO_METRICS,
        identity=preference_identity(dpo)
        | {"objective": "diffusion-dpo", "prediction": prediction, "error": "mean-square"},
    )
