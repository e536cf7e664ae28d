"""The objective of `examples/custom_objective`: its numbers, and a run that loads it by path."""

import importlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from configs.resolve import resolve
from configs.rl import Rl
from objectives.build import ModelContext, build, load_builder
from objectives.objective import Objective
from tests.objectives.builders import BigramPolicy, freeze, make_batch, step_gradient

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "custom_objective"
TIMEOUT_S = 240
TINY = (
    "rl.max_steps=2 rl.mini_batches=2 rollout.prompts_per_step=4 rollout.group_size=4 "
    "model.embedded.hidden_size=16 model.embedded.intermediate_size=16 "
    "model.embedded.warm_start_accuracy=0 model.embedded.warm_start_max_steps=0 "
    "evaluation.num_prompts=4 tracking.deck_every=0"
)


@pytest.fixture(autouse=True)
def _example_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)


def _objective(*, strength: float = 0.5, **rl: object) -> Objective:
    section = Rl(builder="asymmetric:build_objective", **rl)
    builder = load_builder(section.builder, {"strength": strength})
    return build(builder, section, ModelContext(name_or_path="toy", max_response_length=8))


def test_on_policy_the_loss_is_minus_the_scaled_advantage_per_token() -> None:
    batch = make_batch()
    kept = [4, 1, 0, 3]  # the builder masks one token of the first row
    scaled = [a if a > 0 else 0.5 * a for a in batch.advantages.tolist()]
    by_hand = -sum(n * a for n, a in zip(kept, scaled, strict=True)) / sum(kept)
    assert min(batch.advantages[:2]) < 0 < max(batch.advantages[:2])

    loss, metrics = _objective().fn(BigramPolicy(), batch)

    assert loss.item() == pytest.approx(by_hand)
    assert metrics["loss"].value == pytest.approx(by_hand)


def test_the_gradient_of_a_negative_row_is_scaled_and_that_of_a_positive_one_is_not() -> None:
    batch = make_batch((3,))
    for sign, factor in ((1.0, 1.0), (-1.0, 0.5)):
        one = batch.take(torch.tensor([0]))
        one.advantages.fill_(sign)
        plain, _ = step_gradient(_objective(strength=1.0), BigramPolicy(), [one])
        scaled, _ = step_gradient(_objective(strength=0.5), BigramPolicy(), [one])
        torch.testing.assert_close(scaled, factor * plain)
        assert plain.abs().max() > 0


def test_the_ratio_is_taken_against_the_frozen_policy_and_clipped() -> None:
    one = make_batch((1,))
    for sign, expected in ((1.0, lambda r: -min(r, 1.2)), (-1.0, lambda r: 0.5 * max(r, 0.8))):
        one.advantages.fill_(sign)
        policy, old = BigramPolicy(seed=1), BigramPolicy(seed=5)
        now, before = (p.token_logprobs(one, temperature=1.0).logprobs[0, 0] for p in (policy, old))
        ratio = (now - before).exp().item()
        assert abs(ratio - 1) > 0.05
        objective = _objective(mini_batches=2)
        freeze(objective, one, old)
        assert objective.fn(policy, one)[0].item() == pytest.approx(expected(ratio))


@pytest.mark.parametrize("loss_type", ["token-mean", "seq-mean-token-sum-fixed"])
def test_a_step_is_the_same_however_its_rows_are_cut(loss_type: str) -> None:
    batch, policy = make_batch(), BigramPolicy()
    objective = _objective(loss_type=loss_type, mini_batches=2)
    freeze(objective, batch, BigramPolicy(seed=5))
    whole, together = step_gradient(objective, policy, [batch])
    for cuts in ([[0], [1], [2], [3]], [[3, 1], [2, 0]]):
        chunks = [batch.take(torch.tensor(rows)) for rows in cuts]
        split, apart = step_gradient(objective, policy, chunks)
        torch.testing.assert_close(split, whole, rtol=1e-10, atol=1e-12)
        assert {n: m.value for n, m in apart.items()} == pytest.approx(
            {n: m.value for n, m in together.items()}
        )


def test_the_strength_is_part_of_the_identity() -> None:
    assert _objective(strength=0.5).identity_digest() != _objective(strength=0.6).identity_digest()


def test_a_strength_of_zero_and_a_knob_that_is_never_read_are_refused() -> None:
    with pytest.raises(ValueError, match=r"strength=0\.0: expected a number above 0"):
        _objective(strength=0.0)
    with pytest.raises(ValueError, match=r"rl\.entropy_coef is set"):
        _objective(entropy_coef=0.1)


def test_a_run_by_recipe_trains_with_it(tmp_path: Path) -> None:
    recipe = EXAMPLE / "recipe.yaml"
    overrides = f"{TINY} job.output_root={tmp_path}"
    command = [
        "run",
        "workflows/grpo.py",
        "grpo",
        "--recipe",
        str(recipe),
        "--overrides",
        overrides,
    ]
    done = subprocess.run(
        [Path(sys.executable).with_name("pyflyte"), *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    summary = json.loads((tmp_path / "asymmetric_arithmetic" / "summary.json").read_text())
    config = resolve(str(recipe), overrides)
    expected = importlib.import_module("asymmetric").build_objective(
        config.rl, ModelContext(name_or_path="embedded", max_response_length=4), strength=0.5
    )
    assert summary["steps"] == 2
    assert summary["objective_identity"] == expected.identity_digest()
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        names = {name for (name,) in database.execute("SELECT DISTINCT key FROM metrics")}
    assert "train/asymmetric/negative_fraction" in names
