"""Refuses ways of sampling that the loss could not train on, or that an engine would not follow."""

from configs.distillation_preflight import trains_on_rewards
from configs.model import EMBEDDED_CONTEXT
from configs.rules import Rule
from configs.run import RunConfig
from configs.surrogates import SURROGATES

SMALLEST_GROUP = 2
"""An estimator that compares the responses of a prompt needs as many."""


def _is_arithmetic(config: RunConfig) -> bool:
    return config.data.source == "arithmetic"


ROLLOUT_CONTRADICTIONS: tuple[Rule[RunConfig], ...] = (
    Rule(
        field="rollout.temperature",
        broken=lambda c: (
            SURROGATES[c.rl.grpo_surrogate].temperature == "one" and c.rollout.temperature != 1
        ),
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
)
"""Settings of `rollout` that cannot hold together."""
