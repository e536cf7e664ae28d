"""PROMPTS to ROLLOUTS: the responses of one policy, as a table."""

from dataclasses import asdict

import numpy as np
import pyarrow as pa

from configs.run import RunConfig
from tasks.data.schemas import OPTIONAL, PROMPTS, ROLLOUTS, TOKENS, extend, read_stamp, require
from tasks.policy import resident
from tasks.policy.declared import declared
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.policy.tokenizing import tokenizer_of
from tasks.sampling.sampler import Completion, Sampler, SamplingParams


def rollout(
    config: RunConfig,
    step: int,
    prompts: pa.Table,
    files: PolicyFiles,
    *,
    refill: int = 0,
    first_prompt: int = 0,
) -> pa.Table:
    """Return the ROLLOUTS table of one training step, or of its `refill`-th refill.

    Args:
        config: the run's.
        step: the training step.
        prompts: all its prompts, or those of one shard.
        files: the policy that answers.
        refill: 0 for the step's own prompts.
        first_prompt: how many of the step's prompts come before these.

    Raises:
        TypeError: `prompts` is not a PROMPTS table.
        ValueError: a prompt is longer than `rollout.max_prompt_tokens`.
    """
    params = SamplingParams(
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_tokens,
        num_samples=config.rollout.group_size,
        stop_token_ids=tuple(config.rollout.stop_token_ids),
        seed=config.job.seed,
        step=step,
        batch_size=config.rollout.batch_size,
    )
    before = refill * config.rollout.prompts_per_step + first_prompt
    first_id = before * config.rollout.group_size
    with_experts = config.rollout.routing_replay
    return respond(config, prompts, files, params, first_id=first_id, with_experts=with_experts)


def evaluation_rollout(config: RunConfig, prompts: pa.Table, files: PolicyFiles) -> pa.Table:
    """Return the ROLLOUTS table of held-out prompts, sampled as `evaluation` says.

    Every policy draws with the same random numbers, so that two of them differ by less chance.
    """
    params = SamplingParams(
        temperature=config.evaluation.temperature,
        max_tokens=config.rollout.max_tokens,
        num_samples=config.evaluation.num_samples,
        stop_token_ids=tuple(config.rollout.stop_token_ids),
        seed=config.job.seed,
        step=0,
        batch_size=config.rollout.batch_size,
    )
    return respond(config, prompts, files, params)


def respond(
    config: RunConfig,
    prompts: pa.Table,
    files: PolicyFiles,
    params: SamplingParams,
    *,
    first_id: int = 0,
    with_experts: bool = False,
) -> pa.Table:
    """Sample every prompt and lay the completions out as rows, groups together and in order.

    Sample ids count from `first_id`. The table's metadata says what engine sampled it, and the
    seed that all responses are drawn from. `with_experts` adds the column `routed_experts`.
    """
    prompts = require(prompts, PROMPTS, stage="rollout")
    tokens = prompts["prompt_tokens"].to_pylist()
    _check_lengths(tokens, prompts, config.rollout.max_prompt_tokens)
    tokenizer = tokenizer_of(files)
    sampler = _sampler(config, files, with_experts=with_experts)
    groups = sampler.sample(tokens, prompts["group_id"].to_pylist(), params)
    completions = [completion for group in groups for completion in group]
    texts = tokenizer.batch_decode(
        [completion.tokens.tolist() for completion in completions], skip_special_tokens=True
    )
    repeated = prompts.take(np.repeat(np.arange(len(prompts)), params.num_samples))
    columns = {
        "sample_id": first_id + np.arange(len(completions)),
        **_columns(completions, texts, params, files),
    }
    table = extend(repeated, ROLLOUTS, columns, stage="rollout")
    if with_experts:
        table = require(table.append_column(*_experts(completions)), ROLLOUTS, stage="rollout")
    facts = {**asdict(sampler.facts()), "sampling_seed": str(params.seed)}
    return table.replace_schema_metadata({**read_stamp(table), **facts})


def _experts(completions: list[Completion]) -> tuple[pa.Field, pa.ListArray]:
    """Return the column of the experts that each token was sent to."""
    per_row = [completion.experts for completion in completions]
    (field,) = OPTIONAL
    choices = np.concatenate(per_row)
    offsets = np.arange(len(choices) + 1, dtype=np.int32) * choices.shape[1]
    tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(choices.ravel()))
    rows = np.concatenate([[0], np.cumsum([len(one) for one in per_row])]).astype(np.int32)
    return field, pa.ListArray.from_arrays(pa.array(rows), tokens)


def _sampler(config: RunConfig, files: PolicyFiles, *, with_experts: bool) -> Sampler:
    facts = declared(files)
    _check_context(config, facts.context)
    match config.rollout.engine:
        case "transformers":
            return _in_process(config, files, facts.stop_token_ids, with_experts=with_experts)
        case "vllm":
            from tasks.sampling.vllm import VllmSampler

            return VllmSampler(config=config, files=files, stop_token_ids=facts.stop_token_ids)
        case "server":
            from tasks.sampling.server import ServerSampler

            return ServerSampler(settings=config.rollout.server, files=files, declared=facts)


def _in_process(
    config: RunConfig, files: PolicyFiles, stops: frozenset[int], *, with_experts: bool
) -> Sampler:
    # Here, because the transformers that vLLM keeps may lack what they build on.
    from tasks.policy.routing import routers_of
    from tasks.sampling.hf import HfSampler

    model = resident.borrow(
        "policy", files.digest, lambda: load_model(files.weights, dtype=config.model.dtype)
    )
    tokenizer = tokenizer_of(files)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    recorded = routers_of(model) if with_experts else None
    if with_experts and recorded is None:
        raise ValueError(
            f"rollout.routing_replay=true, but {type(model).__name__} is no mixture of experts; "
            "remove it"
        )
    return HfSampler(model=model, stop_token_ids=stops, pad_token_id=pad, recorded=recorded)


def _check_context(config: RunConfig, context: int | None) -> None:
    needed = config.rollout.max_prompt_tokens + config.rollout.max_tokens
    if context is not None and needed > context:
        raise ValueError(
            f"rollout.max_prompt_tokens + rollout.max_tokens = {needed} exceeds the context "
            f"of the model, {context} tokens; lower one of them"
        )


def _check_lengths(tokens: list[list[int]], prompts: pa.Table, bound: int) -> None:
    long = [row for row, prompt in enumerate(tokens) if len(prompt) > bound]
    if long:
        ids = prompts["prompt_id"].take(long[:5]).to_pylist()
        raise ValueError(
            f"{len(long)} prompts exceed rollout.max_prompt_tokens={bound}: {', '.join(ids)}; "
            "raise it or filter them out of the source"
        )


def _columns(
    completions: list[Completion], texts: list[str], params: SamplingParams, files: PolicyFiles
) -> dict[str, object]:
    num_rows = len(completions)
    return {
        "sample_index": (np.arange(num_rows) % params.num_samples).astype(np.int32),
        "response_tokens": _ragged([c.tokens for c in completions], TOKENS),
        "engine_logprobs": _ragged([c.logprobs for c in completions], pa.list_(pa.float32())),
        "response_text": [text.encode("utf-8", "replace").decode() for text in texts],
        "finish_reason": [completion.finish_reason for completion in completions],
        "policy_version": np.full(num_rows, files.version),
        "policy_digest": [files.digest] * num_rows,
    }


def _ragged(arrays: list[np.ndarray], kind: pa.DataType) -> pa.ListArray:
    """Return arrays as a list column; NaN is an item the engine did not report, and so null."""
    offsets = np.concatenate([[0], np.cumsum([len(a) for a in arrays])]).astype(np.int32)
    values = np.concatenate(arrays) if arrays else np.zeros(0)
    items = pa.array(values, kind.value_type, from_pandas=True)
    return pa.ListArray.from_arrays(pa.array(offsets), items)
