import json
import math
from pathlib import Path

import pytest

from configs.resolve import RECIPES, load_recipe, resolve, resolve_any, validate

NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_resolves_and_survives_a_trip_through_json(name: str) -> None:
    config = resolve_any(name)
    kind = type(config)
    assert kind.model_validate(json.loads(json.dumps(config.model_dump()))) == config
    assert kind.model_validate_json(config.model_dump_json()) == config


def test_every_recipe_has_an_output_directory_of_its_own() -> None:
    assert len({resolve_any(name).directory for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_holds_only_what_differs_from_its_bases(path: Path) -> None:
    assert "base" not in load_recipe(str(path))
    assert len(path.read_text().splitlines()) < 40


def test_a_later_base_wins_over_an_earlier_one_and_the_recipe_over_both(tmp_path: Path) -> None:
    write(tmp_path / "one.yaml", "algorithm: grpo\njob: {name: one}\nrl: {max_steps: 1}\n")
    write(tmp_path / "two.yaml", "rl: {max_steps: 2, save_every: 2, mini_batches: 2}\n")
    text = "base: [one, two]\nrl: {save_every: 3}\n"
    rl = resolve(write(tmp_path / "three.yaml", text)).rl
    assert (rl.max_steps, rl.save_every, rl.mini_batches) == (2, 3, 2)


def test_a_base_is_found_beside_the_recipe_that_names_it_first(tmp_path: Path) -> None:
    text = "algorithm: grpo\njob: {name: mine}\n"
    write(tmp_path / "arithmetic.yaml", text)
    assert resolve(write(tmp_path / "r.yaml", "base: arithmetic\n")).job.name == "mine"


def test_a_fragment_joins_a_task_recipe(tmp_path: Path) -> None:
    fragment = sorted((RECIPES / "algorithms").glob("*.yaml"))[0]
    text = f"base: [grpo_arithmetic, algorithms/{fragment.stem}]\n"
    config = resolve(write(tmp_path / "r.yaml", text))
    assert config.algorithm == load_recipe(str(fragment)).algorithm


def test_a_cycle_of_bases_is_refused_with_its_path(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "base: b\n")
    write(tmp_path / "b.yaml", "base: a\n")
    with pytest.raises(ValueError, match=r"'a' is its own base \(a -> b -> a\); remove"):
        resolve(str(tmp_path / "a.yaml"))


def test_a_diamond_of_bases_is_no_cycle(tmp_path: Path) -> None:
    write(tmp_path / "top.yaml", "algorithm: grpo\njob: {name: top}\n")
    write(tmp_path / "left.yaml", "base: top\n")
    write(tmp_path / "right.yaml", "base: top\n")
    text = "base: [left, right]\n"
    assert resolve(write(tmp_path / "r.yaml", text)).job.name == "top"


def test_a_missing_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="grpo_arithmatic") as raised:
        resolve("grpo_arithmatic")
    assert all(name in str(raised.value) for name in NAMES)


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: [1", "is not valid YAML"), ("- a\n", "must be a mapping"), ("a: 1\na: 2\n", "YAML")],
)
def test_a_recipe_that_cannot_be_read_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as raised:
        resolve(write(tmp_path / "odd.yaml", text))
    assert "odd.yaml" in str(raised.value)


def test_an_empty_recipe_lacks_the_required_settings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="algorithm: required") as raised:
        resolve(write(tmp_path / "r.yaml", ""))
    assert "job: required" in str(raised.value)


def test_overrides_win_and_the_last_one_counts() -> None:
    config = resolve("grpo_arithmetic", "rl.max_steps=1 rl.max_steps=2")
    assert config.rl.max_steps == 2


def test_numbers_in_overrides_are_read_as_yaml_and_as_people_write_them() -> None:
    config = resolve("grpo_arithmetic", "trainer.learning_rate=3e-6 trainer.max_grad_norm=2")
    assert config.trainer.learning_rate == 3e-6
    assert config.trainer.max_grad_norm == 2.0


def test_quotes_keep_spaces_and_brackets_make_lists() -> None:
    words = "tracking.experiment='two words' rollout.stop_token_ids=[3,5] job.output_root=/a=b"
    config = resolve("grpo_arithmetic", words)
    assert config.tracking.experiment == "two words"
    assert config.rollout.stop_token_ids == [3, 5]
    assert config.job.output_root == "/a=b"


def test_overrides_may_come_as_a_list_of_words() -> None:
    config = resolve("grpo_arithmetic", ["tracking.experiment=two words", "rl.max_steps=3"])
    assert (config.tracking.experiment, config.rl.max_steps) == ("two words", 3)


def test_text_that_looks_like_a_number_needs_its_own_quotes() -> None:
    config = resolve("grpo_arithmetic", "job.name='\"7\"'")
    assert config.job.name == "7"


@pytest.mark.parametrize(
    "word",
    ["rl.max_steps", "=3", "--rl.max_steps=3", "a..b=3", "rl.=3", "[x]=3", "job.name=???"],
)
def test_a_word_that_sets_nothing_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form section\.field=value") as raised:
        resolve("grpo_arithmetic", [word])
    assert repr(word) in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("rl.max_steps=[1", "cannot be read"),
        ("job.name='a", "cannot be split into words"),
        ("job.name=${oops}", "'oops' not found"),
    ],
)
def test_an_override_that_cannot_be_read_is_a_value_error(overrides: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        resolve("grpo_arithmetic", overrides)


def test_a_value_may_refer_to_another() -> None:
    config = resolve("grpo_arithmetic", "rl.max_steps=7 job.name=${algorithm}_${rl.max_steps}")
    assert config.job.name == "grpo_7"


def test_validating_twice_changes_nothing() -> None:
    once = resolve("grpo_arithmetic", "rl.loss_type=seq-mean-token-mean")
    assert validate(once.model_dump()) == once


def test_a_config_is_immutable_and_finite() -> None:
    config = resolve("grpo_arithmetic")
    with pytest.raises(ValueError, match="frozen"):
        config.rl.__setattr__("max_steps", 3)
    assert math.isfinite(config.trainer.learning_rate)
