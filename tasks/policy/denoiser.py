"""The small denoiser of 2-D points that needs no download: built and trained here.

Shapes: `N` points.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from configs.dpo import Denoiser
from tasks.data.points import ring_points

NUM_COORDINATES = 2
NUM_FREQUENCIES = 8
WARM_START_BATCH = 512
WARM_START_RATE = 2e-3
COSINE_OFFSET = 0.008
LEAST_SIGNAL = 0.05
"""The signal's factor never falls below this: sampling divides by it."""


class DenoiserConfig(PretrainedConfig):
    """Size of the network, its noise schedule and what it predicts."""

    model_type = "posttrain_denoiser"

    def __init__(
        self,
        hidden_size: int = 64,
        num_timesteps: int = 50,
        prediction: str = "noise",
        **more: object,
    ) -> None:
        self.hidden_size = hidden_size
        self.num_timesteps = num_timesteps
        self.prediction = prediction
        super().__init__(**more)


class DenoiserModel(PreTrainedModel):
    """Three layers over a noisy point and Fourier features of its timestep."""

    config_class = DenoiserConfig

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.layers = nn.Sequential(
            nn.Linear(NUM_COORDINATES + 2 * NUM_FREQUENCIES, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, NUM_COORDINATES),
        )
        self.post_init()

    def forward(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """Return the predicted noise or velocity [N, 2] of points [N, 2] at timesteps [N]."""
        time = (timesteps + 1).to(noisy.dtype)[:, None] / self.config.num_timesteps
        angles = time * math.pi * torch.arange(1, NUM_FREQUENCIES + 1, device=noisy.device)
        return self.layers(torch.cat([noisy, angles.sin(), angles.cos()], 1))


def noise_scales(num_timesteps: int) -> tuple[Tensor, Tensor]:
    """Return the factors of signal and noise at every timestep [N], least noisy first.

    The cosine schedule (arXiv:2102.09672); their squares add up to 1.

    >>> signal, spread = noise_scales(10)
    >>> bool((signal.diff() < 0).all()), torch.allclose(signal**2 + spread**2, torch.ones(10))
    (True, True)
    """
    time = torch.arange(1, num_timesteps + 1, dtype=torch.float64) / num_timesteps
    angle = (time + COSINE_OFFSET) / (1 + COSINE_OFFSET) * math.pi / 2
    signal = angle.cos().clamp(min=LEAST_SIGNAL)
    return signal.float(), (1 - signal.square()).sqrt().float()


def load_denoiser(directory: Path, *, dtype: str) -> DenoiserModel:
    """Return the denoiser of a directory, in evaluation mode."""
    return DenoiserModel.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()


def bootstrap_denoiser(section: Denoiser, *, seed: int, to: Path) -> float:
    """Train a denoiser on the ring, write it, and return its last training loss."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DenoiserModel(
            DenoiserConfig(section.hidden_size, section.num_timesteps, section.prediction)
        )
        loss = _warm_start(model, section.warm_start_steps, np.random.default_rng(seed))
    model.save_pretrained(to)
    return loss


def _warm_start(model: DenoiserModel, num_steps: int, generator: np.random.Generator) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARM_START_RATE, weight_decay=0.0)
    signal, spread = noise_scales(model.config.num_timesteps)
    loss = math.nan
    for step in range(num_steps):
        optimizer.param_groups[0]["lr"] = WARM_START_RATE * (1 - step / num_steps)
        clean = torch.from_numpy(ring_points(WARM_START_BATCH, generator))
        timesteps = torch.randint(model.config.num_timesteps, (WARM_START_BATCH,))
        noise = torch.randn(clean.shape)
        a, s = signal[timesteps][:, None], spread[timesteps][:, None]
        target = noise if model.config.prediction == "noise" else a * noise - s * clean
        error = (model(a * clean + s * noise, timesteps) - target).square().mean()
        error.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = error.item()
    return loss
