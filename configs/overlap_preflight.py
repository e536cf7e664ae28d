"""Refuses settings that contradict rollouts which run ahead of training, or that need them."""

from configs.distillation_preflight import is_direct
from configs.overlap import SEGMENT_STEPS
from configs.rules import Rule
from configs.run import RunConfig
from configs.surrogates import SURROGATES


def _overlaps(config: RunConfig) -> bool:
    return config.rollout.staleness > 0


OVERLAP_CONTRADICTIONS: tuple[Rule[RunConfig], ...] = (
    Rule(
        field="rollout.staleness",
        broken=lambda c: (
            _overlaps(c)
            and not is_direct(c)
            and not SURROGATES[c.rl.grpo_surrogate].consults_old_policy
        ),
        message="the selected rl.grpo_surrogate has no importance ratio, so rows of an older "
        "policy would train as if they were its own; use 0",
    ),
    Rule(
        field="rollout.staleness",
        broken=lambda c: 0 < c.rl.save_every <= c.rollout.staleness,
        message="nothing is in flight where a checkpoint is published, so rollouts never trail "
        "that far; lower it below rl.save_every, or raise that",
    ),
    Rule(
        field="rollout.staleness",
        broken=lambda c: c.rollout.staleness >= SEGMENT_STEPS,
        message=f"nothing is in flight between segments of {SEGMENT_STEPS} steps, so rollouts "
        "never trail that far; lower it",
    ),
    Rule(
        field="rl.old_logprobs",
        broken=lambda c: not _overlaps(c) and "old_logprobs" in c.rl.changed(),
        message="is read with rollout.staleness above 0 only; without, the policy that samples is "
        "the one that trains; remove it",
    ),
    Rule(
        field="rl.engine_correction",
        broken=lambda c: c.rl.old_logprobs == "engine" and c.rl.engine_correction != "none",
        message="corrects log pi_old by the engine's log-probabilities, which are the same ones "
        "under rl.old_logprobs=engine; set one of the two back",
    ),
    Rule(
        field="rl.engine_mismatch_bound",
        broken=lambda c: (
            c.rl.old_logprobs == "engine" and "engine_mismatch_bound" in c.rl.changed()
        ),
        message="bounds the difference of log pi_old and the engine's log-probabilities, which is "
        "0 under rl.old_logprobs=engine; remove it",
    ),
)
"""Settings that cannot hold together with `rollout.staleness`."""
