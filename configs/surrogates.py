"""What each `rl.grpo_surrogate` reads, consults and needs: one row per surrogate.

Every gate (preflight, attestation, the old log-probability cache, identity) asks this table and
none compares names, so a surrogate that is added here cannot miss a gate.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class SurrogateRow:
    """The declared properties of one surrogate.

    Attributes:
        reads: fields of the `rl` section that the surrogate's value depends on.
        consults_old_policy: whether it needs log-probabilities of the frozen behaviour policy.
        temperature: `rollout` if the loss temperature must equal the sampling temperature, `one` if
            the surrogate has no loss temperature and sampling must happen at 1.0.
        requires: columns of the trajectory table that it reads.
    """

    reads: frozenset[str]
    consults_old_policy: bool
    temperature: Literal["rollout", "one"]
    requires: tuple[str, ...] = ("response_tokens", "loss_mask", "advantage")


TERMS = frozenset(
    {
        "loss_type",
        "temperature",
        "unbiased_advantage",
        "advantage",
        "kl_beta",
        "kl_estimator",
        "entropy_coef",
        "engine_correction",
    }
)
"""Fields that every surrogate over importance ratios reads."""

SURROGATES: dict[str, SurrogateRow] = {
    "clipped": SurrogateRow(
        reads=TERMS
        | {"epsilon_low", "epsilon_high", "lower_bound_ratio", "importance_sampling_level"},
        consults_old_policy=True,
        temperature="rollout",
    ),
    "cispo": SurrogateRow(
        reads=TERMS | {"epsilon_low", "epsilon_high"},
        consults_old_policy=True,
        temperature="rollout",
    ),
    "sapo": SurrogateRow(
        reads=TERMS | {"sapo_temperature_positive", "sapo_temperature_negative"},
        consults_old_policy=True,
        temperature="rollout",
    ),
    "gmpo": SurrogateRow(
        reads=(TERMS - {"loss_type"}) | {"epsilon_low", "epsilon_high"},
        consults_old_policy=True,
        temperature="rollout",
    ),
    "legacy_pg": SurrogateRow(reads=frozenset(), consults_old_policy=False, temperature="one"),
}
