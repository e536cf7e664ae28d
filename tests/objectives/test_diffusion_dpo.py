"""Diffusion DPO over pairs of points, with any network that predicts noise or velocity."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from configs.dpo import Dpo
from objectives.diffusion_dpo import build_objective
from objectives.pairs import DiffusionBatch
from tests.objectives.builders import step_gradient
from tests.objectives.pair_builders import Linear, make_points
from tests.objectives.test_split_invariance import PARTITIONS

BETA = 3.0


def errors(net: Linear, batch: DiffusionBatch, prediction: str) -> tuple[np.ndarray, np.ndarray]:
    """Denoising errors of chosen and rejected points, point by point and by the definition."""
    theta = net.theta.detach().numpy()
    found = []
    for side in (batch.chosen, batch.rejected):
        rows = []
        for x, eps, t, a, s in zip(
            side, batch.noise, batch.timesteps, batch.signal, batch.spread, strict=True
        ):
            noisy = (a * x + s * eps).numpy()
            target = (eps if prediction == "noise" else a * eps - s * x).numpy()
            output = np.concatenate([noisy, [float(t)]]) @ theta
            rows.append(((output - target) ** 2).sum() / 2)
        found.append(np.array(rows))
    return found[0], found[1]


@pytest.mark.parametrize("prediction", ["noise", "velocity"])
def test_the_loss_is_that_of_the_formula(prediction: str) -> None:
    net, reference, batch = Linear(0), Linear(1), make_points()
    (won, lost), (won_ref, lost_ref) = (errors(n, batch, prediction) for n in (net, reference))
    inside = -BETA / 2 * ((won - won_ref) - (lost - lost_ref))
    expected = np.log1p(np.exp(-inside)).mean()
    objective = build_objective(Dpo(beta=BETA), prediction=prediction, reference=reference)
    loss, metrics = objective.fn(net, batch)
    assert loss.item() == pytest.approx(expected)
    assert metrics["margin"].value == pytest.approx(inside.mean())
    assert metrics["accuracy"].value == pytest.approx((inside > 0).mean())
    assert metrics["error_chosen"].value == pytest.approx(won.mean())
    assert metrics["error_rejected"].value == pytest.approx(lost.mean())


def test_a_network_that_is_its_reference_has_loss_ln_2_and_margin_0() -> None:
    objective = build_objective(Dpo(beta=BETA), prediction="noise", reference=Linear(0))
    loss, metrics = objective.fn(Linear(0), make_points())
    assert loss.item() == pytest.approx(math.log(2), abs=1e-12)
    assert metrics["margin"].value == 0
    assert metrics["accuracy"].value == 0.5


def test_a_step_against_the_gradient_favours_the_chosen_points_and_leaves_the_reference() -> None:
    net, reference, batch = Linear(0), Linear(0), make_points(64)
    objective = build_objective(Dpo(beta=BETA), prediction="noise", reference=reference)
    gradient, _ = step_gradient(objective, net, [batch])
    assert reference.theta.grad is None
    with torch.no_grad():
        net.theta -= 1e-3 * gradient
    _, metrics = objective.fn(net, batch)
    assert metrics["margin"].value > 0


def test_equal_points_have_no_gradient() -> None:
    batch = make_points()
    equal = replace(batch, rejected=batch.chosen)
    objective = build_objective(Dpo(beta=BETA), prediction="velocity", reference=Linear(1))
    gradient, _ = step_gradient(objective, Linear(0), [equal])
    assert gradient.abs().max() < 1e-15


def test_both_members_of_a_pair_and_both_networks_see_one_noise_and_one_timestep() -> None:
    seen = []

    class Watching(Linear):
        def predict(self, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
            seen.append((noisy.clone(), timesteps.clone()))
            return super().predict(noisy, timesteps)

    batch = make_points()
    objective = build_objective(Dpo(), prediction="noise", reference=Watching(1))
    objective.fn(Watching(0), batch)
    (ours, times), (theirs, times_ref) = seen
    assert torch.equal(ours, theirs)
    assert torch.equal(times, times_ref)
    assert torch.equal(*times.chunk(2))
    first, second = ours.chunk(2)
    scale = batch.signal[:, None]
    torch.testing.assert_close(first - scale * batch.chosen, second - scale * batch.rejected)


@pytest.mark.parametrize(
    "dpo", [Dpo(beta=BETA), Dpo(beta=BETA, label_smoothing=0.2), Dpo(beta=BETA, kind="hinge")]
)
def test_gradient_and_metrics_are_the_same_for_every_chunking(dpo: Dpo) -> None:
    net, batch = Linear(0), make_points()
    objective = build_objective(dpo, prediction="noise", reference=Linear(1))
    whole, metrics = step_gradient(objective, net, [batch])
    assert whole.abs().max() > 1e-3
    for parts in PARTITIONS:
        chunks = [batch.take(torch.tensor(part)) for part in parts]
        gradient, merged = step_gradient(objective, net, chunks)
        torch.testing.assert_close(gradient, whole, rtol=1e-10, atol=1e-13)
        expected = {name: metric.value for name, metric in metrics.items()}
        assert {n: m.value for n, m in merged.items()} == pytest.approx(expected), parts


def test_images_are_averaged_over_all_their_pixels() -> None:
    images = torch.ones(2, 3, 4, 4, dtype=torch.float64)
    points = make_points(2)
    batch = DiffusionBatch(
        pair_ids=points.pair_ids,
        chosen=images,
        rejected=-images,
        noise=0 * images,
        timesteps=points.timesteps,
        signal=points.signal,
        spread=points.spread,
    )

    class Constant:
        def predict(self, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
            return torch.full_like(noisy, 2.0)

    objective = build_objective(Dpo(), prediction="noise", reference=Constant())
    _, metrics = objective.fn(Constant(), batch)
    assert metrics["error_chosen"].value == 4.0


def test_without_a_reference_there_is_an_identity_and_no_loss() -> None:
    objective = build_objective(Dpo(), prediction="noise")
    velocity = build_objective(Dpo(), prediction="velocity")
    assert objective.identity_digest() != velocity.identity_digest()
    with pytest.raises(ValueError, match="needs a reference"):
        objective.fn(Linear(), make_points())
