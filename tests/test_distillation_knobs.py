"""No field of distillation is inert: in each mode it changes the gradient or is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from configs.distillation import READS, Distillation
from configs.distillation_preflight import OPD_BUILDER, UNREAD_BY_DIRECT
from configs.preflight import check, check_topology
from configs.resolve import resolve
from configs.rl import Rl
from configs.run import RunConfig
from objectives.batch import TrajectoryBatch
from objectives.build import ModelContext
from objectives.opd import build_objective
from tests.objectives.builders import freeze, make_batch, step_gradient
from tests.objectives.test_opd import Student, Teacher

RECIPES = {"advantage": "opd_arithmetic", "direct": "opd_direct_arithmetic"}

FIELDS: dict[str, tuple[dict[str, Any], Any]] = {
    "kl_coef": ({}, 0.5),
    "kl_advantage_bound": ({}, 0.3),
    "task_advantage_weight": ({}, 0.7),
    "divergence": ({}, "forward_kl"),
    "jsd_beta": ({"divergence": "jsd"}, 0.2),
    "teacher_topk": ({}, 2),
}
"""For every field: settings under which it can matter, and a value other than the default."""

INHERITED: dict[str, tuple[dict[str, Any], Any]] = {
    "loss_type": ({}, "seq-mean-token-mean"),
    "epsilon_low": ({}, 0.01),
    "epsilon_high": ({}, 0.5),
    "lower_bound_ratio": ({}, 1.1),
    "temperature": ({}, 0.7),
    "kl_beta": ({}, 0.5),
    "kl_estimator": ({"kl_beta": 0.5}, "k1"),
    "entropy_coef": ({}, 0.5),
    "engine_correction": ({}, "truncate"),
    "engine_correction_low": ({"engine_correction": "mask"}, 0.9),
    "engine_correction_high": ({"engine_correction": "truncate"}, 1.1),
}
"""Fields of the surrogate and its terms, which advantages per token go into."""


def config(mode: str, **rl: Any) -> RunConfig:
    """Return the mode's recipe with `rl` settings, none of its own ones for distillation."""
    values = resolve(RECIPES[mode]).model_dump()
    plain = Rl().model_dump(include=set(Distillation.model_fields)) | {"distillation_mode": mode}
    values["rl"] |= plain | rl
    values["rollout"]["temperature"] = values["rl"]["temperature"]
    return RunConfig.model_validate(values)


def accepted(candidate: RunConfig) -> bool:
    try:
        check(candidate)
    except ValueError:
        return False
    return True


class Reference:
    """A policy of its own, far from the student."""

    def reference_logprobs(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        return Student(seed=8).token_logprobs(batch, temperature=temperature).logprobs.detach()


def gradient(rl: Rl) -> Tensor:
    teacher = Teacher()
    batch = teacher.annotate(make_batch((5, 1, 4, 3, *[6] * 8)), rl.teacher_topk or 1)
    context = ModelContext(name_or_path="bigram", max_response_length=8)
    objective = build_objective(rl, context, teacher_scorer=teacher, reference_scorer=Reference())
    if objective.old_logp_cache is not None:
        freeze(objective, batch, Student(seed=3))
    return step_gradient(objective, Student(), [batch])[0]


def test_every_field_of_distillation_is_covered() -> None:
    assert FIELDS.keys() | {"distillation_mode"} == set(Distillation.model_fields)
    assert frozenset().union(*READS.values()) == FIELDS.keys()


@pytest.mark.parametrize("mode", RECIPES)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_changes_the_gradient_where_it_is_read_and_is_refused_elsewhere(
    field: str, mode: str
) -> None:
    context, value = FIELDS[field]
    if field not in READS[mode]:
        assert accepted(config(mode))
        assert not accepted(config(mode, **{field: value}))
        return
    before, after = config(mode, **context), config(mode, **{**context, field: value})
    assert accepted(before)
    assert accepted(after)
    assert not torch.allclose(gradient(before.rl), gradient(after.rl), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("field", INHERITED)
def test_a_knob_of_the_surrogate_matters_to_advantages_and_is_refused_in_direct_mode(
    field: str,
) -> None:
    context, value = INHERITED[field]
    before, after = config("advantage", **context), config("advantage", **{**context, field: value})
    assert accepted(after)
    assert not torch.allclose(gradient(before.rl), gradient(after.rl), rtol=1e-6, atol=1e-12)
    assert field in UNREAD_BY_DIRECT
    assert not accepted(config("direct", **{field: value}))


@pytest.mark.parametrize("field", ["advantage", "unbiased_advantage", "pass_k"])
def test_the_advantage_of_a_group_is_read_with_a_weight_only(field: str) -> None:
    context = {"advantage": "pass_at_k"} if field == "pass_k" else {}
    value = {"advantage": "maxrl", "unbiased_advantage": True, "pass_k": 2}[field]
    changed = {**context, field: value}
    assert accepted(config("advantage", task_advantage_weight=1.0, **changed))
    assert not accepted(config("advantage", **changed))
    assert not accepted(config("direct", **changed))


@pytest.mark.parametrize("mode", RECIPES)
def test_one_response_per_prompt_is_enough_where_rewards_do_not_train(mode: str) -> None:
    values = config(mode).model_dump()
    values["rollout"]["group_size"] = 1
    assert accepted(RunConfig.model_validate(values))
    values["rl"] |= {"distillation_mode": "advantage", "task_advantage_weight": 1.0}
    assert not accepted(RunConfig.model_validate(values))


def test_direct_mode_may_sample_at_another_temperature_than_it_scores() -> None:
    values = config("direct").model_dump()
    values["rollout"]["temperature"] = 0.7
    assert accepted(RunConfig.model_validate(values))


def test_a_workflow_demands_its_teacher_or_none_after_the_overrides() -> None:
    with_teacher, without = resolve("opd_arithmetic"), resolve("grpo_arithmetic")
    check_topology(with_teacher, "opd")
    check_topology(without, "grpo")
    with pytest.raises(ValueError, match=r"teacher\.source='none': .* needs a teacher"):
        check_topology(without, "opd")
    with pytest.raises(ValueError, match=r"teacher\.source='embedded': .* run workflows/opd\.py"):
        check_topology(with_teacher, "grpo")
    assert with_teacher.rl.builder == OPD_BUILDER
