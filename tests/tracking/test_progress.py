from hypothesis import given
from hypothesis import strategies as st

from tasks.tracking.progress import (
    StepProgress,
    format_duration,
    format_evaluation,
    format_step,
    remaining_s,
)


def line(**changes: object) -> str:
    values = {
        "step": 12,
        "num_steps": 200,
        "reward": 0.531,
        "accuracy": 0.612,
        "tokens_per_s": 9120.0,
        "seconds": {"rollout": 0.12, "train": 0.31},
        "eta_s": 80.0,
    }
    return format_step(StepProgress(**{**values, **changes}))


def test_a_line_tells_step_reward_accuracy_speed_times_and_eta() -> None:
    assert line() == (
        "step  12/200  reward  0.531  accuracy 0.612    9,120 tok/s"
        "  rollout 0.12s  train 0.31s  eta  1m20s"
    )


@given(
    step=st.integers(1, 200),
    reward=st.one_of(st.none(), st.floats(-9, 99), st.just(float("nan"))),
    accuracy=st.one_of(st.none(), st.floats(0, 1)),
    tokens_per_s=st.floats(0, 999_999),
    train_s=st.floats(0, 9_999),
    eta_s=st.one_of(st.none(), st.floats(0, 8_000_000)),
)
def test_lines_of_a_run_are_equally_wide(
    step: int,
    reward: float | None,
    accuracy: float | None,
    tokens_per_s: float,
    train_s: float,
    eta_s: float | None,
) -> None:
    changed = line(
        step=step,
        reward=reward,
        accuracy=accuracy,
        tokens_per_s=tokens_per_s,
        seconds={"rollout": 0.12, "train": train_s},
        eta_s=eta_s,
    )
    assert len(changed) == len(line())


def test_seconds_round_into_the_next_width() -> None:
    assert "train 9.99s" in line(seconds={"train": 9.994})
    assert "train 10.0s" in line(seconds={"train": 9.996})
    assert "train  100s" in line(seconds={"train": 99.96})


def test_an_evaluation_has_its_own_line() -> None:
    text = format_evaluation(5, 20, accuracy=0.9, num_prompts=1024, seconds=0.5)
    assert text == "eval  5/20  accuracy 0.900  1,024 held-out prompts  0.50s"


def test_the_estimate_is_the_pace_so_far() -> None:
    assert remaining_s(num_done=4, num_total=10, elapsed_s=2.0) == 3.0
    assert remaining_s(num_done=10, num_total=10, elapsed_s=2.0) == 0.0
    assert remaining_s(num_done=0, num_total=10, elapsed_s=2.0) is None


def test_durations_carry_when_they_round_up() -> None:
    assert format_duration(59.6) == "1m00s"
    assert format_duration(3599.6) == "1h00m"
