"""Preference pairs of 2-D points: of two points of a ring, the one further to the right."""

import numpy as np
import pyarrow as pa

from configs.dpo import Denoiser
from tasks.data.schemas import POINTS, require

NUM_CLUSTERS = 8
CLUSTER_SPREAD = 0.1
"""Standard deviation of a cluster; the ring has radius 1."""

PAIRS_SEED = 2


def ring_points(num_points: int, generator: np.random.Generator) -> np.ndarray:
    """Return points of a ring of eight clusters around the origin, float32 [N, 2].

    >>> points = ring_points(1000, np.random.default_rng(0))
    >>> bool(abs((points[:, 0] > 0).mean() - 0.5) < 0.05)
    True
    """
    turns = (generator.integers(NUM_CLUSTERS, size=num_points) + 0.5) / NUM_CLUSTERS
    centres = np.stack([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], 1)
    noise = generator.normal(scale=CLUSTER_SPREAD, size=(num_points, 2))
    return (centres + noise).astype(np.float32)


def point_pairs(denoiser: Denoiser, *, seed: int) -> tuple[pa.Table, pa.Table]:
    """Return the pairs to train on and the pairs to evaluate on."""
    num_pairs = denoiser.num_pairs + denoiser.num_held_out
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, PAIRS_SEED])))
    points = ring_points(2 * num_pairs, generator).reshape(num_pairs, 2, 2)
    right = points[..., 0].argmax(1)
    rows = np.arange(num_pairs)
    chosen, rejected = points[rows, right], points[rows, 1 - right]
    cut = denoiser.num_pairs
    return _table(chosen[:cut], rejected[:cut]), _table(chosen[cut:], rejected[cut:])


def _table(chosen: np.ndarray, rejected: np.ndarray) -> pa.Table:
    columns = [range(len(chosen)), list(chosen), list(rejected)]
    table = pa.table(
        {f.name: pa.array(c, f.type) for f, c in zip(POINTS, columns, strict=True)}, schema=POINTS
    )
    return require(table, POINTS, stage="prepare_points")
