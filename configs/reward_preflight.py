"""Refuses rewards and evaluations whose settings contradict each other or would not be read."""

from configs.evaluation import correct_parts
from configs.reward import JUDGE, JUDGE_REQUEST_TIMEOUT_S, title
from configs.rules import Rule
from configs.run import RunConfig

SCORED_IN_PROCESS = {"exact_match", "format", "length"}
"""Providers that run in the task's own process."""


def _providers(config: RunConfig) -> set[str]:
    return set(config.reward.parts) or {config.reward.provider}


def _names_no_part(config: RunConfig) -> bool:
    """Return whether all parts of the reward are known, and the one that decides is not among them.

    A function of one's own may give further parts, which only its responses show.
    """
    providers = _providers(config)
    are_known = not any(":" in provider for provider in providers)
    part = config.evaluation.correct_part
    return part != "" and are_known and part not in {title(name) for name in providers}


def _judge_outlasts_its_seat(config: RunConfig) -> bool:
    patience = config.reward.arguments.get("request_timeout_s", JUDGE_REQUEST_TIMEOUT_S)
    return (
        JUDGE in _providers(config)
        and isinstance(patience, int | float)
        and config.reward.timeout_s < patience
    )


REWARD_CONTRADICTIONS: tuple[Rule[RunConfig], ...] = (
    Rule(
        field="evaluation.num_prompts",
        broken=lambda c: (
            c.data.held_out_path == "" and c.evaluation.num_prompts > c.data.num_held_out
        ),
        message="exceeds data.num_held_out; lower it",
    ),
    Rule(
        field="evaluation.num_samples",
        broken=lambda c: c.evaluation.num_samples > 1 and c.evaluation.temperature == 0,
        message="greedy samples of a prompt are all equal; set evaluation.temperature above 0",
    ),
    Rule(
        field="evaluation.pass_at",
        broken=lambda c: max(c.evaluation.pass_at, default=0) > c.evaluation.num_samples,
        message="pass@k is estimated from at least k samples of a prompt; raise "
        "evaluation.num_samples or lower k",
    ),
    Rule(
        field="evaluation.correct_part",
        broken=lambda c: len(correct_parts(c.evaluation, c.reward)) != 1,
        message="reward.parts does not name exactly one of exact_match and gsm8k; name the part "
        "that is 1 for a right response",
    ),
    Rule(
        field="evaluation.correct_part",
        broken=_names_no_part,
        message="is no part that the reward gives; name one of reward.parts, or leave it empty for "
        "a single reward.provider",
    ),
    Rule(
        field="reward.provider",
        broken=lambda c: bool(c.reward.parts) and "provider" in c.reward.changed(),
        message="is never read while reward.parts names providers; remove one of the two",
    ),
    Rule(
        field="reward.parts",
        broken=lambda c: 0 in c.reward.parts.values(),
        message="a part of weight 0 adds nothing; remove it or give it a weight",
    ),
    Rule(
        field="reward.arguments",
        broken=lambda c: bool(c.reward.arguments) and _providers(c) == {"exact_match"},
        message="exact_match takes none; remove them",
    ),
    *(
        Rule(
            field=f"reward.{name}",
            broken=lambda c, name=name: (
                name in c.reward.changed() and _providers(c) <= SCORED_IN_PROCESS
            ),
            message="exact_match, format and length need no process of their own; remove it",
        )
        for name in ("timeout_s", "num_workers", "worker_memory_mib")
    ),
    Rule(
        field="reward.timeout_s",
        broken=_judge_outlasts_its_seat,
        message=f"is less than the judge waits for one reply ({JUDGE_REQUEST_TIMEOUT_S:g} s, or "
        "reward.arguments.request_timeout_s), so a slow reply would count as an error of ours; "
        "raise it, best to cover every try",
    ),
    Rule(
        field="reward.overlong_buffer_tokens",
        broken=lambda c: (
            c.reward.overlong_buffer_tokens > 0 and c.rl.advantage in ("maxrl", "pass_at_k")
        ),
        message="its penalties are rewards below 0 or between 0 and 1, which this rl.advantage "
        "cannot use; remove it, or use rl.mask_truncated",
    ),
    Rule(
        field="reward.overlong_buffer_tokens",
        broken=lambda c: c.reward.overlong_buffer_tokens > c.rollout.max_tokens,
        message="exceeds rollout.max_tokens; lower it",
    ),
    Rule(
        field="reward.overlong_penalty",
        broken=lambda c: (
            c.reward.overlong_buffer_tokens == 0 and "overlong_penalty" in c.reward.changed()
        ),
        message="is never read while reward.overlong_buffer_tokens=0; remove it",
    ),
)
"""Settings of `reward` and `evaluation` that cannot hold together."""
