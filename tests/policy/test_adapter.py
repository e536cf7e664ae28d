"""A policy that is an adapter: its directory, its digest, its base."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from configs.model import Lora, Model
from tasks.policy.adapter import adapter_off, load_adapted
from tasks.policy.declared import declared
from tasks.policy.directory import load_model, save_weights, weights_digest
from tasks.policy.files import PolicyFiles
from tasks.policy.start import initial_policy
from tests.policy.adapters import LORA, adapted_layers, moved, qwen, write_base, write_new
from tests.policy.builders import run_config
from tests.trainer.builders import learned_positions, rotary

IDS = torch.tensor([[4, 7, 9, 12]])
ALL = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(IDS, use_cache=False).logits.detach()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path, qwen())


@pytest.fixture
def trained(tmp_path: Path, base: Path) -> tuple[Path, PreTrainedModel]:
    """An adapter that was changed and saved, and the model that it was saved from."""
    new = write_new(base, tmp_path / "new")
    model = moved(load_model(new, dtype="float32"))
    to = tmp_path / "trained"
    to.mkdir()
    save_weights(model, like=new, to=to)
    return to, model


@pytest.mark.parametrize("build", [qwen, rotary, learned_positions])
def test_a_new_adapter_changes_no_bit_of_its_base(tmp_path: Path, build: object) -> None:
    base = write_base(tmp_path, build())
    opened = load_model(write_new(base, tmp_path / "new"), dtype="float32")
    assert torch.equal(logits(opened), logits(load_model(base, dtype="float32")))
    assert not opened.training


def test_the_adapter_alone_trains_and_is_on_every_linear_layer_but_the_head(
    tmp_path: Path, base: Path
) -> None:
    model = load_model(write_new(base, tmp_path / "new"), dtype="float32")
    trains = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trains == {name for name, _ in model.named_parameters() if "lora_" in name}
    assert adapted_layers(model) == ALL
    assert len(trains) == 2 * 2 * len(ALL)


def test_layers_can_be_named(tmp_path: Path, base: Path) -> None:
    lora = Lora(rank=2, target_modules=["q_proj", "layers.1.mlp.up_proj"])
    model = load_model(write_new(base, tmp_path / "new", lora), dtype="float32")
    assert adapted_layers(model) == {"q_proj", "up_proj"}
    assert len([n for n, p in model.named_parameters() if p.requires_grad]) == 2 * 3


@pytest.mark.parametrize("name", ["query", "lm_head", "embed_tokens", "proj"])
def test_a_name_of_no_adaptable_layer_is_refused(tmp_path: Path, base: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} names no linear layer .* gate_proj"):
        write_new(base, tmp_path / "new", Lora(rank=2, target_modules=["q_proj", name]))


def test_a_written_adapter_is_small_and_opens_with_the_same_bits(
    base: Path, trained: tuple[Path, PreTrainedModel]
) -> None:
    directory, model = trained
    assert {path.name for path in directory.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert torch.equal(logits(load_model(directory, dtype="float32")), logits(model))
    assert not torch.allclose(logits(model), logits(qwen()), atol=1e-2)


def test_other_libraries_open_the_directory(
    base: Path, trained: tuple[Path, PreTrainedModel]
) -> None:
    directory, model = trained
    alone = AutoModelForCausalLM.from_pretrained(directory)
    on_base = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), str(directory)
    ).eval()
    assert torch.equal(logits(alone), logits(model))
    assert torch.equal(logits(on_base), logits(model))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer("12+34=")["input_ids"] == [5, 6, 14, 7, 8, 17]


def test_what_a_directory_declares_is_read_from_the_base(
    trained: tuple[Path, PreTrainedModel],
) -> None:
    files = PolicyFiles(
        version=1, digest="", state_digest="", weights=trained[0], trainer_state=trained[0]
    )
    facts = declared(files)
    assert (facts.stop_token_ids, facts.context, facts.tied) == (frozenset({1}), 64, True)


def test_the_scale_is_alpha_over_rank(tmp_path: Path, base: Path) -> None:
    models = []
    for name, alpha in (("a", 4.0), ("b", 8.0)):
        lora = Lora(rank=2, alpha=alpha, target_modules=["layers.1.mlp.down_proj"])
        models.append(moved(load_model(write_new(base, tmp_path / name, lora), dtype="float32")))
    once, twice = (model.model.layers[1].mlp.down_proj for model in models)
    given = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    added = once(given) - once.base_layer(given)
    torch.testing.assert_close(twice(given) - twice.base_layer(given), 2 * added)
    by_hand = given @ (once.lora_B.default.weight @ once.lora_A.default.weight).T * 4.0 / 2
    torch.testing.assert_close(added, by_hand)


def test_the_adapter_is_float32_on_a_bfloat16_base(
    trained: tuple[Path, PreTrainedModel],
) -> None:
    opened = load_model(trained[0], dtype="bfloat16")
    for name, parameter in opened.named_parameters():
        assert parameter.dtype is (torch.float32 if "lora_" in name else torch.bfloat16), name
    assert (logits(opened).float() - logits(trained[1])).abs().max() < 0.5


def test_with_the_adapter_off_a_model_is_its_base_and_afterwards_itself(
    trained: tuple[Path, PreTrainedModel],
) -> None:
    model = load_model(trained[0], dtype="float32")
    with adapter_off(model):
        assert torch.equal(logits(model), logits(qwen()))
    assert torch.equal(logits(model), logits(trained[1]))
    assert all(p.requires_grad == ("lora_" in n) for n, p in model.named_parameters())


def test_the_adapter_is_on_again_after_an_error(trained: tuple[Path, PreTrainedModel]) -> None:
    model = trained[1]
    before = logits(model)
    with pytest.raises(RuntimeError), adapter_off(model):
        raise RuntimeError
    assert torch.equal(logits(model), before)


def test_an_adapter_on_another_base_is_refused(
    base: Path, trained: tuple[Path, PreTrainedModel]
) -> None:
    qwen(seed=1).save_pretrained(base)
    with pytest.raises(
        ValueError, match=r"trained on weights \w{16}, but its base .* holds \w{16}"
    ):
        load_model(trained[0], dtype="float32")


def test_an_adapter_whose_base_is_gone_is_refused(
    base: Path, trained: tuple[Path, PreTrainedModel]
) -> None:
    base.rename(base.with_name("elsewhere"))
    with pytest.raises(ValueError, match=r"base does not exist; restore or rename it"):
        load_adapted(trained[0], dtype="float32")


def test_an_adapter_with_fewer_layers_than_it_declares_is_refused(
    trained: tuple[Path, PreTrainedModel],
) -> None:
    path = trained[0] / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, path)
    with pytest.raises(ValueError, match="has other layers than it declares"):
        load_model(trained[0], dtype="float32")


def test_the_digest_is_of_adapter_and_base(
    tmp_path: Path, trained: tuple[Path, PreTrainedModel]
) -> None:
    directory, model = trained
    digest = weights_digest(directory)
    (directory / "tokenizer.json").write_text("{}")
    assert weights_digest(directory) == digest
    again = tmp_path / "again"
    again.mkdir()
    assert save_weights(model, like=directory, to=again) == digest
    (again / "base.json").write_text(json.dumps({"weights_digest": "0" * 64}))
    assert weights_digest(again) != digest


def test_a_seed_makes_an_adapter_and_the_random_state_is_left_alone(
    tmp_path: Path, base: Path
) -> None:
    before = torch.get_rng_state()
    made = [
        write_new(base, tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    load_model(made[0], dtype="float32")
    first, same, other = (weights_digest(path) for path in made)
    assert first == same != other
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_policy_of_a_run_is_an_adapter_built_once(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    model = config.model.model_copy(update={"lora": LORA})

    def opened(model: Model, seed: int = 0) -> PolicyFiles:
        return initial_policy(model, config.data, seed=seed, output_root=tmp_path)

    whole, first, again = opened(config.model), opened(model), opened(model)
    assert first == again
    assert first.digest == weights_digest(first.weights) != whole.digest
    assert json.loads((first.weights / "base.json").read_text()) == {"weights_digest": whole.digest}
    pair = [load_model(files.weights, dtype="float32") for files in (whole, first)]
    assert torch.equal(*(logits(policy) for policy in pair))
    other = opened(model.model_copy(update={"lora": Lora(rank=3)}))
    assert len({first.digest, other.digest, opened(model, seed=1).digest}) == 3


def test_an_adapter_is_no_base_of_another(
    tmp_path: Path, trained: tuple[Path, PreTrainedModel]
) -> None:
    config = run_config(tmp_path)
    model = Model(source="pretrained", name_or_path=str(trained[0]), lora=LORA)
    with pytest.raises(ValueError, match=r"holds an adapter, expected a whole model; merge"):
        initial_policy(model, config.data, seed=0, output_root=tmp_path)


def test_a_local_base_is_named_by_its_absolute_path(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.parent)
    config = run_config(tmp_path)
    model = Model(source="pretrained", name_or_path="base", lora=LORA)
    files = initial_policy(model, config.data, seed=0, output_root=tmp_path)
    stored = json.loads((files.weights / "adapter_config.json").read_text())
    assert stored["base_model_name_or_path"] == str(base)
