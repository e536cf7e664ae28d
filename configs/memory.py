"""How much memory a run needs, from its config alone: an estimate, printed before it starts.

Weights, gradients and AdamW's moments are exact; activations follow the count of values that a
decoder layer keeps for its backward pass (as in Korthikanti et al. 2022, arXiv:2205.05198, without
attention scores, which are recomputed); buffers of libraries are not counted.
"""

from configs.dpo import DpoConfig
from configs.resources import Role
from configs.run import RunConfig
from configs.sizes import GPU_MEMORY_GIB, Shape, shape_of

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2}
HEAD_CHUNK = 512
"""Tokens whose logits exist at once."""

TRAINED = 16
"""Bytes of a number that trains: weight, gradient and two moments of AdamW in float32; or the first
two in bfloat16, with a float32 copy of the weight beside the moments."""


def memory_lines(config: RunConfig | DpoConfig) -> list[str]:
    """Return one line for each role that holds the policy, or one that says why there is none."""
    shape = shape_of(config.model)
    if shape is None:
        return [f"memory unknown: {config.model.identity} is neither on disk nor a known model"]
    millions = shape.num_parameters / 1e6
    lines = [f"about {millions:,.1f} million parameters", _training(config, shape)]
    if isinstance(config, RunConfig):
        lines.append(_rollout(config, shape))
    return lines


def _training(config: RunConfig | DpoConfig, shape: Shape) -> str:
    size = BYTES[config.model.dtype]
    tokens = config.trainer.max_tokens_per_chunk
    values = shape.values_per_token
    if config.trainer.gradient_checkpointing:
        values = shape.layers * shape.hidden + values // shape.layers
    activations = tokens * values * size + 2 * HEAD_CHUNK * shape.vocab * 4
    parts = {**_state(config, shape), f"a chunk of {tokens:,} tokens": activations}
    if isinstance(config, RunConfig) and config.rl.kl_beta and not config.model.lora.rank:
        parts["the reference"] = size * shape.num_parameters
    several = config.trainer.num_processes > 1
    return _line("train, each process" if several else "train", parts, config.resources.train)


def _state(config: RunConfig | DpoConfig, shape: Shape) -> dict[str, int]:
    """Return what lies there between passes; the layers that an adapter is on are at most all."""
    rank, trainer = config.model.lora.rank, config.trainer
    num_parts = trainer.num_processes if trainer.strategy == "fsdp2" else 1
    if not rank:
        return {"weights, gradients and AdamW": TRAINED * shape.num_parameters // num_parts}
    adapter = TRAINED * rank * shape.adapter_parameters_per_rank
    return {
        "weights": BYTES[config.model.dtype] * shape.num_parameters // num_parts,
        f"an adapter of rank {rank}, its gradients and AdamW": adapter // num_parts,
    }


def _rollout(config: RunConfig, shape: Shape) -> str:
    role = config.resources.rollout
    rollout = config.rollout
    if rollout.engine == "server":
        return "rollout: in the memory of the server"
    if rollout.engine == "vllm":
        share = rollout.vllm.gpu_memory_utilization
        return f"rollout: vLLM takes {share:.0%} of the memory{_of(role)}"
    tokens = min(rollout.batch_size, rollout.prompts_per_step * rollout.group_size)
    tokens *= rollout.max_prompt_tokens + rollout.max_tokens
    size = BYTES[config.model.dtype]
    parts = {
        "weights": size * shape.num_parameters,
        f"KV cache of {tokens:,} tokens": size * shape.cache_per_token * tokens,
    }
    return _line("rollout", parts, role)


def _line(name: str, parts: dict[str, int], role: Role) -> str:
    total = sum(parts.values())
    spelled = " + ".join(f"{_size(part)} {what}" for what, part in parts.items())
    return f"{name}: {spelled} = {_size(total)}{_of(role)}{_verdict(total, role)}"


def _size(number: float) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB / 10 else f"{number / 2**20:.0f} MiB"


def _of(role: Role) -> str:
    if not role.gpu_type:
        return ""
    return f" of {GPU_MEMORY_GIB[role.gpu_type]} GiB ({role.gpu_type})"


def _verdict(total: float, role: Role) -> str:
    fits = not role.gpu_type or total <= GPU_MEMORY_GIB[role.gpu_type] * GIB
    return "" if fits else ": does not fit"
