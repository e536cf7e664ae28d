"""Training steps of an adapter: from directory to directory, with its base as the reference."""

import pytest
import torch

from tests.trainer.children import computed


def run() -> dict:
    return computed("lora")["adapters"]


def test_steps_from_disk_and_in_one_process_give_the_same_bits() -> None:
    for live, cold in zip(run()["live"], run()["cold"], strict=True):
        assert live.policy.key == cold.policy.key
        assert live.metrics == pytest.approx(cold.metrics, nan_ok=True)
    digests = {run()["first"].digest, *(trained.policy.digest for trained in run()["live"])}
    assert len(digests) == 3


def test_a_step_writes_the_adapter_alone() -> None:
    files = run()["files"]
    assert files["names"] == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert files["weights"]
    assert all(
        name.startswith("base_model.model.") and "lora_" in name for name in files["weights"]
    )


def test_the_optimizer_holds_the_adapter_alone() -> None:
    files = run()["files"]
    assert len(files["moments"]) == len(files["weights"]) == 2 * 7
    assert files["moments"] == files["parameters"]
    assert all("lora_" in name for name in files["moments"])


def test_the_base_stays_as_it_is() -> None:
    assert not run()["base moved"]


def test_the_sampler_and_the_trainer_agree_about_tokens_of_a_trained_adapter() -> None:
    assert run()["live"][1].metrics["train/engine/mismatch_max"] < 1e-5


def test_no_second_model_is_held_for_the_reference() -> None:
    assert "reference" not in run()["kept"]
    assert run()["live"][1].metrics["train/kl/reference"] > 1e-3
    assert "train/kl/reference" not in run()["without penalty"].metrics


def test_a_step_has_the_same_bits_with_a_reference_of_its_own() -> None:
    separate = run()["with a model of its own"]
    assert separate.policy.key == run()["live"][1].policy.key
    assert separate.policy.digest != run()["without penalty"].policy.digest


def test_a_step_has_the_same_bits_with_recomputed_layers() -> None:
    assert run()["recomputing"].policy.key == run()["live"][1].policy.key


def test_the_base_scores_as_a_separate_model_does() -> None:
    found = computed("lora")["gradients"]
    assert torch.equal(found["scores off"], found["scores separate"])
    assert (found["scores on"] - found["scores off"]).abs().max() > 0.1


def test_scoring_with_the_adapter_off_leaves_the_gradient_whole() -> None:
    found = computed("lora")["gradients"]
    assert torch.equal(found["adapter off"], found["separate"])
    assert not torch.allclose(found["adapter off"], found["itself"], rtol=1e-2)
    assert found["adapter off"].abs().max() > 1e-3


def test_small_steps_on_bfloat16_weights_are_kept_from_one_to_the_next() -> None:
    half = computed("lora")["bfloat16"]
    for live, cold in zip(half["live"], half["cold"], strict=True):
        assert live.policy.key == cold.policy.key
    first, second = (trained.policy.state_digest for trained in half["live"])
    assert first != second
    assert half["dtypes"] == {"torch.float32"}


def test_an_adapter_on_a_bfloat16_base_trains_in_float32() -> None:
    half = computed("lora")["bfloat16"]
    for live, cold in zip(half["lora live"], half["lora cold"], strict=True):
        assert live.policy.key == cold.policy.key
    assert len({trained.policy.digest for trained in half["lora live"]}) == 2
