"""Every rule is broken by one example; a rule that is added without an example fails here."""

import re

import pytest

from configs.preflight import CONTRADICTIONS, INERT, WARNINGS, Rule, check, value_of, warnings
from configs.resolve import RECIPES, resolve, validate
from configs.run import RunConfig

UNREAD = {
    "rl.loss_type": "seq-mean-token-mean",
    "rl.temperature": 0.5,
    "rl.unbiased_advantage": True,
    "rl.advantage": "leave_one_out",
    "rl.kl_beta": 0.1,
    "rl.kl_estimator": "k1",
    "rl.entropy_coef": 0.1,
    "rl.engine_correction": "mask",
    "rl.epsilon_low": 0.1,
    "rl.epsilon_high": 0.3,
    "rl.lower_bound_ratio": 2.0,
    "rl.importance_sampling_level": "sequence",
    "rl.sapo_temperature_positive": 2.0,
    "rl.sapo_temperature_negative": 2.0,
}
"""A value for every knob that `legacy_pg`, which reads none, refuses."""

BROKEN = [
    (
        "rl.lower_bound_ratio",
        "sequence-level ratio",
        "rl.importance_sampling_level=sequence rl.epsilon_high=4e-4",
    ),
    ("rl.lower_bound_ratio", "must exceed 1", "rl.lower_bound_ratio=0.5"),
    ("rl.temperature", "that was sampled", "rl.temperature=0.7"),
    ("rollout.temperature", "no loss temperature", "rollout.temperature=0.7 LEGACY"),
    ("rollout.temperature", "greedy responses", "rollout.temperature=0"),
    ("rollout.top_p", "renormalise", "rollout.top_p=0.9"),
    ("rollout.top_k", "renormalise", "rollout.top_k=5"),
    ("rollout.min_p", "renormalise", "rollout.min_p=0.1"),
    ("rollout.group_size", "at least 2", "rollout.group_size=1"),
    ("rl.mini_batches", "must divide", "rl.mini_batches=3"),
    ("rl.kl_estimator", "rl.kl_beta=0", "rl.kl_estimator=k1"),
    ("rl.engine_correction_low", "sequence-mask only", "rl.engine_correction_low=0.4"),
    ("rl.engine_correction_high", "rl.engine_correction=none", "rl.engine_correction_high=3"),
    (
        "rl.unbiased_advantage",
        "rl.advantage=group",
        "rl.advantage=maxrl rl.unbiased_advantage=true",
    ),
    ("rl.pass_k", "rl.advantage=pass_at_k only", "rl.pass_k=2"),
    ("rl.pass_k", "rollout.group_size", "rl.advantage=pass_at_k rl.pass_k=99"),
    (
        "rl.certified_deterministic_forward",
        "importance ratios",
        "rl.certified_deterministic_forward=true LEGACY",
    ),
    ("model.name_or_path", "model.source=embedded", "model.name_or_path=x"),
    ("model.name_or_path", "needs a Hugging Face", "model.source=pretrained"),
    ("model.revision", "model.source=embedded", "model.revision=x"),
    (
        "model.embedded",
        "model.source=pretrained",
        "model.source=pretrained model.name_or_path=x model.embedded.num_layers=3",
    ),
    ("model.embedded.num_heads", "multiple of twice", "model.embedded.num_heads=3"),
    ("rollout.max_prompt_tokens", "2 * data.digits + 2", "rollout.max_prompt_tokens=5"),
    ("rollout.max_tokens", "data.digits + 1", "rollout.max_tokens=3"),
    ("data.num_held_out", "fewer training problems", "data.num_held_out=9999"),
    ("evaluation.num_prompts", "data.num_held_out", "evaluation.num_prompts=501"),
    ("evaluation.num_samples", "greedy samples", "evaluation.num_samples=2"),
    ("reward.overlong_buffer_tokens", "rollout.max_tokens", "reward.overlong_buffer_tokens=5"),
    ("reward.overlong_penalty", "overlong_buffer_tokens=0", "reward.overlong_penalty=2"),
    (
        "trainer.final_lr_fraction",
        "lr_schedule=constant",
        "trainer.lr_schedule=constant trainer.final_lr_fraction=0.5",
    ),
    ("trainer.num_processes", "several processes", "trainer.num_processes=2"),
    ("rollout.vllm", "engine=vllm only", "rollout.vllm.compile=true"),
    ("rollout.server", "engine=server only", "rollout.server.url=http://here"),
    ("rollout.server.url", "address of a running", "rollout.engine=server"),
    (
        "rollout.batch_size",
        "max-num-seqs",
        "rollout.engine=server rollout.server.url=http://here rollout.batch_size=8",
    ),
    ("rollout.shards", "sharded rollouts", "rollout.shards=2"),
    ("rollout.staleness", "overlapping rollouts", "rollout.staleness=1"),
]
"""Field, a few words of the message, and overrides of `grpo_arithmetic` that break the rule."""

RISKY = [
    ("rl.mini_batches", "exactly 1", "rl.mini_batches=1"),
    ("rl.mini_batches", "off-policy", "LEGACY"),
    (
        "rl.epsilon_high",
        "scale of tokens",
        "rl.importance_sampling_level=sequence rl.lower_bound_ratio=0",
    ),
    (
        "model.dtype",
        "bfloat16",
        "rl.importance_sampling_level=sequence rl.lower_bound_ratio=0 model.dtype=bfloat16",
    ),
]
"""The same for the warnings."""


def overrides(example: str) -> str:
    return example.replace("LEGACY", "rl.grpo_surrogate=legacy_pg")


def rules(table: tuple[Rule, ...], field: str, snippet: str) -> list[Rule]:
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
    assert warnings(resolve(name)) == []


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
