import numpy as np

from configs.dpo import Denoiser
from tasks.data.points import point_pairs
from tasks.data.schemas import POINTS

SMALL = Denoiser(num_pairs=200, num_held_out=50)


def test_the_chosen_point_is_the_one_further_to_the_right() -> None:
    train, held_out = point_pairs(SMALL, seed=0)
    assert (len(train), len(held_out)) == (200, 50)
    for table in (train, held_out):
        assert table.schema == POINTS
        chosen, rejected = (
            np.array(table[f"{side}_point"].to_pylist()) for side in ("chosen", "rejected")
        )
        assert (chosen[:, 0] > rejected[:, 0]).all()


def test_points_lie_on_a_ring_on_both_sides_of_0() -> None:
    train, _ = point_pairs(SMALL, seed=0)
    points = np.array(train["chosen_point"].to_pylist() + train["rejected_point"].to_pylist())
    radius = np.linalg.norm(points, axis=1)
    assert abs(radius.mean() - 1) < 0.05
    assert 0.4 < (points[:, 0] > 0).mean() < 0.6


def test_pairs_are_a_function_of_the_seed() -> None:
    first, again, other = (point_pairs(SMALL, seed=seed)[0] for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
