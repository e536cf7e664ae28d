"""Which values of the `rl` section change the mathematics of a GRPO objective."""

from configs.rl import AdvantageKnobs, Rl
from configs.surrogates import SURROGATES
from objectives.objective import JsonValue
from objectives.primitives.kl import LOG_RATIO_CAP
from objectives.primitives.ratios import SEQUENCE_LOG_RATIO_CAP, TOKEN_LOG_RATIO_BOUND

ADVANTAGE_STD_DDOF = 0
"""Advantages are divided by the population standard deviation."""

ADVANTAGE_EPS = 1e-6
"""Added to that standard deviation, in units of reward."""

Identity = dict[str, JsonValue]


def grpo_identity(rl: Rl, *, loss_type: str, max_response_length: int, staleness: int) -> Identity:
    """Return the flat mapping of every value that changes the loss, and of no other.

    Two configurations that differ only in a knob that their objective never reads have the same
    identity. A knob that only counts together with another one is listed only then.

    Args:
        rl: the `rl` section.
        loss_type: the reduction in effect; a surrogate may fix its own.
        max_response_length: tokens; listed only if the reduction divides by it.
        staleness: most policy versions between sampling and training.
    """
    identity: Identity = {
        "objective": "grpo",
        "reduction": "token-sum",
        "loss_type": loss_type,
        "mini_batches": rl.mini_batches,
        "staleness": staleness,
    }
    if staleness:
        identity["old_logprobs"] = rl.old_logprobs
    if loss_type == "seq-mean-token-sum-fixed":
        identity["max_response_length"] = max_response_length
    return identity | _surrogate(rl) | _terms(rl) | _annotation(rl)


def _surrogate(rl: Rl) -> Identity:
    row = SURROGATES[rl.grpo_surrogate]
    knobs = (
        "importance_sampling_level",
        "epsilon_low",
        "epsilon_high",
        "lower_bound_ratio",
        "sapo_temperature_positive",
        "sapo_temperature_negative",
    )
    identity: Identity = {"surrogate": rl.grpo_surrogate, "temperature": rl.temperature}
    identity |= {knob: getattr(rl, knob) for knob in knobs if knob in row.reads}
    if rl.importance_sampling_level == "sequence":
        identity["sequence_log_ratio_cap"] = SEQUENCE_LOG_RATIO_CAP
    elif row.consults_old_policy:
        identity["token_log_ratio_bound"] = TOKEN_LOG_RATIO_BOUND
    return identity


def _terms(rl: Rl) -> Identity:
    identity: Identity = {
        "kl_beta": rl.kl_beta,
        "entropy_coef": rl.entropy_coef,
        "engine_correction": rl.engine_correction,
    }
    if rl.kl_beta:
        identity["kl_estimator"] = rl.kl_estimator
        if rl.kl_estimator == "k3":
            identity["kl_log_ratio_cap"] = LOG_RATIO_CAP
    if rl.engine_correction != "none":
        identity["engine_correction_high"] = rl.engine_correction_high
        if rl.engine_correction != "truncate":
            identity["engine_correction_low"] = rl.engine_correction_low
    return identity


def _annotation(rl: Rl) -> Identity:
    identity: Identity = {name: getattr(rl, name) for name in AdvantageKnobs.model_fields}
    if rl.advantage != "pass_at_k":
        del identity["pass_k"]
    if not rl.unbiased_advantage:
        identity |= {"advantage_std_ddof": ADVANTAGE_STD_DDOF, "advantage_eps": ADVANTAGE_EPS}
    return identity
