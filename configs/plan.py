"""What a config amounts to, said before anything runs."""

from typing import cast

from omegaconf import OmegaConf

from configs.distillation_preflight import has_teacher, is_direct, trains_on_rewards
from configs.dpo import DpoConfig
from configs.memory import memory_lines
from configs.run import RunConfig

AnyConfig = RunConfig | DpoConfig
"""A run of either kind."""


def to_yaml(config: AnyConfig) -> str:
    """Return the whole resolved config as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump()))


def flatten(config: AnyConfig) -> dict[str, object]:
    """Return the config as `{dotted name: plain value}`."""
    flat: dict[str, object] = {}

    def visit(prefix: str, values: dict[str, object]) -> None:
        for name, value in values.items():
            if isinstance(value, dict) and value:
                visit(f"{prefix}{name}.", cast("dict[str, object]", value))
            else:
                flat[f"{prefix}{name}"] = value

    visit("", config.model_dump())
    return flat


def difference(first: AnyConfig, second: AnyConfig) -> dict[str, tuple[object, object]]:
    """Return `{dotted name: (value in first, value in second)}` where the two differ."""
    a, b = flatten(first), flatten(second)
    keys = sorted(a.keys() | b.keys())
    return {key: (a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)}


def plan(config: AnyConfig) -> list[str]:
    """Return what one step and the whole run do, one sentence each."""
    return _plan_pairs(config) if isinstance(config, DpoConfig) else _plan_rollouts(config)


def _plan_pairs(config: DpoConfig) -> list[str]:
    dpo = config.dpo
    limit = f", at most {dpo.max_steps} steps" if dpo.max_steps else ""
    lines = [
        f"{dpo.pairs_per_step} pairs per step",
        f"{dpo.mini_batches} optimizer steps per step",
        f"{dpo.pairs_per_step // dpo.mini_batches} pairs per optimizer step",
        f"{dpo.epochs} passes over the training pairs{limit}",
        f"loss {dpo.kind}, beta {dpo.beta:g}",
        *_processes(config),
    ]
    return lines + (memory_lines(config) if dpo.pairs == "text" else [])


def _plan_rollouts(config: RunConfig) -> list[str]:
    rollout, rl = config.rollout, config.rl
    num_responses = rollout.prompts_per_step * rollout.group_size
    return [
        f"{rollout.prompts_per_step} prompts and {num_responses} responses per step",
        f"at most {rollout.max_tokens} tokens per response",
        f"{rl.mini_batches} optimizer steps per step",
        f"{num_responses // rl.mini_batches} responses per optimizer step",
        f"{rl.max_steps * rl.mini_batches} optimizer steps in all",
        f"{rl.max_steps} steps, {rl.max_steps * num_responses} responses in all",
        f"reduction {rl.loss_type}; advantage {_advantage(config)}",
        *_processes(config),
        *memory_lines(config),
    ]


def _processes(config: AnyConfig) -> list[str]:
    trainer = config.trainer
    if trainer.num_processes == 1:
        return []
    where = f" on {trainer.num_nodes} machines" if trainer.num_nodes > 1 else ""
    return [f"{trainer.num_processes} training processes{where}, strategy {trainer.strategy}"]


def _advantage(config: RunConfig) -> str:
    if is_direct(config):
        return f"none: {config.rl.divergence} to the teacher is minimised"
    if has_teacher(config):
        return "log pi_teacher - log pi_old per token" + (
            f" + {config.rl.task_advantage_weight:g} {_group_advantage(config)}"
            if trains_on_rewards(config)
            else ""
        )
    return _group_advantage(config)


def _group_advantage(config: RunConfig) -> str:
    if config.rl.advantage != "group":
        return config.rl.advantage
    return "r - mean" if config.rl.unbiased_advantage else "(r - mean) / (std + eps)"
