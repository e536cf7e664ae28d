"""One process, two ranks and four take the same step, whoever holds the parameters."""

import pytest
import torch

from tests.trainer.children import computed
from tests.trainer.spread_runs import CASES, PICKED, RECIPES, SPREADS

ALONE = (1, "ddp")
FP64 = 1e-10
FP32 = 2e-5
"""Sums of float32 in another order, carried through two updates."""


def spread() -> dict:
    return computed("spread")


@pytest.mark.parametrize("rows", PICKED)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("over", SPREADS, ids=str)
def test_the_gradient_is_that_of_one_process(over: tuple, recipe: str, rows: str) -> None:
    got, expected = (spread()["gradients"][key][recipe, rows] for key in (over, ALONE))
    scale = expected.flat.abs().max()
    assert scale > 1e-3
    assert (got.flat - expected.flat).abs().max() <= FP64 * scale
    assert got.weight == expected.weight > 0
    assert got.metrics == pytest.approx(expected.metrics, rel=FP64, abs=FP64)


@pytest.mark.parametrize("over", SPREADS, ids=str)
def test_the_gradient_is_clipped_by_its_norm_over_all_ranks(over: tuple) -> None:
    got, expected = (spread()["updates"][key] for key in (over, ALONE))
    assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=FP64)
    torch.testing.assert_close(got["clipped"], expected["clipped"], rtol=FP64, atol=1e-14)
    assert expected["clipped"].norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("over", SPREADS, ids=str)
def test_a_gradient_that_is_not_finite_on_one_rank_moves_the_weights_of_none(over: tuple) -> None:
    done = spread()["updates"][over]
    assert done["infinite raised"] == over[0]
    assert done["clipped raised"] == 0
    assert done["infinite"].abs().max() == 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("over", SPREADS, ids=str)
def test_a_step_reports_the_metrics_of_one_process(over: tuple, case: str) -> None:
    got, expected = (dict(spread()["steps"][key][case][0]) for key in (over, ALONE))
    for cut in ("train/num_chunks", "train/padding_fraction"):
        assert got.pop(cut) >= 0
        expected.pop(cut)
    assert got == pytest.approx(expected, rel=FP32, abs=FP32, nan_ok=True)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("over", SPREADS, ids=str)
def test_a_step_writes_the_weights_and_moments_of_one_process(over: tuple, case: str) -> None:
    assert_same_tensors(*(spread()["steps"][key][case][1] for key in (over, ALONE)))


def test_a_checkpoint_continues_under_another_strategy_and_on_one_process() -> None:
    assert_same_tensors(spread()["mixed"], spread()["alone"])


def assert_same_tensors(got: dict, expected: dict) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        difference = (got[name] - value).abs().max()
        assert difference <= FP32 * value.abs().max(), name


def test_the_reference_pulls_and_the_updates_move() -> None:
    metrics = spread()["steps"][2, "fsdp2"]["clipped with KL"][0]
    assert metrics["train/kl/reference"] > 1e-4
    assert metrics["train/num_updates"] == 2


def test_under_fsdp2_a_rank_holds_a_part_of_every_parameter_and_moment() -> None:
    held = spread()["held under fsdp2"]
    assert held["sharded"]
    assert held["kinds"] == held["moments"] == {"DTensor"}
    assert held["share"] == pytest.approx(0.5, abs=0.01)


def test_under_ddp_a_rank_holds_every_parameter() -> None:
    held = spread()["held under ddp"]
    assert not held["sharded"]
    assert held["share"] == 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_steps_of_live_ranks_and_of_ranks_that_load_from_disk_give_the_same_bits(
    strategy: str,
) -> None:
    live, cold = (spread()[name][strategy] for name in ("live", "cold"))
    assert [t.policy.key for t in live] == [t.policy.key for t in cold]
    assert live[0].policy.digest != live[1].policy.digest


def test_ranks_keep_what_they_have_just_written() -> None:
    written = spread()["live"]["fsdp2"][-1].policy
    assert spread()["held under fsdp2"]["key"] == f"{written.key}:fsdp2:True"
