"""Runs that train an adapter, from the command line to the summary."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from configs.resolve import resolve
from tests.workflows.runs import Finished, Warm, table_differences
from workflows import phases

ADAPTER = {
    "model__lora__rank": 2,
    "rl__kl_beta": 0.1,
    "trainer__lr_schedule": "constant",
    "trainer__warmup_steps": 0,
    "rl__max_steps": 4,
}


@pytest.fixture(scope="module")
def whole(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return warm.grpo(tmp_path_factory.mktemp("adapter"), **ADAPTER)


def test_two_and_two_steps_of_an_adapter_are_four(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    half = warm.grpo(tmp_path, **{**ADAPTER, "rl__max_steps": 2})
    assert half.summary["steps"] == 2
    assert half.weights != whole.weights
    resumed = warm.grpo(tmp_path, **ADAPTER)
    assert "continuing after step 2 of 4" in resumed.output
    assert resumed.weights == whole.weights
    assert table_differences(resumed, whole) == []


def test_a_checkpoint_is_an_adapter_that_opens_on_its_base(whole: Finished) -> None:
    weights = Path(str(whole.summary["checkpoint"])) / "weights"
    assert {path.suffix for path in weights.iterdir()} == {".json", ".safetensors"}
    assert [path.name for path in weights.glob("*.safetensors")] == ["adapter_model.safetensors"]
    model = AutoModelForCausalLM.from_pretrained(weights)
    changed = [p for name, p in model.named_parameters() if "lora_B" in name and p.abs().max() > 0]
    assert len(changed) == 7


def test_another_adapter_cannot_continue_a_run(warm: Warm, whole: Finished) -> None:
    refused = warm.grpo(whole.directory.parent, **{**ADAPTER, "model__lora__rank": 3})
    assert refused.code != 0
    assert "model.lora.rank: the checkpoint has 2, this run has 3" in refused.output


@pytest.mark.parametrize(
    ("recipe", "overrides", "roles"),
    [
        ("grpo_arithmetic", "rl.kl_beta=0.1", ["reference"]),
        ("grpo_arithmetic", "", []),
        ("grpo_lora_arithmetic", "rl.kl_beta=0.1", []),
    ],
)
def test_the_trainer_is_given_a_reference_unless_it_has_one(
    recipe: str, overrides: str, roles: list[str]
) -> None:
    assert list(phases.reference(resolve(recipe, overrides), object())) == roles
