import numpy as np
import torch

from configs.dpo import Denoiser
from tasks.data.points import point_pairs
from tasks.policy.denoiser import noise_scales
from tasks.trainer.points import PointRows, read_point_rows
from tests.trainer.builders import CPU

TRAIN, _ = point_pairs(Denoiser(num_pairs=40, num_held_out=1), seed=0)


def rows(seed: int = 0) -> PointRows:
    return read_point_rows(TRAIN, seed=seed, num_timesteps=10)


def test_noise_and_timestep_depend_on_the_seed_and_the_pair_and_not_on_the_chunk() -> None:
    whole = rows().collate(np.arange(40), CPU)
    some = rows().collate(np.array([31, 4]), CPU)
    assert torch.equal(some.noise, whole.noise[[31, 4]])
    assert torch.equal(some.timesteps, whole.timesteps[[31, 4]])
    assert not torch.equal(rows(seed=1).collate(np.arange(40), CPU).noise, whole.noise)


def test_the_same_points_of_another_epoch_get_another_noise() -> None:
    first = rows()
    later = PointRows(**{**vars(first), "ids": first.ids + 40})
    assert not torch.equal(
        first.collate(np.arange(40), CPU).noise, later.collate(np.arange(40), CPU).noise
    )


def test_every_timestep_occurs_with_its_own_factors() -> None:
    batch = rows().collate(np.arange(40), CPU)
    signal, spread = noise_scales(10)
    assert set(batch.timesteps.tolist()) == set(range(10))
    assert torch.equal(batch.signal, signal[batch.timesteps])
    assert torch.equal(batch.spread, spread[batch.timesteps])


def test_chunks_hold_every_pair_once_within_the_bound() -> None:
    chunks = rows().chunks(np.arange(40), max_tokens=14, device=CPU)
    assert [chunk.num_sequences for chunk in chunks] == [7, 7, 7, 7, 7, 5]
    assert sorted(int(i) for c in chunks for i in c.pair_ids) == list(range(40))
