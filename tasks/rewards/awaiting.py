"""Reward functions that are coroutines. A module of its own, as few workers need an event loop."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tasks.rewards.providers import Provider, checked, failure
from tasks.rewards.reward import Score

Result = TypeVar("Result")


@functools.cache
def _runner() -> asyncio.Runner:
    # One loop for the life of the worker: a client that a function keeps is tied to its loop.
    return asyncio.Runner()


def awaited(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end and return what it returns."""
    return _runner().run(coroutine)


def score_side_by_side(
    provider: Provider,
    rows: Sequence[Sequence[str]],
    timeout_s: float,
    tell: Callable[[int, Score], None],
) -> None:
    """Score rows at the same time, each within `timeout_s`, and tell each score when it is there.

    Raises:
        TypeError: the function does not return scores.
    """

    async def judge_and_tell(index: int, row: Sequence[str]) -> None:
        tell(index, await _judge(provider, row, timeout_s))

    async def judge_all() -> None:
        await asyncio.gather(*(judge_and_tell(index, row) for index, row in enumerate(rows)))

    awaited(judge_all())


async def _judge(provider: Provider, row: Sequence[str], timeout_s: float) -> Score:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            verdict = await provider.function(*row)
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises
        if limit.expired():
            return Score(None, "timeout", detail=f"longer than reward.timeout_s={timeout_s:g}")
        return failure(error)
    return checked(verdict, provider.name)
