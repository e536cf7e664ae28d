"""The embedded denoiser: it learns the ring, is kept, and samples what it has learnt."""

from pathlib import Path

import pytest
import torch

from configs.dpo import Denoiser
from tasks.policy.denoiser import load_denoiser, noise_scales
from tasks.policy.files import PolicyFiles
from tasks.policy.start import initial_denoiser
from tasks.sampling.points import preferred_share, sample_points

SMALL = Denoiser(hidden_size=32, warm_start_steps=400)


@pytest.fixture(scope="module", params=["noise", "velocity"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PolicyFiles:
    section = SMALL.model_copy(update={"prediction": request.param})
    return initial_denoiser(section, seed=0, output_root=tmp_path_factory.mktemp("denoiser"))


def test_sampled_points_lie_about_the_ring_and_on_both_sides(built: PolicyFiles) -> None:
    model = load_denoiser(built.weights, dtype="float32")
    points = sample_points(model, num_points=400)
    assert 0.8 < points.norm(dim=1).median() < 1.4
    assert 0.35 < preferred_share(built, num_points=400) < 0.65


def test_sampling_is_a_function_of_its_seed(built: PolicyFiles) -> None:
    model = load_denoiser(built.weights, dtype="float32")
    first, again = (sample_points(model, num_points=8) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, sample_points(model, num_points=8, seed=5))


def test_a_denoiser_is_built_once_and_anew_for_another_shape(tmp_path: Path) -> None:
    section = Denoiser(hidden_size=4, warm_start_steps=1)
    first, again = (initial_denoiser(section, seed=0, output_root=tmp_path) for _ in range(2))
    assert first == again
    other = section.model_copy(update={"warm_start_steps": 2})
    assert initial_denoiser(other, seed=0, output_root=tmp_path).digest != first.digest
    more_pairs = section.model_copy(update={"num_pairs": 5})
    assert initial_denoiser(more_pairs, seed=0, output_root=tmp_path) == first


def test_noise_grows_and_leaves_a_trace_of_the_signal_to_divide_by() -> None:
    signal, spread = noise_scales(50)
    assert signal[0] > 0.99
    assert signal[-1] == pytest.approx(0.05)
    assert bool((spread.diff() >= 0).all())
