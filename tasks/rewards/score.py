"""ROLLOUTS to SCORED: one verdict per response."""

import importlib
import logging

import numpy as np
import pyarrow as pa

from configs.reward import Reward
from tasks.data.schemas import ROLLOUTS, SCORED, extend, lengths, require
from tasks.rewards.exact_match import NOT_AN_ANSWER, exact_match
from tasks.rewards.overlong import overlong_penalties
from tasks.rewards.reward import RewardFunction, Score

MAX_DETAIL_CHARACTERS = 500
ABORTED = Score(None, "error", detail="the engine aborted the response")

logger = logging.getLogger(__name__)


def score(table: pa.Table, reward: Reward, *, max_tokens: int | None = None) -> pa.Table:
    """Return the SCORED table of a ROLLOUTS one.

    A reward function that raises, and a response that the engine aborted, give a null reward with
    status `error`. For `exact_match` a response that ran into the token limit is `wrong-format`
    whatever it says, as it has not ended its answer; other functions judge its text.

    Args:
        table: ROLLOUTS, in any order.
        reward: the `reward` section.
        max_tokens: `rollout.max_tokens`; needed only with an overlong buffer.

    Raises:
        TypeError: `table` is not a ROLLOUTS table, or the function returned no `Score`.
        ValueError: the provider cannot be found, more than `max_error_fraction` of the responses
            could not be scored, or the overlong buffer does not fit `max_tokens`.
    """
    table = require(table, ROLLOUTS, stage="score")
    penalties = _penalties(table, reward, max_tokens)
    scores = _scores(table, reward.provider)
    _check_errors(scores, reward.max_error_fraction)
    values = np.array([np.nan if s.value is None else s.value for s in scores], dtype=np.float64)
    columns = {
        "reward": pa.array(values + penalties, pa.float32(), from_pandas=True),
        "reward_parts": _parts(scores, penalties if reward.overlong_buffer_tokens else None),
        "reward_status": [s.status for s in scores],
        "reward_detail": [s.detail[:MAX_DETAIL_CHARACTERS] for s in scores],
    }
    return extend(table, SCORED, columns, stage="score")


def load_provider(provider: str) -> RewardFunction:
    """Return the function that `reward.provider` names.

    Raises:
        ValueError: it is neither `exact_match` nor the import path of a callable.
    """
    if provider == "exact_match":
        return exact_match
    module, _, name = provider.partition(":")
    remedy = "expected exact_match or package.module:function"
    if not module or not name:
        raise ValueError(f"reward.provider={provider!r}: {remedy}")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward.provider={provider!r}: {error}; {remedy}") from error
    if callable(function):
        return function
    raise ValueError(f"reward.provider={provider!r}: {function!r} cannot be called; {remedy}")


def _scores(table: pa.Table, provider: str) -> list[Score]:
    function = load_provider(provider)
    unfinished = {"abort": ABORTED}
    if function is exact_match:
        unfinished["length"] = NOT_AN_ANSWER
    names = ("finish_reason", "response_text", "answer", "payload")
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return [unfinished.get(reason) or _judge(function, *texts) for reason, *texts in rows]


def _judge(function: RewardFunction, response_text: str, answer: str, payload: str) -> Score:
    try:
        verdict = function(response_text, answer, payload)
    except Exception as error:
        logger.debug("the reward function failed on %r", response_text, exc_info=True)
        return Score(None, "error", detail=f"{type(error).__name__}: {error}")
    if not isinstance(verdict, Score):
        raise TypeError(
            f"the reward function {function.__module__}:{function.__qualname__} returned"
            f" {type(verdict).__name__}, expected tasks.rewards.reward.Score"
        )
    return verdict


def _check_errors(scores: list[Score], max_fraction: float) -> None:
    failed = [s for s in scores if s.value is None]
    if len(failed) > max_fraction * len(scores):
        raise ValueError(
            f"{len(failed)} of {len(scores)} responses could not be scored, expected at most"
            f" reward.max_error_fraction={max_fraction}; the first:"
            f" {failed[0].detail[:MAX_DETAIL_CHARACTERS]}"
        )


def _penalties(table: pa.Table, reward: Reward, max_tokens: int | None) -> np.ndarray:
    if reward.overlong_buffer_tokens == 0:
        return np.zeros(len(table))
    if max_tokens is None:
        raise ValueError(
            f"reward.overlong_buffer_tokens={reward.overlong_buffer_tokens} needs the token limit;"
            " pass max_tokens=rollout.max_tokens"
        )
    return overlong_penalties(
        lengths(table.column("response_tokens")),
        max_tokens=max_tokens,
        buffer_tokens=reward.overlong_buffer_tokens,
        penalty=reward.overlong_penalty,
    )


def _parts(scores: list[Score], penalties: np.ndarray | None) -> pa.MapArray:
    parts = [s.parts for s in scores]
    if penalties is not None:
        parts = [{**p, "overlong": v} for p, v in zip(parts, penalties.tolist(), strict=True)]
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int32)
    keys = pa.array([name for p in parts for name in p], pa.string())
    items = pa.array([value for p in parts for value in p.values()], pa.float32())
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)
