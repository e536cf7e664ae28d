"""Refuses settings of a teacher and of distillation that contradict or are never read."""

from collections.abc import Callable

from configs.distillation import READS, Distillation
from configs.rl import AdvantageKnobs, Regularisers, SurrogateKnobs
from configs.rules import Rule
from configs.run import RunConfig

OPD_BUILDER = "objectives.opd:build_objective"
GRPO_BUILDER = "objectives.grpo:build_objective"

MASKS = frozenset(
    {
        "drop_zero_variance_groups",
        "mask_truncated",
        "min_shared_prefix_tokens",
        "dynamic_sampling_rounds",
    }
)
"""Settings of the advantage that say which tokens train, whatever trains them."""

GROUP_ADVANTAGE = AdvantageKnobs.model_fields.keys() - MASKS
"""Settings that only turn rewards into advantages."""

UNREAD_BY_DIRECT = (
    (SurrogateKnobs.model_fields.keys() - {"grpo_surrogate"})
    | Regularisers.model_fields.keys()
    | GROUP_ADVANTAGE
)
"""Fields of the `rl` section that mean nothing where a divergence is minimised."""


def has_teacher(config: RunConfig) -> bool:
    """Return whether the run distils a teacher."""
    return config.teacher.source != "none"


def is_direct(config: RunConfig) -> bool:
    """Return whether the run minimises a divergence, which reads neither ratio nor reward."""
    return has_teacher(config) and config.rl.distillation_mode == "direct"


def trains_on_rewards(config: RunConfig) -> bool:
    """Return whether the advantages of groups reach the loss."""
    return not has_teacher(config) or (
        not is_direct(config) and config.rl.task_advantage_weight > 0
    )


def _unread_by_mode(name: str) -> Callable[[RunConfig], bool]:
    def unread(config: RunConfig) -> bool:
        read = READS[config.rl.distillation_mode] | {"distillation_mode"}
        return name in config.rl.changed() and not (has_teacher(config) and name in read)

    return unread


def _unread_by_direct(name: str) -> Callable[[RunConfig], bool]:
    return lambda config: is_direct(config) and name in config.rl.changed()


def _unread_without_rewards(name: str) -> Callable[[RunConfig], bool]:
    return lambda config: (
        not is_direct(config) and not trains_on_rewards(config) and name in config.rl.changed()
    )


def _readers(name: str) -> str:
    modes = [mode for mode, fields in READS.items() if name in fields]
    return f" and rl.distillation_mode={modes[0]}" if modes else ""


DISTILLATION_INERT: tuple[Rule[RunConfig], ...] = (
    *(
        Rule(
            field=f"rl.{name}",
            broken=_unread_by_mode(name),
            message=f"is read with a teacher{_readers(name)} only; remove it",
        )
        for name in Distillation.model_fields
    ),
    *(
        Rule(
            field=f"rl.{name}",
            broken=_unread_by_direct(name),
            message="rl.distillation_mode=direct minimises a divergence and never reads it; "
            "remove it",
        )
        for name in sorted(UNREAD_BY_DIRECT)
    ),
    *(
        Rule(
            field=f"rl.{name}",
            broken=_unread_without_rewards(name),
            message="turns rewards into advantages, which train a student only with "
            "rl.task_advantage_weight above 0; remove it, or set that",
        )
        for name in sorted(GROUP_ADVANTAGE)
    ),
)
"""For every knob that distillation reads in some runs only: refused when set in the others."""


DISTILLATION_CONTRADICTIONS: tuple[Rule[RunConfig], ...] = (
    Rule(
        field="rl.builder",
        broken=lambda c: not has_teacher(c) and c.rl.builder == OPD_BUILDER,
        message="needs a teacher; set teacher.source=pretrained and teacher.name_or_path",
    ),
    Rule(
        field="rl.builder",
        broken=lambda c: has_teacher(c) and c.rl.builder == GRPO_BUILDER,
        message=f"never reads the teacher; set rl.builder={OPD_BUILDER}, or remove the section "
        "`teacher`",
    ),
    Rule(
        field="rl.grpo_surrogate",
        broken=lambda c: has_teacher(c) and c.rl.grpo_surrogate != "clipped",
        message="distillation trains by the surrogate clipped; set rl.grpo_surrogate=clipped",
    ),
    Rule(
        field="rl.importance_sampling_level",
        broken=lambda c: (
            has_teacher(c) and not is_direct(c) and c.rl.importance_sampling_level == "sequence"
        ),
        message="a teacher gives an advantage per token, which one ratio per sequence cannot "
        "weigh; set rl.importance_sampling_level=token",
    ),
    Rule(
        field="rl.kl_coef",
        broken=lambda c: has_teacher(c) and not is_direct(c) and c.rl.kl_coef == 0,
        message="the teacher would train nothing; set it above 0, or run workflows/grpo.py",
    ),
    Rule(
        field="rl.jsd_beta",
        broken=lambda c: is_direct(c) and c.rl.divergence != "jsd" and "jsd_beta" in c.rl.changed(),
        message="is read with rl.divergence=jsd only; remove it",
    ),
    Rule(
        field="teacher.source",
        broken=lambda c: c.teacher.source == "embedded" and c.model.source != "embedded",
        message="the embedded teacher has the tokenizer of the embedded model only; set "
        "teacher.source=pretrained",
    ),
    Rule(
        field="teacher.name_or_path",
        broken=lambda c: (c.teacher.source == "pretrained") == (c.teacher.name_or_path == ""),
        message="goes with teacher.source=pretrained, which needs it; set both or neither",
    ),
    Rule(
        field="teacher.revision",
        broken=lambda c: c.teacher.source != "pretrained" and c.teacher.revision != "",
        message="is read with teacher.source=pretrained only; remove it",
    ),
    Rule(
        field="teacher.dtype",
        broken=lambda c: not has_teacher(c) and "dtype" in c.teacher.changed(),
        message="is never read while teacher.source=none; remove it",
    ),
    Rule(
        field="teacher.engine",
        broken=lambda c: not has_teacher(c) and "engine" in c.teacher.changed(),
        message="is never read while teacher.source=none; remove it",
    ),
    Rule(
        field="teacher.engine",
        broken=lambda c: is_direct(c) and c.teacher.engine == "vllm" and c.rl.teacher_topk == 0,
        message="is never read where the divergence is over all tokens, since the trainer then "
        "holds the teacher; set rl.teacher_topk, or teacher.engine=transformers",
    ),
    Rule(
        field="rl.temperature",
        broken=lambda c: c.teacher.engine == "vllm" and c.rl.temperature != 1,
        message="vLLM tells the log-probabilities of given tokens at temperature 1 only; set "
        "rl.temperature and rollout.temperature to 1, or teacher.engine=transformers",
    ),
    Rule(
        field="teacher.vllm",
        broken=lambda c: c.teacher.engine != "vllm" and bool(c.teacher.vllm.changed()),
        message="is read with teacher.engine=vllm only; remove its settings",
    ),
    Rule(
        field="teacher.by_source",
        broken=lambda c: not has_teacher(c) and bool(c.teacher.by_source),
        message="is never read while teacher.source=none; set the teacher of all other sources",
    ),
    Rule(
        field="teacher.embedded",
        broken=lambda c: c.teacher.source != "embedded" and "embedded" in c.teacher.changed(),
        message="is read with teacher.source=embedded only; remove its settings",
    ),
    Rule(
        field="teacher.embedded.num_heads",
        broken=lambda c: c.teacher.embedded.hidden_size % (2 * c.teacher.embedded.num_heads) != 0,
        message="teacher.embedded.hidden_size must be a multiple of twice this (rotary embedding)",
    ),
)
"""Settings of the section `teacher` and of distillation that cannot hold together."""


DISTILLATION_WARNINGS: tuple[Rule[RunConfig], ...] = (
    Rule(
        field="rl.distillation_mode",
        broken=is_direct,
        message="task reward and group advantage do not train: the loss is the divergence from "
        "the teacher alone. Rewards still feed metrics, evaluation and masks",
    ),
)
"""What a reader of a distillation recipe must know."""


TOPOLOGIES: dict[str, tuple[Rule[RunConfig], ...]] = {
    "grpo": (
        Rule(
            field="teacher.source",
            broken=has_teacher,
            message="the workflow grpo asks no teacher; run workflows/opd.py",
        ),
    ),
    "opd": (
        Rule(
            field="teacher.source",
            broken=lambda c: not has_teacher(c),
            message="the workflow opd needs a teacher; set teacher.source, or run "
            "workflows/grpo.py",
        ),
    ),
    "evaluate": (),
}
"""What each workflow demands of the resolved config, after the overrides."""
