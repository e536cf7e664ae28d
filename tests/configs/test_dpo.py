"""The configuration of runs on preference pairs: steps, rules, and what belongs to whom."""

import re

import pytest

from configs.base import Section
from configs.docstrings import field_docstrings
from configs.dpo import Dpo, DpoConfig, with_steps
from configs.dpo_preflight import DPO_CONTRADICTIONS, check_dpo, check_pairs
from configs.plan import plan
from configs.resolve import resolve, resolve_any, resolve_dpo
from configs.rules import SHARED
from configs.run import RunConfig

POINTS = "dpo_diffusion_toy"

BROKEN = [
    ("dpo.pairs", "belong to language models", "model.dtype=bfloat16", POINTS),
    ("dpo.pairs", "belong to language models", "data.seed=3", POINTS),
    ("trainer.gradient_checkpointing", "denoiser", "trainer.gradient_checkpointing=true", POINTS),
    ("denoiser", "dpo.pairs=points only", "denoiser.hidden_size=8", "dpo_arithmetic"),
    (
        "dpo.label_smoothing",
        "sigmoid or robust",
        "dpo.kind=ipo dpo.label_smoothing=0.1",
        "dpo_arithmetic",
    ),
    ("dpo.kind", "same as sigmoid", "dpo.kind=robust", "dpo_arithmetic"),
    ("dpo.kind", "averages over tokens", "dpo.kind=ipo", POINTS),
    ("dpo.sft_coef", "likelihood of tokens", "dpo.sft_coef=0.1", POINTS),
    ("dpo.mini_batches", "must divide", "dpo.mini_batches=3", "dpo_arithmetic"),
    ("trainer.num_processes", "train on nothing", "trainer.num_processes=65", "dpo_arithmetic"),
    ("data.chosen_field", "source=file", "data.chosen_field=x", "dpo_arithmetic"),
    ("data.rejected_field", "source=file", "data.rejected_field=x", "dpo_arithmetic"),
    ("data.max_tokens", "3 * data.digits + 4", "data.max_tokens=9", "dpo_arithmetic"),
    ("data.num_held_out", "fewer training pairs", "data.num_held_out=9999", "dpo_arithmetic"),
    ("evaluation.num_pairs", "exceeds", "evaluation.num_pairs=501", "dpo_arithmetic"),
    ("evaluation.num_pairs", "exceeds", "evaluation.num_pairs=513", POINTS),
]
"""Field, a few words of the message, overrides that break the rule, and of which recipe."""


@pytest.mark.parametrize(("field", "snippet", "overrides", "recipe"), BROKEN)
def test_a_contradiction_is_refused_with_field_value_and_remedy(
    field: str, snippet: str, overrides: str, recipe: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}=")) as raised:
        resolve_dpo(recipe, overrides)
    (line,) = (line for line in str(raised.value).splitlines() if snippet in line)
    assert line.startswith(f"{field}=")


def test_every_rule_has_an_example() -> None:
    own = [rule for rule in DPO_CONTRADICTIONS if rule not in SHARED]
    for rule in own:
        assert [b for b in BROKEN if b[0] == rule.field and b[1] in rule.message], rule
    assert DPO_CONTRADICTIONS[: len(SHARED)] == SHARED


def test_a_rule_about_model_and_trainer_holds_for_pairs_too() -> None:
    with pytest.raises(ValueError, match=r"trainer\.num_processes=2: one process trains on one"):
        resolve_dpo("dpo_arithmetic", "trainer.num_processes=2 resources.train.gpus=1")


def test_epochs_make_steps_and_a_limit_ends_them_earlier() -> None:
    config = resolve_dpo("dpo_arithmetic", "dpo.pairs_per_step=4 dpo.epochs=3")
    assert with_steps(config, 10).dpo.max_steps == 7
    limited = resolve_dpo("dpo_arithmetic", "dpo.pairs_per_step=4 dpo.epochs=3 dpo.max_steps=5")
    assert with_steps(limited, 10).dpo.max_steps == 5
    assert with_steps(limited, 4).dpo.max_steps == 3


def test_counting_steps_twice_changes_nothing_and_survives_json() -> None:
    once = with_steps(resolve_dpo("dpo_arithmetic"), 9500)
    assert once.schedule.max_steps == 9500 // 256
    assert with_steps(once, 9500) == once
    assert DpoConfig.model_validate_json(once.model_dump_json()) == once
    check_dpo(once)


def test_pairs_that_fill_no_step_are_refused() -> None:
    with pytest.raises(ValueError, match=r"10 training pairs in dpo\.epochs=1 do not fill"):
        with_steps(resolve_dpo("dpo_arithmetic"), 10)


def test_a_misspelt_key_is_looked_for_among_the_keys_of_this_kind_of_run() -> None:
    with pytest.raises(ValueError, match=r"did you mean dpo\.pairs_per_step"):
        resolve_dpo("dpo_arithmetic", "dpo.pair_per_step=4")
    with pytest.raises(ValueError, match="dpo: unknown key"):
        resolve("dpo_arithmetic")


def test_the_section_dpo_decides_which_kind_of_run_a_recipe_is() -> None:
    assert isinstance(resolve_any("dpo_arithmetic"), DpoConfig)
    assert isinstance(resolve_any("grpo_arithmetic"), RunConfig)


def test_a_recipe_of_the_other_workflow_is_refused_with_its_name() -> None:
    check_pairs(resolve_dpo(POINTS), "dpo_diffusion")
    with pytest.raises(ValueError, match="trains on text; run 'dpo_diffusion' of"):
        check_pairs(resolve_dpo(POINTS), "dpo")
    with pytest.raises(ValueError, match="trains on points; run 'dpo' of"):
        check_pairs(resolve_dpo("dpo_arithmetic"), "dpo_diffusion")


def test_the_plan_counts_pairs_and_updates() -> None:
    lines = plan(resolve_dpo("dpo_arithmetic", "dpo.max_steps=9"))
    assert "64 pairs per optimizer step" in lines
    assert "1 passes over the training pairs, at most 9 steps" in lines


@pytest.mark.parametrize("name", ["data", "denoiser", "dpo", "evaluation"])
def test_every_field_is_described_in_a_sentence(name: str) -> None:
    section = DpoConfig.model_fields[name].annotation
    assert isinstance(section, type)
    assert issubclass(section, Section)
    described = field_docstrings(section)
    assert list(described) == list(section.model_fields)
    assert all(text.endswith(".") for text in described.values())


def test_the_embedded_model_is_the_one_that_other_runs_start_from() -> None:
    problems = resolve_dpo("dpo_arithmetic").data.problems
    assert problems == resolve("grpo_arithmetic").data


def test_off_is_read_as_text() -> None:
    assert Dpo.model_validate({"resume": False}).resume == "off"
