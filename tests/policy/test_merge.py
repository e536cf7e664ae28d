"""An adapter and its base, written as one whole model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.policy.directory import load_model, save_weights
from tasks.policy.merge import merge
from tests.policy.adapters import moved, qwen, write_base, write_new

IDS = torch.tensor([[4, 7, 9, 12]])
ROOT = Path(__file__).parents[2]


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    new, to = write_new(write_base(tmp_path, qwen()), tmp_path / "new"), tmp_path / "trained"
    to.mkdir()
    save_weights(moved(load_model(new, dtype="float32")), like=new, to=to)
    return to


def test_the_merged_model_is_whole_and_has_the_same_logits(trained: Path, tmp_path: Path) -> None:
    to = tmp_path / "merged"
    command = [sys.executable, "-m", "tasks.policy.merge", str(trained), str(to)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    assert {path.name for path in to.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    merged = AutoModelForCausalLM.from_pretrained(to)
    expected = load_model(trained, dtype="float32")(IDS).logits
    torch.testing.assert_close(merged(IDS).logits, expected, rtol=1e-5, atol=1e-4)
    assert (expected - qwen()(IDS).logits).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(to)("7=")["input_ids"] == [11, 17]


def test_the_type_of_the_merged_weights_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    merge(trained, tmp_path / "merged", dtype="bfloat16")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.bfloat16}


def test_a_directory_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"base holds no adapter"):
        merge(write_base(tmp_path, qwen()), tmp_path / "to")


def test_a_directory_that_holds_something_is_not_overwritten(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not empty"):
        merge(trained, tmp_path / "base")


def test_a_quantised_base_is_refused(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "base" / "config.json"
    quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantised}))
    with pytest.raises(ValueError, match="base is quantised"):
        merge(trained, tmp_path / "to")
