from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tasks.policy import resident
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.trainer.reference import open_reference
from tests.policy.builders import open_policy, run_config
from tests.trainer.builders import batch_of, make_rows, reference


@pytest.fixture
def policy(tmp_path: Path) -> Iterator[PolicyFiles]:
    for kind in ("reference", "policy"):
        resident.drop(kind)
    yield open_policy(run_config(tmp_path))
    for kind in ("reference", "policy"):
        resident.drop(kind)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_reference_scores_with_the_weights_of_its_files(
    policy: PolicyFiles, temperature: float
) -> None:
    rows = make_rows()
    scores = open_reference(policy, dtype="float32").reference_logprobs(
        batch_of(rows), temperature=temperature
    )
    model = load_model(policy.weights, dtype="float32")
    for row, response in enumerate(rows.responses):
        expected, _ = reference(model, rows.prompts[row], response, temperature)
        torch.testing.assert_close(
            scores[row, : len(response)].double(), expected, rtol=0, atol=5e-6
        )


def test_the_reference_never_trains(policy: PolicyFiles) -> None:
    opened = open_reference(policy, dtype="float32")
    scores = opened.reference_logprobs(batch_of(make_rows()), temperature=1.0)
    assert not scores.requires_grad
    assert not any(p.requires_grad for p in opened.policy.module.parameters())


def test_the_reference_is_kept_and_is_not_the_live_policy(policy: PolicyFiles) -> None:
    live = resident.borrow(
        "policy", policy.digest, lambda: load_model(policy.weights, dtype="float32")
    )
    opened = open_reference(policy, dtype="float32")
    assert open_reference(policy, dtype="float32") is opened
    assert opened.policy.module.model is not live
    assert all(parameter.requires_grad for parameter in live.parameters())
