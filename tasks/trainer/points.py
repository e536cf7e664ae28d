"""Preference pairs of points in memory, and a chunk of them as tensors, noise and all."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from objectives.pairs import DiffusionBatch
from tasks.policy.denoiser import DenoiserModel, load_denoiser, noise_scales
from tasks.trainer.capabilities import forward_noise
from tasks.trainer.session import Network
from tasks.trainer.strategy import unwrapped

NOISE_SEED = 3
"""Second part of the seed of a pair's noise; the first is `job.seed`, the last its id."""


@dataclass(frozen=True, kw_only=True)
class PointRows:
    """Pairs of points that train.

    Attributes:
        ids: pair ids [N]; a pair of another epoch has another id, and so another noise.
        chosen: [N, 2].
        rejected: [N, 2].
        seed: of all noise.
        num_timesteps: of the noise schedule.
    """

    ids: npt.NDArray[np.int64]
    chosen: npt.NDArray[np.float32]
    rejected: npt.NDArray[np.float32]
    seed: int
    num_timesteps: int

    def __len__(self) -> int:
        return len(self.ids)

    def chunks(
        self, part: npt.NDArray[np.int64], *, max_tokens: int, device: torch.device
    ) -> list[DiffusionBatch]:
        """Lay some pairs out in chunks of at most so many points, two of each pair."""
        return [self.collate(chunk, device) for chunk in self.plan(part, max_tokens=max_tokens)]

    @property
    def widths(self) -> npt.NDArray[np.int64]:
        """Points of each pair [N, 2]."""
        return np.ones((len(self), 2), dtype=np.int64)

    def plan(self, part: npt.NDArray[np.int64], *, max_tokens: int) -> list[npt.NDArray[np.int64]]:
        """Return the numbers of the pairs of each chunk."""
        size = max(max_tokens // 2, 1)
        return [part[first : first + size] for first in range(0, len(part), size)]

    def collate(self, chunk: npt.NDArray[np.int64], device: torch.device) -> DiffusionBatch:
        """Lay pairs out as tensors; noise and timestep of a pair depend on its id alone."""
        drawn = [self._draw(int(pair)) for pair in self.ids[chunk]]
        timesteps = torch.tensor([timestep for timestep, _ in drawn])
        signal, spread = noise_scales(self.num_timesteps)
        return DiffusionBatch(
            pair_ids=torch.from_numpy(self.ids[chunk]).to(device),
            chosen=torch.from_numpy(self.chosen[chunk]).to(device),
            rejected=torch.from_numpy(self.rejected[chunk]).to(device),
            noise=torch.from_numpy(np.stack([noise for _, noise in drawn])).to(device),
            timesteps=timesteps.to(device),
            signal=signal[timesteps].to(device),
            spread=spread[timesteps].to(device),
        )

    def _draw(self, pair: int) -> tuple[int, npt.NDArray[np.float32]]:
        seed = np.random.SeedSequence([self.seed, NOISE_SEED, pair])
        generator = np.random.Generator(np.random.PCG64(seed))
        timestep = int(generator.integers(self.num_timesteps))
        return timestep, generator.standard_normal(self.chosen.shape[1], dtype=np.float32)


def read_point_rows(table: pa.Table, *, seed: int, num_timesteps: int) -> PointRows:
    """Take the points out of a table of pairs."""
    return PointRows(
        ids=table["pair_id"].to_numpy().copy(),
        chosen=np.array(table["chosen_point"].to_pylist(), dtype=np.float32),
        rejected=np.array(table["rejected_point"].to_pylist(), dtype=np.float32),
        seed=seed,
        num_timesteps=num_timesteps,
    )


class DenoiserModule(nn.Module):
    """Keeps a denoiser where a session looks for it."""

    def __init__(self, model: DenoiserModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """Return the model's prediction."""
        return self.model(noisy, timesteps)


class DenoiserAdapter:
    """Calls a denoiser, wrapped or not, the way a diffusion objective does."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def forward_noise(self) -> float:
        """Largest relative difference of two gradients of the model that rounding explains."""
        return forward_noise(unwrapped(self.module).model)

    def predict(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """Return the predicted noise or velocity of points [N, 2] at timesteps [N]."""
        return self.module(noisy, timesteps)


DENOISER = Network(load_denoiser, DenoiserModule, DenoiserAdapter)
