"""The memory plan: its counts are those of real models, and it says what does not fit."""

import json
import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import LlamaConfig, LlamaForCausalLM

from configs.memory import memory_lines
from configs.model import Model
from configs.plan import plan
from configs.resolve import resolve, resolve_any
from configs.sizes import KNOWN, Shape, shape_of

SMALL = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


def written(config: LlamaConfig, to: Path) -> Model:
    (to / "config.json").write_text(json.dumps(config.to_dict()))
    return Model(source="pretrained", name_or_path=str(to))


def test_parameters_are_counted_from_the_config_on_disk(tmp_path: Path) -> None:
    shape = shape_of(written(SMALL, tmp_path))
    assert shape is not None
    weights = sum(p.numel() for p in LlamaForCausalLM(SMALL).parameters() if p.dim() > 1)
    assert shape.num_parameters == weights


@pytest.mark.parametrize(
    ("name", "millions"), [("smollm2", 134.5), ("Qwen/Qwen2.5-3B-Instruct", 3086)]
)
def test_known_models_have_the_published_sizes(name: str, millions: float) -> None:
    assert KNOWN[name].num_parameters / 1e6 == pytest.approx(millions, rel=1e-3)


def test_activations_are_about_those_that_autograd_keeps() -> None:
    model = LlamaForCausalLM(SMALL).eval()
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    ids = torch.zeros(4, 128, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    activations = sum(size for pointer, size in kept.items() if pointer not in weights)
    shape = Shape(64, 32, 3, queries=32, keys=16, intermediate=80, tied=True)
    assert hidden.requires_grad
    assert shape.values_per_token == pytest.approx(activations / ids.numel(), rel=0.25)


def test_a_model_that_is_neither_known_nor_on_disk_is_said_to_be_unknown() -> None:
    config = resolve(
        "grpo_arithmetic",
        "model.source=pretrained model.name_or_path=some/model data.source=gsm8k data.digits=2",
    )
    assert memory_lines(config) == [
        "memory unknown: some/model is neither on disk nor a known model"
    ]


@pytest.mark.parametrize("recipe", ["grpo_qwen3b_gsm8k", "opd_qwen3b_gsm8k"])
def test_every_recipe_for_gpus_fits_them(recipe: str) -> None:
    config = resolve_any(recipe)
    assert config.resources.train.gpu_type
    assert not [line for line in plan(config) if "does not fit" in line]


def test_what_does_not_fit_is_said() -> None:
    config = resolve("grpo_qwen3b_gsm8k", "resources.train.gpu_type=nvidia-l4")
    (line,) = (line for line in memory_lines(config) if line.startswith("train: "))
    assert line.endswith("GiB of 24 GiB (nvidia-l4): does not fit")


def test_an_adapter_has_as_many_numbers_as_peft_makes() -> None:
    model = LlamaForCausalLM(SMALL)
    inject_adapter_in_model(LoraConfig(r=4, target_modules="all-linear"), model)
    made = sum(p.numel() for name, p in model.named_parameters() if "lora_" in name)
    shape = Shape(64, 32, 3, queries=32, keys=16, intermediate=80, tied=True)
    assert 4 * shape.adapter_parameters_per_rank == made


def test_an_adapter_takes_less_and_needs_no_reference() -> None:
    (whole,) = _training("rl.kl_beta=0.1")
    (adapted,) = _training("rl.kl_beta=0.1 model.lora.rank=8")
    assert "+ 0.5 GiB the reference" in whole
    assert "reference" not in adapted
    assert "train: 0.5 GiB weights + 37 MiB an adapter of rank 8" in adapted


def test_recomputing_keeps_one_number_per_layer_and_the_width_of_one_layer() -> None:
    (kept,) = _training("trainer.max_tokens_per_chunk=65536")
    (recomputed,) = _training(
        "trainer.max_tokens_per_chunk=65536 trainer.gradient_checkpointing=true"
    )
    sizes = [float(re.search(r"([0-9.]+) GiB a chunk", line)[1]) for line in (kept, recomputed)]
    assert sizes[1] < sizes[0] / 10


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_either_type_take_sixteen_bytes_with_their_optimizer(dtype: str) -> None:
    (line,) = _training(f"model.dtype={dtype}")
    assert "train: 2.0 GiB weights, gradients and AdamW" in line


def _training(overrides: str) -> list[str]:
    lines = memory_lines(resolve("grpo_smollm2_format", overrides))
    return [line for line in lines if line.startswith("train: ")]


@pytest.mark.parametrize(("strategy", "gib"), [("ddp", "46.0 GiB"), ("fsdp2", "23.0 GiB")])
def test_of_several_processes_each_holds_the_state_or_its_part(strategy: str, gib: str) -> None:
    several = f"trainer.num_processes=2 trainer.strategy={strategy} resources.train.gpus=2"
    lines = plan(resolve("grpo_qwen3b_gsm8k", several))
    (train,) = (line for line in lines if line.startswith("train, each process: "))
    assert f"{gib} weights, gradients and AdamW" in train
    assert f"2 training processes, strategy {strategy}" in lines
