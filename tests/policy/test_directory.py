"""A policy on disk is a plain Hugging Face directory."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from tasks.policy.directory import (
    files_digest,
    load_model,
    save_weights,
    stop_tokens,
    weights_digest,
)
from tasks.policy.embedded import build_tokenizer
from tests.trainer.builders import learned_positions, rotary


def untied() -> PreTrainedModel:
    model = rotary()
    config = type(model.config)(**{**model.config.to_dict(), "tie_word_embeddings": False})
    return type(model)(config)


MODELS = pytest.mark.parametrize("build", [rotary, learned_positions, untied])


def written(tmp_path: Path, model: PreTrainedModel) -> tuple[Path, str]:
    """A policy directory, and beside it one with weights that were changed and saved."""
    origin, target = tmp_path / "origin", tmp_path / "target"
    model.save_pretrained(origin)
    build_tokenizer().save_pretrained(origin)
    target.mkdir()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)
    return target, save_weights(model, like=origin, to=target)


@MODELS
def test_saved_weights_open_as_any_model_does(tmp_path: Path, build: object) -> None:
    model = build()
    target, _ = written(tmp_path, model)
    opened = AutoModelForCausalLM.from_pretrained(target)
    ids = torch.tensor([[4, 7, 9]])
    assert type(opened) is type(model)
    assert torch.equal(opened(ids).logits, model(ids).logits)
    for name, value in model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], value), name


def test_the_tokenizer_opens_from_the_same_directory(tmp_path: Path) -> None:
    target, _ = written(tmp_path, rotary())
    opened = AutoTokenizer.from_pretrained(target)
    assert opened("12+34=")["input_ids"] == [5, 6, 14, 7, 8, 17]
    assert (opened.eos_token_id, opened.pad_token_id) == (1, 0)


@pytest.mark.parametrize(
    ("build", "once"), [(rotary, "lm_head.weight"), (learned_positions, "lm_head.weight")]
)
def test_tied_weights_are_written_once(tmp_path: Path, build: object, once: str) -> None:
    target, _ = written(tmp_path, build())
    with safe_open(target / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert once not in names
    assert len([name for name in names if "embed" in name or "wte" in name]) == 1


def test_an_untied_head_is_written(tmp_path: Path) -> None:
    target, _ = written(tmp_path, untied())
    with safe_open(target / "model.safetensors", "pt") as file:
        assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(file.keys())


def test_weights_of_the_origin_are_not_copied(tmp_path: Path) -> None:
    model, origin, target = rotary(), tmp_path / "origin", tmp_path / "target"
    model.save_pretrained(origin, max_shard_size="3KB")
    assert len(list(origin.glob("*.safetensors"))) > 1
    target.mkdir()
    save_weights(model, like=origin, to=target)
    names = {path.name for path in target.iterdir()}
    assert {name for name in names if "safetensors" in name} == {"model.safetensors"}
    assert {"config.json", "generation_config.json"} <= names


def test_the_digest_is_that_of_the_weights_alone(tmp_path: Path) -> None:
    target, digest = written(tmp_path, rotary())
    assert digest == weights_digest(target)
    (target / "README.md").write_text("a note")
    assert weights_digest(target) == digest
    (target / "model-extra.safetensors").write_text("more")
    assert weights_digest(target) != digest


def test_equal_weights_have_equal_digests_and_others_have_not(tmp_path: Path) -> None:
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        _, digest = written(tmp_path / name, rotary(seed))
        digests.append(digest)
    assert digests[0] == digests[1] != digests[2]


def test_saving_what_was_loaded_gives_the_same_digest(tmp_path: Path) -> None:
    target, digest = written(tmp_path, rotary())
    again = tmp_path / "again"
    again.mkdir()
    assert save_weights(load_model(target, dtype="float32"), like=target, to=again) == digest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_loaded_in_the_asked_type_and_in_evaluation_mode(
    tmp_path: Path, dtype: str
) -> None:
    rotary().save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype=dtype)
    assert model.dtype is getattr(torch, dtype)
    assert not model.training


def test_loading_leaves_the_random_state_alone(tmp_path: Path) -> None:
    rotary().save_pretrained(tmp_path)
    before = torch.get_rng_state()
    load_model(tmp_path, dtype="float32")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("declared", "expected"), [(None, {1}), (7, {1, 7}), ([7, 9], {1, 7, 9}), ([1], {1})]
)
def test_ends_are_those_of_the_tokenizer_and_of_the_generation_config(
    declared: object, expected: set[int]
) -> None:
    model = rotary()
    model.generation_config.eos_token_id = declared
    assert stop_tokens(model, build_tokenizer()) == expected


def test_a_model_without_a_generation_config_ends_as_its_tokenizer_says() -> None:
    model = rotary()
    model.generation_config = None
    assert stop_tokens(model, build_tokenizer()) == {1}


def test_a_digest_of_all_files_sees_more_than_that_of_the_weights(tmp_path: Path) -> None:
    target, digest = written(tmp_path, rotary())
    whole = files_digest(target)
    (target / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert weights_digest(target) == digest
    assert files_digest(target) != whole
