"""Every rule is broken by one example; a rule that is added without an example fails here."""

import re

import pytest

from configs.distillation_preflight import DISTILLATION_INERT
from configs.preflight import CONTRADICTIONS, INERT, WARNINGS, check, warnings
from configs.resolve import RECIPES, resolve, resolve_any, validate
from configs.rules import SHARED_WARNINGS, Rule, broken, value_of
from configs.run import RunConfig
from tests.configs.broken import BROKEN, CHANGED, RISKY, UNREAD, UNREAD_WITH, overrides


def rules(table: tuple[Rule[RunConfig], ...], field: str, snippet: str) -> list[Rule[RunConfig]]:
    return [rule for rule in table if rule.field == field and snippet in rule.message]


@pytest.mark.parametrize(("field", "snippet", "example"), BROKEN)
def test_a_contradiction_is_refused_with_field_value_and_remedy(
    field: str, snippet: str, example: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}=")) as raised:
        resolve("grpo_arithmetic", overrides(example))
    lines = [line for line in str(raised.value).splitlines() if snippet in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"{field}=")


@pytest.mark.parametrize(("field", "value"), UNREAD.items())
def test_a_knob_that_the_surrogate_never_reads_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match="never reads it") as raised:
        resolve("arithmetic", f"{field}={str(value).lower()}")
    line = next(line for line in str(raised.value).splitlines() if "never reads it" in line)
    assert line.startswith(f"{field}={value!r}: ")
    assert "remove it, or select rl.grpo_surrogate=" in line


@pytest.mark.parametrize("rule", DISTILLATION_INERT, ids=lambda rule: rule.field)
def test_a_knob_that_distillation_would_not_read_is_refused(rule: Rule[RunConfig]) -> None:
    run = next(example for words, example in UNREAD_WITH.items() if words in rule.message)
    value = CHANGED[rule.field]
    with pytest.raises(ValueError, match=re.escape(rule.field)) as raised:
        resolve("grpo_arithmetic", overrides(f"{run} {rule.field}={str(value).lower()}"))
    assert f"{rule.field}={value!r}: {rule.message}" in str(raised.value).splitlines()
    assert "remove it" in rule.message


@pytest.mark.parametrize("field", UNREAD)
def test_the_default_of_a_knob_is_not_refused_when_written_out(field: str) -> None:
    default = value_of(resolve("arithmetic"), field)
    resolve("arithmetic", f"{field}={str(default).lower()}")


@pytest.mark.parametrize(("field", "snippet", "example"), RISKY)
def test_a_risky_setting_is_honoured_with_a_warning(field: str, snippet: str, example: str) -> None:
    lines = warnings(resolve("grpo_arithmetic", overrides(example)))
    assert [line for line in lines if line.startswith(f"{field}=") and snippet in line]


@pytest.mark.parametrize(("table", "examples"), [(CONTRADICTIONS, BROKEN), (WARNINGS, RISKY)])
def test_every_rule_has_exactly_one_example(
    table: tuple[Rule, ...], examples: list[tuple[str, str, str]]
) -> None:
    found = [rules(table, field, snippet) for field, snippet, _ in examples]
    assert [len(matches) for matches in found] == [1] * len(examples)
    assert {id(matches[0]) for matches in found} == {id(rule) for rule in table}


def test_every_knob_of_a_surrogate_has_an_example() -> None:
    assert {rule.field for rule in INERT} == UNREAD.keys()


def test_every_rule_names_a_field_that_exists() -> None:
    config = resolve("grpo_arithmetic")
    for rule in (*INERT, *CONTRADICTIONS, *WARNINGS):
        value_of(config, rule.field)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_a_recipe_as_it_stands_breaks_no_rule_and_warns_of_nothing(name: str) -> None:
    config = resolve_any(name)
    assert broken(config, SHARED_WARNINGS) == []
    told = warnings(config) if isinstance(config, RunConfig) else []
    assert [line for line in told if not line.startswith("rl.distillation_mode='direct'")] == []


@pytest.mark.parametrize(("field", "snippet", "example"), RISKY)
def test_the_verdict_is_the_same_after_a_trip_through_json(
    field: str, snippet: str, example: str
) -> None:
    config = resolve("grpo_arithmetic", overrides(example))
    back = RunConfig.model_validate_json(config.model_dump_json())
    check(back)
    assert warnings(back) == warnings(config)


def test_every_broken_rule_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"rollout\.top_p") as raised:
        resolve("grpo_arithmetic", "rollout.top_p=0.9 rollout.top_k=3 rl.pass_k=2")
    assert len(str(raised.value).splitlines()) == 3


def test_a_config_that_was_built_by_hand_is_checked_too() -> None:
    values = resolve("grpo_arithmetic").model_dump()
    values["rollout"]["top_k"] = 3
    with pytest.raises(ValueError, match=r"rollout\.top_k=3"):
        check(validate(values))
