"""Refuses settings that contradict each other or that the selected objective would never read.

One table of rules, put together from those of each section; the generated configuration reference
lists it. `check` raises with every rule that is broken; `warnings` returns those about values that
are honoured but have no effect.
"""

from configs.distillation_preflight import (
    DISTILLATION_CONTRADICTIONS,
    DISTILLATION_INERT,
    DISTILLATION_WARNINGS,
    TOPOLOGIES,
)
from configs.overlap_preflight import OVERLAP_CONTRADICTIONS
from configs.reward_preflight import REWARD_CONTRADICTIONS
from configs.rl_preflight import INERT, RL_CONTRADICTIONS, RL_WARNINGS
from configs.rollout_preflight import ROLLOUT_CONTRADICTIONS
from configs.rules import SHARED, SHARED_WARNINGS, Rule, broken, refuse
from configs.run import RunConfig


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
        field="data.num_held_out",
        broken=lambda c: (
            c.data.source == "arithmetic"
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
    *RL_CONTRADICTIONS,
    *ROLLOUT_CONTRADICTIONS,
    *REWARD_CONTRADICTIONS,
    *OVERLAP_CONTRADICTIONS,
)
"""Settings that cannot hold together."""

WARNINGS: tuple[Rule[RunConfig], ...] = (*RL_WARNINGS, *SHARED_WARNINGS, *DISTILLATION_WARNINGS)
"""Settings that are honoured, but without effect or at a risk."""
