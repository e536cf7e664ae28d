"""An optimizer step does not depend on how its rows are cut, on one process or on two."""

import re

import pytest
import torch

from tests.trainer.children import computed
from tests.trainer.losses import RECIPES

TOLERANCES = {"fp32": 1e-5, "fp64": 1e-10}
SPLITS = [
    "whole",
    "each row alone",
    "rows shuffled",
    "masked rows inside and alone",
    "random 0",
    "random 1",
    "random 2",
]
SHARES = ["unequal rows", "one rank fully masked"]


def assert_same(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    scale = expected.abs().max()
    assert scale > 1e-3
    assert (got - expected).abs().max() <= tolerance * scale


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("precision", TOLERANCES)
def test_the_gradient_is_that_of_the_loss_over_all_rows(
    precision: str, recipe: str, split: str
) -> None:
    found = computed("step")["recipes"][precision, recipe]
    assert_same(found[split].flat, found["direct"], TOLERANCES[precision])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("precision", TOLERANCES)
def test_weight_and_metrics_are_the_same_for_every_split(precision: str, recipe: str) -> None:
    found = computed("step")["recipes"][precision, recipe]
    tolerance = TOLERANCES[precision]
    for split in SPLITS[1:]:
        assert found[split].weight == found["whole"].weight
        assert found[split].metrics == pytest.approx(
            found["whole"].metrics, rel=tolerance, abs=tolerance
        )


@pytest.mark.parametrize(("recipe", "weight"), [("token-mean", 22), ("seq-mean-token-sum", 8)])
def test_the_weight_counts_what_trains(recipe: str, weight: int) -> None:
    found = computed("step")["recipes"]["fp64", f"clipped {recipe}"]["each row alone"]
    assert found.weight == weight
    assert found.metrics["train/num_tokens"] == 22
    assert found.metrics["train/num_sequences"] == 8


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_take_the_step_of_one(recipe: str, share: str) -> None:
    alone = computed("step")["recipes"]["fp64", recipe]["whole"]
    for rank in computed("rank"):
        found = rank["gradients"][recipe, share]
        assert_same(found.flat, alone.flat, 1e-10)
        assert found.weight == alone.weight


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_report_the_metrics_of_one(recipe: str, share: str) -> None:
    alone = computed("step")["recipes"]["fp64", recipe]["whole"].metrics
    first, second = (rank["gradients"][recipe, share].metrics for rank in computed("rank"))
    assert first == second
    assert first == pytest.approx(alone, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("split", SPLITS)
def test_terms_of_different_units_are_each_divided_by_their_own_weight(split: str) -> None:
    found = computed("step")["custom"]["two terms"][split]
    assert_same(found.flat, computed("step")["two terms directly"], 1e-10)
    assert found.weight == 22


@pytest.mark.parametrize("share", SHARES)
def test_two_ranks_divide_each_term_by_its_weight_over_both(share: str) -> None:
    for rank in computed("rank"):
        found = rank["gradients"]["two terms", share]
        assert_same(found.flat, computed("step")["two terms directly"], 1e-10)


@pytest.mark.parametrize("split", ["each row alone", "rows shuffled", "random 0", "random 2"])
def test_a_mean_objective_is_weighted_by_its_sequences(split: str) -> None:
    found = computed("step")["custom"]["mean"]
    assert_same(found[split].flat, found["whole"].flat, 1e-10)
    assert found[split].weight == 8


def test_an_update_moves_the_weights_by_the_mean_gradient() -> None:
    done = computed("step")["updates"]["plain"]
    assert done["applied"]
    assert done["weight"] == 22
    assert done["grad_norm"] == pytest.approx(done["moved"].norm().item(), rel=1e-12)
    assert done["grad_norm"] > 0.1


def test_a_long_gradient_is_scaled_down_to_the_bound() -> None:
    plain, clipped = (computed("step")["updates"][name] for name in ("plain", "clipped"))
    expected = plain["moved"] * 0.01 / plain["grad_norm"]
    torch.testing.assert_close(clipped["moved"], expected, rtol=1e-5, atol=1e-12)


def test_the_reported_norm_is_that_before_clipping() -> None:
    updates = computed("step")["updates"]
    assert updates["clipped"]["grad_norm"] == updates["plain"]["grad_norm"]


def test_a_gradient_below_the_bound_is_left_alone() -> None:
    updates = computed("step")["updates"]
    assert torch.equal(updates["below the clip"]["moved"], updates["plain"]["moved"])


def test_two_ranks_clip_and_step_as_one() -> None:
    expected = computed("step")["updates"]["clipped"]["moved"]
    for rank in computed("rank"):
        torch.testing.assert_close(rank["moved"], expected, rtol=1e-10, atol=1e-14)


def test_no_training_token_skips_the_optimizer_step() -> None:
    done = computed("step")["updates"]["all masked"]
    assert not done["applied"]
    assert done["weight"] == 0
    assert done["grad_norm"] != done["grad_norm"]
    assert done["moved"].abs().max() == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("infinite", r"the loss is inf and its gradient's norm nan"),
        ("not a number", r"the loss is nan and its gradient's norm [0-9.]+"),
    ],
)
def test_what_is_not_finite_raises_and_leaves_the_weights_unchanged(
    name: str, message: str
) -> None:
    done = computed("step")["updates"][name]
    expected = f"{message}, expected finite numbers; the weights were not changed"
    assert re.match(expected, done["raised"])
    assert done["moved"].abs().max() == 0


@pytest.mark.parametrize("name", ["plain", "clipped", "all masked", "infinite", "not a number"])
def test_no_gradient_is_left_for_the_next_update(name: str) -> None:
    assert not computed("step")["updates"][name]["grads_left"]
