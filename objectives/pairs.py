"""What a preference objective is given: a chunk of pairs, as text or as points to denoise.

Shapes: `P` pairs, `T` response positions, `...` the shape of one point or image.
"""

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from objectives.batch import TrajectoryBatch
from objectives.primitives.shapes import require_shape


@dataclass(frozen=True, kw_only=True)
class PreferenceBatch:
    """A chunk of (chosen, rejected) completions, one row per pair.

    Attributes:
        pair_ids: [P] int64, unique within a batch.
        responses: 2 P rows: the chosen completions of all pairs, then the rejected ones.
        reference_chosen: [P] log-probability of the chosen completion under the reference, in nats.
        reference_rejected: [P] of the rejected one.

    Raises:
        ValueError: naming the tensor whose shape disagrees with `pair_ids`.
    """

    pair_ids: Tensor
    responses: TrajectoryBatch
    reference_chosen: Tensor
    reference_rejected: Tensor

    def __post_init__(self) -> None:
        require_shape("pair_ids", self.pair_ids, (None,))
        pairs = self.pair_ids.shape[0]
        require_shape("responses.row_ids", self.responses.row_ids, (2 * pairs,))
        require_shape("reference_chosen", self.reference_chosen, (pairs,))
        require_shape("reference_rejected", self.reference_rejected, (pairs,))

    @property
    def num_sequences(self) -> int:
        """Number of pairs, the unit of the loss."""
        return self.pair_ids.shape[0]

    @property
    def trains(self) -> Tensor:
        """[P] booleans, true where both completions have a token that trains."""
        chosen, rejected = self.responses.token_counts.chunk(2)
        return (chosen > 0) & (rejected > 0)

    def take(self, rows: Tensor) -> "PreferenceBatch":
        """Return the batch of the given pairs (int64 indices), at the same padded widths."""
        both = torch.cat([rows, rows + self.num_sequences])
        return PreferenceBatch(
            pair_ids=self.pair_ids[rows],
            responses=self.responses.take(both),
            reference_chosen=self.reference_chosen[rows],
            reference_rejected=self.reference_rejected[rows],
        )


@dataclass(frozen=True, kw_only=True)
class DiffusionBatch:
    """A chunk of (chosen, rejected) points, each pair with one noise and one timestep for both.

    A point is noised to `signal * point + spread * noise`.

    Attributes:
        pair_ids: [P] int64, unique within a batch.
        chosen: [P, ...] clean preferred points.
        rejected: [P, ...] clean rejected points.
        noise: [P, ...] standard normal.
        timesteps: [P] int64, what the denoiser is told.
        signal: [P] factor of the clean point at that timestep.
        spread: [P] factor of the noise.

    Raises:
        ValueError: naming the tensor whose shape disagrees with `chosen`.
    """

    pair_ids: Tensor
    chosen: Tensor
    rejected: Tensor
    noise: Tensor
    timesteps: Tensor
    signal: Tensor
    spread: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.chosen.shape)
        require_shape("rejected", self.rejected, shape)
        require_shape("noise", self.noise, shape)
        for name in ("pair_ids", "timesteps", "signal", "spread"):
            require_shape(name, getattr(self, name), shape[:1])

    @property
    def num_sequences(self) -> int:
        """Number of pairs, the unit of the loss."""
        return self.pair_ids.shape[0]

    def take(self, rows: Tensor) -> "DiffusionBatch":
        """Return the batch of the given pairs (int64 indices)."""
        tensors: dict[str, Tensor] = {
            field.name: getattr(self, field.name) for field in fields(self)
        }
        return replace(self, **{name: value[rows] for name, value in tensors.items()})


class Denoiser(Protocol):
    """What a diffusion objective may ask of a network: any module that predicts."""

    def predict(self, noisy: Tensor, timesteps: Tensor) -> Tensor:
        """Return the noise or the velocity in `noisy` [N, ...] at `timesteps` [N]."""
        ...
