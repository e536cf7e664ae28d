"""ROLLOUTS to SCORED: one verdict per response."""

import math

import numpy as np
import pyarrow as pa

from configs.reward import Reward
from tasks.data.schemas import ROLLOUTS, SCORED, extend, lengths, require
from tasks.rewards.overlong import overlong_penalties
from tasks.rewards.reward import Score
from tasks.rewards.verdicts import judge, too_many_failures

MAX_DETAIL_CHARACTERS = 500
ABORTED = Score(None, "error", detail="the engine aborted the response")


def score(table: pa.Table, reward: Reward, *, max_tokens: int | None = None) -> pa.Table:
    """Return the SCORED table of a ROLLOUTS one.

    A reward function that raises or whose process dies, and a response that the engine aborted,
    give a null reward with status `error`; one that takes longer than `reward.timeout_s` gives
    `timeout`. For `exact_match` a response that ran into the token limit is `wrong-format`
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
    scores = _scores(table, reward)
    _check_errors(scores, len(scores), reward.max_error_fraction)
    values = np.array([np.nan if s.value is None else s.value for s in scores], dtype=np.float64)
    columns = {
        "reward": pa.array(values + penalties, pa.float32(), from_pandas=True),
        "reward_parts": _parts(scores, penalties if reward.overlong_buffer_tokens else None),
        "reward_status": [s.status for s in scores],
        "reward_detail": [s.detail[:MAX_DETAIL_CHARACTERS] for s in scores],
    }
    return extend(table, SCORED, columns, stage="score")


def _scores(table: pa.Table, reward: Reward) -> list[Score]:
    names = ("response_text", "answer", "payload")
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    reasons = table.column("finish_reason").to_pylist()
    whole = [(row, reason) for row, reason in zip(rows, reasons, strict=True) if reason != "abort"]
    num_aborted = len(reasons) - len(whole)
    _check_errors([ABORTED] * num_aborted, len(reasons), reward.max_error_fraction)
    scores = iter(
        judge(
            [row for row, _ in whole],
            reward,
            cut=[reason == "length" for _, reason in whole],
            max_failures=math.floor(reward.max_error_fraction * len(reasons)) - num_aborted,
        )
    )
    return [ABORTED if reason == "abort" else next(scores) for reason in reasons]


def _check_errors(scores: list[Score], num_rows: int, max_fraction: float) -> None:
    failed = [s for s in scores if s.value is None]
    if len(failed) > max_fraction * num_rows:
        raise too_many_failures(failed, num_rows, max_fraction)


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
