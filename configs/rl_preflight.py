"""Refuses settings of the loss that contradict each other, or that it would never read."""

from collections.abc import Callable

from configs.distillation_preflight import is_direct
from configs.rules import Rule
from configs.run import RunConfig
from configs.surrogates import SURROGATES

GSPO_EPSILON = 0.01
"""Clip ranges above this never bind on a sequence-level ratio (the paper uses 3e-4 and 4e-4)."""


def _changed_and_unread(name: str) -> Callable[[RunConfig], bool]:
    def unread(config: RunConfig) -> bool:
        read = SURROGATES[config.rl.grpo_surrogate].reads
        return name in config.rl.changed() and name not in read

    return unread


def _readers(name: str) -> str:
    readers = sorted(surrogate for surrogate, row in SURROGATES.items() if name in row.reads)
    return " or ".join(f"rl.grpo_surrogate={reader}" for reader in readers)


INERT: tuple[Rule[RunConfig], ...] = tuple(
    Rule(
        field=f"rl.{name}",
        broken=_changed_and_unread(name),
        message="the selected rl.grpo_surrogate never reads it; remove it, "
        f"or select {_readers(name)}",
    )
    for name in sorted(frozenset[str]().union(*(row.reads for row in SURROGATES.values())))
)
"""For every knob of a surrogate: refused when set under a surrogate that would not read it."""


def _sequence_level(config: RunConfig) -> bool:
    return config.rl.importance_sampling_level == "sequence"


def _num_rows(config: RunConfig) -> int:
    return config.rollout.prompts_per_step * config.rollout.group_size


RL_CONTRADICTIONS: tuple[Rule[RunConfig], ...] = (
    Rule(
        field="rl.lower_bound_ratio",
        broken=lambda c: _sequence_level(c) and c.rl.lower_bound_ratio != 0,
        message="the sequence-level ratio has no dual clip; set rl.lower_bound_ratio=0",
    ),
    Rule(
        field="rl.lower_bound_ratio",
        broken=lambda c: 0 < c.rl.lower_bound_ratio <= 1,
        message="a dual clip must exceed 1, or it would cut on-policy tokens; use 0 to disable it",
    ),
    Rule(
        field="rl.temperature",
        broken=lambda c: (
            SURROGATES[c.rl.grpo_surrogate].temperature == "rollout"
            and not is_direct(c)
            and c.rl.temperature != c.rollout.temperature
        ),
        message="the surrogate scores the distribution that was sampled; "
        "set rl.temperature and rollout.temperature to the same value",
    ),
    Rule(
        field="rl.mini_batches",
        broken=lambda c: _num_rows(c) % c.rl.mini_batches != 0,
        message="must divide rollout.prompts_per_step * rollout.group_size",
    ),
    Rule(
        field="trainer.num_processes",
        broken=lambda c: c.trainer.num_processes > _num_rows(c) // c.rl.mini_batches,
        message="exceeds the responses of an optimizer step (rollout.prompts_per_step * "
        "rollout.group_size / rl.mini_batches), so that some would train on nothing; lower it",
    ),
    Rule(
        field="rl.kl_estimator",
        broken=lambda c: c.rl.kl_beta == 0 and "kl_estimator" in c.rl.changed(),
        message="is never read while rl.kl_beta=0; remove it, or set rl.kl_beta above 0",
    ),
    Rule(
        field="rl.engine_correction_low",
        broken=lambda c: (
            c.rl.engine_correction not in ("mask", "sequence-mask")
            and "engine_correction_low" in c.rl.changed()
        ),
        message="is read by rl.engine_correction=mask or sequence-mask only; remove it",
    ),
    Rule(
        field="rl.engine_correction_high",
        broken=lambda c: (
            c.rl.engine_correction == "none" and "engine_correction_high" in c.rl.changed()
        ),
        message="is never read while rl.engine_correction=none; remove it",
    ),
    Rule(
        field="rl.unbiased_advantage",
        broken=lambda c: c.rl.advantage != "group" and c.rl.unbiased_advantage,
        message="chooses between the two forms of rl.advantage=group; remove one of the two",
    ),
    Rule(
        field="rl.pass_k",
        broken=lambda c: c.rl.advantage != "pass_at_k" and c.rl.pass_k != 1,
        message="is read by rl.advantage=pass_at_k only; remove it",
    ),
    Rule(
        field="rl.pass_k",
        broken=lambda c: c.rl.pass_k > c.rollout.group_size,
        message="cannot exceed rollout.group_size; lower it",
    ),
    Rule(
        field="rl.certified_deterministic_forward",
        broken=lambda c: (
            c.rl.certified_deterministic_forward
            and not SURROGATES[c.rl.grpo_surrogate].consults_old_policy
        ),
        message="certifies importance ratios, which this surrogate has none of; remove it",
    ),
)
"""Settings of `rl` and `trainer` that cannot hold together."""


RL_WARNINGS: tuple[Rule[RunConfig], ...] = (
    Rule(
        field="rl.mini_batches",
        broken=lambda c: (
            SURROGATES[c.rl.grpo_surrogate].consults_old_policy
            and not is_direct(c)
            and c.rl.mini_batches == 1
        ),
        message="with one optimizer step per batch every ratio is exactly 1 and no clip binds",
    ),
    Rule(
        field="rl.mini_batches",
        broken=lambda c: (
            not SURROGATES[c.rl.grpo_surrogate].consults_old_policy and c.rl.mini_batches > 1
        ),
        message="this surrogate has no importance ratio, so later mini-batches are off-policy; "
        "it can collapse",
    ),
    Rule(
        field="rl.epsilon_high",
        broken=lambda c: _sequence_level(c) and c.rl.epsilon_high > GSPO_EPSILON,
        message="a clip range on the scale of tokens hardly ever binds on a sequence-level ratio; "
        "GSPO uses 3e-4 and 4e-4",
    ),
    Rule(
        field="model.dtype",
        broken=lambda c: _sequence_level(c) and c.model.dtype == "bfloat16",
        message="rounding of bfloat16 log-probabilities exceeds GSPO's clip range",
    ),
)
"""Settings that are honoured, but without effect or at a risk."""
