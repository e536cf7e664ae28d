"""Refuses settings that contradict each other or that the selected objective would never read.

One table of rules; the generated configuration reference lists it. `check` raises with every rule
that is broken; `warnings` returns those about values that are honoured but have no effect.
"""

from collections.abc import Callable

from configs.distillation_preflight import (
    DISTILLATION_CONTRADICTIONS,
    DISTILLATION_INERT,
    DISTILLATION_WARNINGS,
    TOPOLOGIES,
    is_direct,
    trains_on_rewards,
)
from configs.evaluation import correct_parts
from configs.model import EMBEDDED_CONTEXT
from configs.overlap_preflight import OVERLAP_CONTRADICTIONS
from configs.reward import JUDGE, JUDGE_REQUEST_TIMEOUT_S, title
from configs.rules import SHARED, SHARED_WARNINGS, Rule, broken, refuse
from configs.run import RunConfig
from configs.surrogates import SURROGATES

SMALLEST_GROUP = 2
"""An estimator that compares the responses of a prompt needs as many."""

GSPO_EPSILON = 0.01
"""Clip ranges above this never bind on a sequence-level ratio (the paper uses 3e-4 and 4e-4)."""


def check(config: RunConfig) -> None:
    """Raise `ValueError` with one line for each broken rule."""
    refuse(config, (*INERT, *DISTILLATION_INERT, *CONTRADICTIONS))


def check_topology(config: RunConfig, workflow: str) -> None:
    """Raise `ValueError` if a config, valid by itself, is not one for a workflow.

    Args:
        config: the resolved config, overrides included.
        workflow: `grpo` or `opd`.
    """
    refuse(config, TOPOLOGIES[workflow])


def warnings(config: RunConfig) -> list[str]:
    """Return one line for each value that is honoured but cannot matter, or is risky."""
    return broken(config, WARNINGS)


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


def _temperature_contract(config: RunConfig) -> str:
    return SURROGATES[config.rl.grpo_surrogate].temperature


def _num_rows(config: RunConfig) -> int:
    return config.rollout.prompts_per_step * config.rollout.group_size


def _is_arithmetic(config: RunConfig) -> bool:
    return config.data.source == "arithmetic"


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


CONTRADICTIONS: tuple[Rule[RunConfig], ...] = (
    *SHARED,
    *DISTILLATION_CONTRADICTIONS,
    Rule(
        field="job.output_root",
        broken=lambda c: "://" in c.job.output_root,
        message="checkpoints are renamed into place, which needs a file system; name a directory "
        "that every task can reach",
    ),
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
            _temperature_contract(c) == "rollout"
            and not is_direct(c)
            and c.rl.temperature != c.rollout.temperature
        ),
        message="the surrogate scores the distribution that was sampled; "
        "set rl.temperature and rollout.temperature to the same value",
    ),
    Rule(
        field="rollout.temperature",
        broken=lambda c: _temperature_contract(c) == "one" and c.rollout.temperature != 1,
        message="this surrogate has no loss temperature; set rollout.temperature=1.0",
    ),
    Rule(
        field="rollout.temperature",
        broken=lambda c: c.rollout.temperature == 0,
        message="greedy responses of a group are all equal and train nothing; use a value above 0",
    ),
    Rule(
        field="rollout.top_p",
        broken=lambda c: c.rollout.top_p != 1,
        message="the engine would renormalise over the kept tokens while the loss does not; "
        "set rollout.top_p=1.0",
    ),
    Rule(
        field="rollout.top_k",
        broken=lambda c: c.rollout.top_k != 0,
        message="the engine would renormalise over the kept tokens while the loss does not; "
        "set rollout.top_k=0",
    ),
    Rule(
        field="rollout.min_p",
        broken=lambda c: c.rollout.min_p != 0,
        message="the engine would renormalise over the kept tokens while the loss does not; "
        "set rollout.min_p=0.0",
    ),
    Rule(
        field="rollout.group_size",
        broken=lambda c: trains_on_rewards(c) and c.rollout.group_size < SMALLEST_GROUP,
        message="a group estimator compares responses of one prompt; use at least 2",
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
    Rule(
        field="rollout.max_prompt_tokens",
        broken=lambda c: _is_arithmetic(c) and c.rollout.max_prompt_tokens < 2 * c.data.digits + 2,
        message="arithmetic prompts have 2 * data.digits + 2 tokens; raise it",
    ),
    Rule(
        field="rollout.max_tokens",
        broken=lambda c: _is_arithmetic(c) and c.rollout.max_tokens < c.data.digits + 2,
        message="arithmetic answers have data.digits + 1 tokens and an end token; raise it",
    ),
    Rule(
        field="rollout.max_tokens",
        broken=lambda c: (
            c.model.source == "embedded"
            and c.rollout.max_prompt_tokens + c.rollout.max_tokens > EMBEDDED_CONTEXT
        ),
        message="with rollout.max_prompt_tokens it exceeds the embedded model's context of "
        f"{EMBEDDED_CONTEXT} tokens; lower one of them",
    ),
    Rule(
        field="data.num_held_out",
        broken=lambda c: (
            _is_arithmetic(c)
            and c.data.num_held_out + c.rollout.prompts_per_step > 10 ** (2 * c.data.digits)
        ),
        message="leaves fewer training problems than rollout.prompts_per_step; lower one of them, "
        "or raise data.digits",
    ),
    Rule(
        field="data.answer_field",
        broken=lambda c: c.data.source != "file" and "answer_field" in c.data.changed(),
        message="is read by data.source=file only; remove it",
    ),
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
    Rule(
        field="rollout.vllm",
        broken=lambda c: c.rollout.engine != "vllm" and bool(c.rollout.vllm.changed()),
        message="is read by rollout.engine=vllm only; remove its settings",
    ),
    Rule(
        field="rollout.server",
        broken=lambda c: c.rollout.engine != "server" and bool(c.rollout.server.changed()),
        message="is read by rollout.engine=server only; remove its settings",
    ),
    Rule(
        field="rollout.server.url",
        broken=lambda c: (
            c.rollout.engine == "server"
            and not c.rollout.server.url.startswith(("http://", "https://"))
        ),
        message="rollout.engine=server needs the address of a running vLLM server here, such as "
        "http://10.0.0.7:8000",
    ),
    Rule(
        field="rollout.batch_size",
        broken=lambda c: c.rollout.engine == "server" and "batch_size" in c.rollout.changed(),
        message="is not read by rollout.engine=server, whose own --max-num-seqs bounds it; "
        "remove it, or set rollout.server.max_connections",
    ),
    Rule(
        field="rollout.shards",
        broken=lambda c: c.rollout.shards > c.rollout.prompts_per_step,
        message="exceeds rollout.prompts_per_step, and a shard needs a prompt; lower it",
    ),
    Rule(
        field="rollout.routing_replay",
        broken=lambda c: c.rollout.routing_replay and c.rollout.engine != "transformers",
        message="only rollout.engine=transformers records the experts of a token; set it to false",
    ),
    Rule(
        field="rollout.routing_replay",
        broken=lambda c: c.rollout.routing_replay and c.model.source in ("embedded", "smollm2"),
        message="this model.source is no mixture of experts; set it to false",
    ),
    *OVERLAP_CONTRADICTIONS,
)
"""Settings that cannot hold together."""


WARNINGS: tuple[Rule[RunConfig], ...] = (
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
    *SHARED_WARNINGS,
    *DISTILLATION_WARNINGS,
)
"""Settings that are honoured, but without effect or at a risk."""
