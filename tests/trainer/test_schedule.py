import pytest

from configs.trainer import Optimizer
from tasks.trainer.schedule import learning_rate


def rates(num_steps: int, **knobs: object) -> list[float]:
    config = Optimizer(learning_rate=2.0, **knobs)
    return [learning_rate(step, num_steps, config) for step in range(num_steps)]


def test_a_warmup_rises_linearly_and_its_last_step_is_at_the_peak() -> None:
    assert rates(6, warmup_steps=4, lr_schedule="constant") == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_a_linear_schedule_falls_from_the_peak_towards_its_floor() -> None:
    expected = [2.0, 0.2 + 1.8 * 0.75, 0.2 + 1.8 * 0.5, 0.2 + 1.8 * 0.25]
    assert rates(4, warmup_steps=0, final_lr_fraction=0.1) == pytest.approx(expected)


def test_warmup_and_decay_meet_at_the_peak() -> None:
    expected = [1.0, 2.0, 2.0, 1.5, 1.0, 0.5]
    assert rates(6, warmup_steps=2, final_lr_fraction=0.0) == pytest.approx(expected)


def test_steps_beyond_the_planned_ones_stay_at_the_floor() -> None:
    config = Optimizer(learning_rate=2.0, warmup_steps=0, final_lr_fraction=0.25)
    assert learning_rate(10, 4, config) == 0.5
    assert learning_rate(4, 4, config) == 0.5


def test_a_warmup_longer_than_the_run_never_reaches_the_peak() -> None:
    assert rates(2, warmup_steps=4) == [0.5, 1.0]
