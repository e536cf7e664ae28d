"""On-policy distillation: a teacher's log-probabilities train a student on its own responses.

Shapes: `B` sequences, `T` response positions, `n` tokens of a chunk, `V` vocabulary, `K` top-k.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from configs.distillation import READS
from configs.rl import AdvantageKnobs, Rl
from objectives.batch import PolicyAdapter, ReferenceScorer, TeacherScorer, TrajectoryBatch
from objectives.build import ModelContext
from objectives.grpo import GrpoLoss
from objectives.grpo import build_objective as build_grpo
from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric, MetricAdapter
from objectives.objective import JsonValue, Objective, Reduction
from objectives.primitives.divergences import (
    forward_kl,
    generalized_jsd,
    reverse_kl,
    topk_divergence,
)
from objectives.primitives.mapped import PerToken
from objectives.primitives.reductions import reduce_policy_gradient_loss
from objectives.primitives.shapes import keep

ADVANTAGE_METRICS = {
    "teacher_kl": "train/teacher/kl",
    "teacher_bounded": "train/teacher/bounded_fraction",
}
"""What `advantage` reports beside the metrics of the surrogate."""

DIRECT_ADAPTER = MetricAdapter(
    {
        "loss": "train/loss",
        "num_tokens": "train/num_tokens",
        "num_sequences": "train/num_sequences",
        "entropy": "train/entropy",
        "teacher_kl": "train/teacher/kl",
        "teacher_divergence": "train/teacher/divergence",
    }
)
"""Public names of what `direct` reports."""

GROUP_ADVANTAGE = ("advantage", "unbiased_advantage", "pass_k")
"""Fields that only turn rewards into advantages, and mask nothing."""


@dataclass(frozen=True, kw_only=True)
class AdvantageLoss:
    """The `fn` of `advantage`: the clipped surrogate with an advantage per token.

    Attributes:
        grpo: the surrogate, its terms and its weight.
    """

    grpo: GrpoLoss

    def __call__(
        self, model: PolicyAdapter, batch: TrajectoryBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss and metrics of a chunk.

        Raises:
            ValueError: if the chunk has no teacher log-probabilities.
            KeyError: if log pi_old of a row was not frozen.
        """
        if batch.teacher_logprobs is None:
            raise ValueError(
                "rl.distillation_mode='advantage' needs the column 'teacher_logprobs', which the "
                "teacher_score stage produces"
            )
        rl, kept = self.grpo.rl, keep(batch.loss_mask)
        scored = model.token_logprobs(batch, temperature=rl.temperature, with_entropy=True)
        old = self.grpo.old_logprobs(scored.logprobs, batch)
        gap = torch.where(kept, batch.teacher_logprobs.to(old.dtype) - old, 0)
        bound = rl.kl_advantage_bound or torch.inf
        task = batch.advantages if batch.advantages.ndim > 1 else batch.advantages[:, None]
        advantages = rl.kl_coef * gap.clamp(-bound, bound) + rl.task_advantage_weight * task
        loss, metrics = self.grpo.from_scores(scored, replace(batch, advantages=advantages))
        metrics["teacher_kl"] = Metric.mean(-gap, kept)
        metrics["teacher_bounded"] = Metric.mean((gap.abs() > bound).double(), kept)
        return loss, metrics


@dataclass(frozen=True, kw_only=True)
class DirectLoss:
    """The `fn` of `direct`: a divergence from the teacher, averaged over tokens.

    Attributes:
        rl: the `rl` section.
        teacher_scorer: gives the teacher's logits; needed if `rl.teacher_topk` is 0.
    """

    rl: Rl
    teacher_scorer: TeacherScorer | None

    def __call__(
        self, model: PolicyAdapter, batch: TrajectoryBatch
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss and metrics of a chunk.

        Raises:
            ValueError: if the teacher's logits, or its top-k tokens, are not there.
        """
        kept = keep(batch.loss_mask)
        against = self._topk(batch) if self.rl.teacher_topk else self._full(batch)
        values = model.map_logits(batch, against)
        divergence, kl, entropy = (torch.where(kept, part, 0) for part in values.unbind(-1))
        loss, weight = reduce_policy_gradient_loss(divergence, batch.loss_mask, "token-mean")
        return loss, {
            "loss": Metric(loss.detach() * weight, weight),
            "num_tokens": Metric.sum(kept.sum()),
            "num_sequences": Metric.sum(kept.any(1).sum()),
            "entropy": Metric.mean(entropy.detach(), kept),
            "teacher_kl": Metric.mean(kl.detach(), kept),
            "teacher_divergence": Metric.mean(divergence.detach(), kept),
            OBJECTIVE_WEIGHT_SUM: Metric.sum(weight),
        }

    def _full(self, batch: TrajectoryBatch) -> PerToken:
        if self.teacher_scorer is None:
            raise ValueError(
                "rl.distillation_mode='direct' needs the teacher's logits; hand build_objective a "
                "teacher_scorer, or set rl.teacher_topk above 0"
            )
        teacher_logits = self.teacher_scorer.teacher_logits(batch)

        def against(logits: Tensor, positions: Tensor) -> Tensor:
            teacher = teacher_logits(positions)
            shared = min(logits.shape[-1], teacher.shape[-1])
            student, teacher = logits[:, :shared], teacher[:, :shared]
            kl = reverse_kl(student, teacher)
            return torch.stack([self._divergence(student, teacher), kl, _entropy(logits)], -1)

        return against

    def _divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        if self.rl.divergence == "forward_kl":
            return forward_kl(student, teacher)
        if self.rl.divergence == "reverse_kl":
            return reverse_kl(student, teacher)
        return generalized_jsd(student, teacher, beta=self.rl.jsd_beta)

    def _topk(self, batch: TrajectoryBatch) -> PerToken:
        if batch.teacher_topk_ids is None or batch.teacher_topk_logprobs is None:
            raise ValueError(
                f"rl.teacher_topk={self.rl.teacher_topk} needs the columns 'teacher_topk_ids' and "
                "'teacher_topk_logprobs', which the teacher_score stage produces"
            )
        tokens = keep(batch.response_mask)
        ids, logprobs = batch.teacher_topk_ids[tokens], batch.teacher_topk_logprobs[tokens]

        def against(logits: Tensor, positions: Tensor) -> Tensor:
            topk, beta = (logits, ids[positions], logprobs[positions]), self.rl.jsd_beta
            trained = topk_divergence(*topk, kind=self.rl.divergence, beta=beta)
            kl = topk_divergence(*topk, kind="reverse_kl")
            return torch.stack([trained, kl, _entropy(logits)], -1)

        return against


def _entropy(logits: Tensor) -> Tensor:
    logprobs = logits.detach().log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def build_objective(
    rl: Rl,
    model_context: ModelContext,
    *,
    reference_scorer: ReferenceScorer | None = None,
    teacher_scorer: TeacherScorer | None = None,
    staleness: int = 0,
) -> Objective:
    """Build the distillation objective that the `rl` section describes.

    `advantage` gives token t of a response the advantage kl_coef (log pi_teacher - log pi_old) +
    task_advantage_weight A, whose mean is minus the reverse KL to the teacher, and trains by the
    clipped surrogate. `direct` minimises a divergence between the two next-token distributions
    at every kept token (GKD, arXiv:2306.13649); rewards do not train there.

    Args:
        rl: the resolved `rl` section.
        model_context: only `max_response_length` is read.
        reference_scorer: as in GRPO; read by `advantage`.
        teacher_scorer: gives the teacher's logits; read by `direct` over all tokens, and then
            needed before the first loss.
        staleness: as in GRPO; read by `advantage`.

    Raises:
        ValueError: for another surrogate than the clipped one, the sequence level, or whatever the
            surrogate refuses.
    """
    if rl.grpo_surrogate != "clipped":
        raise ValueError(
            f"rl.grpo_surrogate is {rl.grpo_surrogate!r}, but distillation has the surrogate "
            "'clipped' only"
        )
    if rl.importance_sampling_level != "token":
        raise ValueError(
            f"rl.importance_sampling_level is {rl.importance_sampling_level!r}, but distillation "
            "has an advantage per token, which one ratio per sequence cannot weigh; set it to "
            "'token'"
        )
    if rl.distillation_mode == "direct":
        return _direct(rl, teacher_scorer)
    grpo = build_grpo(rl, model_context, reference_scorer=reference_scorer, staleness=staleness)
    return replace(
        grpo,
        fn=AdvantageLoss(grpo=cast("GrpoLoss", grpo.fn)),
        requires=(*grpo.requires, "teacher_logprobs"),
        metric_adapter=MetricAdapter({**grpo.metric_adapter.names, **ADVANTAGE_METRICS}),
        identity=_advantage_identity(rl, dict(grpo.identity)),
    )


def _direct(rl: Rl, teacher_scorer: TeacherScorer | None) -> Objective:
    from_table = ("teacher_topk_ids", "teacher_topk_logprobs") if rl.teacher_topk else ()
    return Objective(
        DirectLoss(rl=rl, teacher_scorer=None if rl.teacher_topk else teacher_scorer),
        Reduction.TOKEN_SUM,
        requires=("response_tokens", "loss_mask", *from_table),
        metric_adapter=DIRECT_ADAPTER,
        identity=_direct_identity(rl),
    )


def _advantage_identity(rl: Rl, identity: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not rl.task_advantage_weight:
        unread = (*GROUP_ADVANTAGE, "advantage_std_ddof", "advantage_eps")
        identity = {key: value for key, value in identity.items() if key not in unread}
    knobs: dict[str, JsonValue] = {name: getattr(rl, name) for name in sorted(READS["advantage"])}
    return {**identity, **knobs, "objective": "opd", "distillation_mode": "advantage"}


def _direct_identity(rl: Rl) -> dict[str, JsonValue]:
    masks = AdvantageKnobs.model_fields.keys() - set(GROUP_ADVANTAGE)
    identity: dict[str, JsonValue] = {name: getattr(rl, name) for name in sorted(masks)}
    if rl.divergence == "jsd":
        identity["jsd_beta"] = rl.jsd_beta
    return {
        **identity,
        "objective": "opd",
        "distillation_mode": "direct",
        "divergence": rl.divergence,
        "teacher_topk": rl.teacher_topk,
        "reduction": "token-sum",
        "loss_type": "token-mean",
        "mini_batches": rl.mini_batches,
    }
