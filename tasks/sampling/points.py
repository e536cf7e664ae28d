"""Points sampled from a denoiser, and how many of them have the preferred property."""

import torch
from torch import Tensor

from tasks.policy import resident
from tasks.policy.denoiser import NUM_COORDINATES, DenoiserModel, load_denoiser, noise_scales
from tasks.policy.files import PolicyFiles

SAMPLE_SEED = 4


def preferred_share(files: PolicyFiles, *, num_points: int) -> float:
    """Return the share of sampled points to the right of 0; the same noise for every policy."""
    model = resident.borrow(
        "policy", files.digest, lambda: load_denoiser(files.weights, dtype="float32")
    )
    points = sample_points(model, num_points=num_points)
    return (points[:, 0] > 0).double().mean().item()


@torch.no_grad()
def sample_points(model: DenoiserModel, *, num_points: int, seed: int = SAMPLE_SEED) -> Tensor:
    """Return points [N, 2] by deterministic sampling (DDIM, arXiv:2010.02502) from seeded noise."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(num_points, NUM_COORDINATES, generator=generator).to(model.device)
    signal, spread = (x.to(model.device) for x in noise_scales(model.config.num_timesteps))
    for step in reversed(range(model.config.num_timesteps)):
        predicted = model(points, torch.full((num_points,), step, device=model.device))
        clean, noise = _split(points, predicted, signal[step], spread[step], model)
        points = signal[step - 1] * clean + spread[step - 1] * noise if step else clean
    return points.cpu()


def _split(
    noisy: Tensor, predicted: Tensor, signal: Tensor, spread: Tensor, model: DenoiserModel
) -> tuple[Tensor, Tensor]:
    """Return the clean points and the noise that a prediction implies, [N, 2] each."""
    if model.config.prediction == "velocity":
        return signal * noisy - spread * predicted, spread * noisy + signal * predicted
    return (noisy - spread * predicted) / signal, predicted
