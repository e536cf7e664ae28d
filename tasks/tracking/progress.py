"""What the terminal shows: one line per training step, one per evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """What one line tells about a step."""

    step: int
    """The step that has just ended, counted from 1."""

    num_steps: int
    """Steps of the whole run."""

    reward: float | None
    """Mean reward of the step's scored samples; None: nothing could be scored."""

    accuracy: float | None
    """Held-out accuracy, 0 to 1; None: not evaluated at this step."""

    tokens_per_s: float
    """Response tokens per second of wall time."""

    seconds: Mapping[str, float]
    """Wall time of each stage, in the order in which it is shown."""

    eta_s: float | None
    """Estimate of the seconds left; None: not known yet."""

    measure: str = "reward"
    """What `reward` is called."""

    unit: str = "tok/s"
    """Unit of `tokens_per_s`, where it counts something else."""


def format_step(progress: StepProgress) -> str:
    """Return the line of a step; lines of one run align as long as their stages are the same.

    >>> print(format_step(StepProgress(
    ...     step=12, num_steps=200, reward=0.5312, accuracy=None, tokens_per_s=9120.4,
    ...     seconds={"train": 0.31}, eta_s=80)))
    step  12/200  reward  0.531  accuracy   -      9,120 tok/s  train 0.31s  eta  1m20s
    """
    parts = [
        _position("step", progress.step, progress.num_steps),
        f"{progress.measure} {_number(progress.reward)}",
        f"accuracy {_share(progress.accuracy)}",
        f"{progress.tokens_per_s:>7,.0f} {progress.unit}",
        *_stages(progress.seconds),
        f"eta {format_duration(progress.eta_s):>6}",
    ]
    return "  ".join(parts)


def format_evaluation(
    step: int,
    num_steps: int,
    *,
    accuracy: float,
    num_prompts: int,
    seconds: float,
    unit: str = "prompts",
) -> str:
    """Return the line of an evaluation after `step` steps; step 0 is the untrained policy.

    >>> format_evaluation(0, 200, accuracy=0.516, num_prompts=256, seconds=1.25)
    'eval   0/200  accuracy 0.516  256 held-out prompts  1.25s'
    """
    return (
        f"{_position('eval', step, num_steps)}  accuracy {_share(accuracy)}"
        f"  {num_prompts:,} held-out {unit}  {_seconds(seconds)}"
    )


def remaining_s(num_done: int, num_total: int, elapsed_s: float) -> float | None:
    """Return the seconds left if steps go on at the pace so far; None before the first step.

    >>> remaining_s(num_done=5, num_total=20, elapsed_s=10.0)
    30.0
    """
    if num_done < 1:
        return None
    return elapsed_s / num_done * (num_total - num_done)


def format_duration(seconds: float | None) -> str:
    """Return a duration in its two largest units; None gives `?`.

    >>> [format_duration(value) for value in (9.4, 80, 3720, 180_000, None)]
    ['9s', '1m20s', '1h02m', '2d02h', '?']
    """
    if seconds is None:
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02d}h"
    if hours:
        return f"{hours}h{minute:02d}m"
    return f"{minutes}m{second:02d}s" if minutes else f"{second}s"


def _position(kind: str, step: int, num_steps: int) -> str:
    return f"{kind} {step:>{len(str(num_steps))}}/{num_steps}"


def _number(value: float | None) -> str:
    return "   -  " if value is None else f"{value:>6.3f}"


def _share(value: float | None) -> str:
    return "  -  " if value is None else f"{value:5.3f}"


def _stages(seconds: Mapping[str, float]) -> list[str]:
    return [f"{stage} {_seconds(value)}" for stage, value in seconds.items()]


def _seconds(value: float) -> str:
    """Four characters and the unit, from 0.00 s to 9999 s."""
    for decimals, limit in ((2, 9.995), (1, 99.95)):
        if value < limit:
            return f"{value:.{decimals}f}s"
    return f"{value:>4.0f}s"
