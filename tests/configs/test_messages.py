import pytest

from configs.messages import MOVED
from configs.resolve import resolve, validate

WRONG_KINDS = [
    ("rl.max_steps=7.5", "rl.max_steps=7.5", "a whole number, got float; the default is 200"),
    ("rl.max_steps='\"7\"'", "rl.max_steps='7'", "a whole number, got str"),
    ("rl.max_steps=null", "rl.max_steps=None", "a whole number, got null; the default is 200"),
    ("rl.max_steps=", "rl.max_steps=None", "a whole number, got null"),
    ("rollout.max_tokens=true", "rollout.max_tokens=True", "a whole number, got bool"),
    ("rl.max_steps.more=1", "rl.max_steps={'more': 1}", "a whole number, got dict"),
    ("trainer.learning_rate=.nan", "trainer.learning_rate=nan", "a finite number"),
    ("trainer.learning_rate=-.inf", "trainer.learning_rate=-inf", "a finite number"),
    ("trainer.learning_rate=fast", "trainer.learning_rate='fast'", "a number, got str"),
    ("trainer.prove_reduction=1", "trainer.prove_reduction=1", "true or false, got int"),
    ("job.name=1", "job.name=1", "text, got int"),
    ("job.name=../x", "job.name='../x'", "text that matches '^[A-Za-z0-9]"),
    ("job.seed=-1", "job.seed=-1", "a value greater than or equal to 0, got int"),
    ("rollout.top_p=1.5", "rollout.top_p=1.5", "a value less than or equal to 1"),
    ("rl.resume=maybe", "rl.resume='maybe'", "'auto' or 'off', got str; the default is 'auto'"),
    ("rollout.stop_token_ids=3", "rollout.stop_token_ids=3", "a list, such as [1,2], got int"),
    ("rollout.stop_token_ids=[1,a]", "rollout.stop_token_ids.1='a'", "a whole number, got str"),
    ("rl=null", "rl=None", "a section of settings, got null"),
    ("rl=5", "rl=5", "a section of settings, got int"),
    ("rl.builder_arguments.gain=[1]", "rl.builder_arguments.gain=[1]", "true, false or text"),
]


@pytest.mark.parametrize(("override", "got", "expected"), WRONG_KINDS)
def test_a_wrong_value_is_named_with_what_was_expected(
    override: str, got: str, expected: str
) -> None:
    with pytest.raises(ValueError, match="expected") as raised:
        resolve("grpo_arithmetic", override)
    lines = str(raised.value).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{got}: expected ")
    assert expected in lines[0]
    assert "instance of" not in lines[0]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rl.grup_size=8", "rl.grup_size: unknown key (got 8); did you mean rollout.group_size?"),
        ("rl.kl_bta=8", "rl.kl_bta: unknown key (got 8); did you mean rl.kl_beta?"),
        ("rl.max_tokens=8", "did you mean rollout.max_tokens?"),
        ("max_steps=8", "max_steps: unknown key (got 8); did you mean rl.max_steps?"),
        ("rolout.group_size=8", "rolout: unknown key (got {'group_size': 8}); did you mean roll"),
        ("model.embedded.num_layer=1", "did you mean model.embedded.num_layers?"),
        ("trainer.temperature=1", "rollout.temperature or rl.temperature or evaluation.temp"),
        ("tracking.xyzzy=1", "known keys of tracking: deck_every, experiment, keep_tables, uri"),
        ("xyzzy=1", "known keys: algorithm, data, evaluation, job, model, resources, reward, rl"),
        ("base=arithmetic", "base: unknown key"),
    ],
)
def test_an_unknown_key_is_named_with_where_it_may_belong(override: str, told: str) -> None:
    with pytest.raises(ValueError, match="unknown key") as raised:
        resolve("grpo_arithmetic", f"rl.max_steps=2 {override}")
    assert told in str(raised.value)


@pytest.mark.parametrize("key", sorted(MOVED))
def test_a_key_of_the_earlier_system_names_its_successor(key: str) -> None:
    with pytest.raises(ValueError, match="it was renamed") as raised:
        resolve("grpo_arithmetic", f"{key}=x")
    assert f"{key}: unknown key (got 'x')" in str(raised.value)
    assert MOVED[key] in str(raised.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="unknown key") as raised:
        resolve("grpo_arithmetic", "rl.max_steps=x rl.foo=1 job.seed=-1")
    keys = [line.split("=")[0].split(":")[0] for line in str(raised.value).splitlines()]
    assert sorted(keys) == ["job.seed", "rl.foo", "rl.max_steps"]


def test_a_required_setting_that_is_absent_is_named_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"job\.name: required, but .* add job\.name to it"):
        validate({"algorithm": "grpo", "job": {}})


def test_a_scalar_in_place_of_a_whole_section_offers_no_default() -> None:
    with pytest.raises(ValueError, match=r"a section of settings, got str$"):
        validate({"algorithm": "grpo", "job": {"name": "x"}, "rl": "clipped"})
