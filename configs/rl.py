"""The `rl` section: which objective trains, its mathematics, and how long."""

from typing import Literal

from pydantic import Field

from configs.base import Section
from configs.distillation import Distillation
from configs.schedule import Schedule

LossType = Literal[
    "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-fixed"
]
SamplingLevel = Literal["token", "sequence"]
KlEstimator = Literal["k1", "k2", "k3"]
OldLogprobs = Literal["recompute", "engine"]
EngineCorrection = Literal["none", "truncate", "mask", "sequence-mask"]
SurrogateName = Literal["clipped", "legacy_pg", "cispo", "sapo", "gmpo"]
AdvantageName = Literal["group", "leave_one_out", "batch_whitened", "maxrl", "pass_at_k"]


class SurrogateKnobs(Section):
    """The policy-gradient surrogate; `configs.surrogates` says which one reads which knob."""

    grpo_surrogate: SurrogateName = "clipped"
    """Per-token surrogate; `legacy_pg` is the plain policy gradient, kept for toys and parity."""

    loss_type: LossType = "token-mean"
    """Unit over which the per-token loss is averaged."""

    importance_sampling_level: SamplingLevel = "token"
    """Granularity of the importance ratio; `sequence` is GSPO (arXiv:2507.18071)."""

    epsilon_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """The importance ratio is clipped below `1 - epsilon_low`."""

    epsilon_high: float = Field(default=0.2, ge=0.0)
    """The importance ratio is clipped above `1 + epsilon_high`; clip-higher exceeds the low."""

    lower_bound_ratio: float = Field(default=3.0, ge=0.0)
    """Dual clip: for a negative advantage the loss is at most this times `-A`; 0 disables it."""

    temperature: float = Field(default=1.0, gt=0.0)
    """Logits are divided by this before log-probabilities are taken in the loss."""

    sapo_temperature_positive: float = Field(default=1.0, gt=0.0)
    """SAPO's gate temperature for tokens with a positive advantage."""

    sapo_temperature_negative: float = Field(default=1.05, gt=0.0)
    """SAPO's gate temperature for tokens with a negative advantage."""


class Regularisers(Section):
    """Terms and weights beside the surrogate."""

    kl_beta: float = Field(default=0.0, ge=0.0)
    """Weight of the KL penalty to the frozen reference; 0 builds no reference."""

    kl_estimator: KlEstimator = "k3"
    """Per-token estimator of that KL."""

    entropy_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the entropy bonus (nats per token); 0 adds none."""

    old_logprobs: OldLogprobs = "recompute"
    """Source of log pi_old when rollouts run ahead: the policy that sampled, or its engine."""

    engine_correction: EngineCorrection = "none"
    """What is done about tokens on which sampling engine and trainer disagree."""

    engine_correction_low: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Lower bound on `exp(log pi_old - log mu)`; read by the two masks."""

    engine_correction_high: float = Field(default=2.0, gt=1.0)
    """Upper bound on `exp(log pi_old - log mu)`; the cap of `truncate`."""

    engine_mismatch_bound: float = Field(default=0.1, gt=0.0)
    """Alarm when the mean |log pi_old - log mu| of a step exceeds this, in nats."""

    certified_deterministic_forward: bool = False
    """Score rows under two chunkings before the first update and stop if they disagree."""


class AdvantageKnobs(Section):
    """Group annotation: how rewards become advantages, and which tokens train."""

    advantage: AdvantageName = "group"
    """Estimator; `group` is GRPO's and, with `unbiased_advantage`, Dr-GRPO's."""

    unbiased_advantage: bool = False
    """True: `r - mean` (Dr-GRPO, arXiv:2503.20783); false: divided by the group's std as well."""

    pass_k: int = Field(default=1, ge=1)
    """The `k` of the `pass_at_k` estimator."""

    drop_zero_variance_groups: bool = False
    """Mask the rows of groups whose rewards are all equal, so that they leave the loss weight."""

    mask_truncated: bool = False
    """Mask responses that ran into `rollout.max_tokens`."""

    min_shared_prefix_tokens: int = Field(default=0, ge=0)
    """Mask the longest common prefix of a group's responses once it is this long; 0: never."""

    dynamic_sampling_rounds: int = Field(default=0, ge=0)
    """Most extra rollout rounds that replace zero-variance groups (DAPO); 0: none."""


class Rl(SurrogateKnobs, Regularisers, AdvantageKnobs, Distillation, Schedule):
    """The objective and the schedule of policy updates."""

    builder: str = Field(default="objectives.grpo:build_objective", pattern=r"^[\w.]+:\w+$")
    """Import path `package.module:function` of `build_objective(rl, model_context)`."""

    builder_arguments: dict[str, bool | int | float | str] = {}
    """Primitive keyword arguments bound to the builder."""
