"""Texts in, scores out: which function judges, where it runs, and how several are summed."""

import math
from collections.abc import Mapping, Sequence

from configs.reward import Reward, title
from tasks.rewards.exact_match import NOT_AN_ANSWER, exact_match
from tasks.rewards.pool import resident_pool
from tasks.rewards.providers import NEEDS_NO_WORKER, Provider, checked, failure, load
from tasks.rewards.reward import Score
from tasks.rewards.seat import Job, Row


def judge(
    rows: Sequence[Row], reward: Reward, *, cut: Sequence[bool], max_failures: int
) -> list[Score]:
    """Return one score per row of response text, answer and payload.

    `cut` says which responses ran into the token limit: no answers to `exact_match`.

    With `reward.parts` it is the weighted sum of several; its parts hold their unweighted values.
    It can be computed only if every part could.

    Raises:
        TypeError: a function returned no `Score`.
        ValueError: a provider cannot be found, an argument is read by none, or more than
            `max_failures` rows could not be scored.
    """
    names = list(reward.parts) or [reward.provider]
    titles = _titles(names)
    local = {name: load(name, reward.arguments) for name in names if name in NEEDS_NO_WORKER}
    _check_arguments(names, local, reward)
    columns = [
        _called(local[name], rows, cut)
        if name in local
        else _pooled(name, rows, reward, max_failures)
        for name in names
    ]
    if not reward.parts:
        return columns[0]
    weights = dict(zip(titles, reward.parts.values(), strict=True))
    return [
        weighted_sum(dict(zip(titles, scores, strict=True)), weights)
        for scores in zip(*columns, strict=True)
    ]


def weighted_sum(scores: Mapping[str, Score], weights: Mapping[str, float]) -> Score:
    """Return the sum of named scores times weights.

    A part that could not be scored leaves the sum unscored, with the status of the first such
    part. A part that is `wrong-format` makes the sum that.

    >>> weighted_sum({"a": Score(1.0), "b": Score(0.5)}, {"a": 1.0, "b": 0.2}).value
    1.1
    """
    detail = "; ".join(f"{name}: {s.detail}" for name, s in scores.items() if s.detail)
    parts = {key: part for score in scores.values() for key, part in score.parts.items()}
    parts |= {name: s.value for name, s in scores.items() if s.value is not None}
    unscored = [score.status for score in scores.values() if score.value is None]
    if unscored:
        return Score(None, unscored[0], parts, detail)
    malformed = any(score.status != "ok" for score in scores.values())
    value = math.fsum(weights[name] * parts[name] for name in scores)
    return Score(value, "wrong-format" if malformed else "ok", parts, detail)


def too_many_failures(failed: Sequence[Score], num_rows: int, max_fraction: float) -> ValueError:
    """Return the error that stops a step."""
    return ValueError(
        f"{len(failed)} of {num_rows} responses could not be scored, expected at most"
        f" reward.max_error_fraction={max_fraction}; the first: {failed[0].detail[:500]}"
    )


def _called(provider: Provider, rows: Sequence[Row], cut: Sequence[bool]) -> list[Score]:
    if provider.function is not exact_match:
        return [_call(provider, row) for row in rows]
    pairs = zip(rows, cut, strict=True)
    return [NOT_AN_ANSWER if is_cut else exact_match(*row) for row, is_cut in pairs]


def _call(provider: Provider, row: Row) -> Score:
    try:
        verdict = provider.function(*row)
    except Exception as error:  # noqa: BLE001 - it costs this row
        return failure(error)
    return checked(verdict, provider.name)


def _pooled(name: str, rows: Sequence[Row], reward: Reward, max_failures: int) -> list[Score]:
    pool = resident_pool(reward.num_workers, reward.worker_memory_mib)
    job = Job(name, reward.arguments, reward.timeout_s)
    found = pool.score(job, rows, max_failures=max_failures)
    scores = [score for score in found if score is not None]
    failed = [score for score in scores if score.value is None]
    if len(failed) > max_failures:
        raise too_many_failures(failed, len(rows), reward.max_error_fraction)
    return scores


def _titles(names: Sequence[str]) -> list[str]:
    """Return the names of the parts, which must differ."""
    titles = [title(name) for name in names]
    if len(set(titles)) < len(titles):
        raise ValueError(
            f"reward.parts has two functions of one name among {list(names)}; rename one, as the"
            " metrics of the parts bear these names"
        )
    return titles


def _check_arguments(names: Sequence[str], local: Mapping[str, Provider], reward: Reward) -> None:
    """Load what runs in workers too, and refuse arguments that no function has a parameter for."""
    reads: set[str] = set().union(*(provider.reads for provider in local.values()))
    for name in names:
        if name not in local:
            pool = resident_pool(reward.num_workers, reward.worker_memory_mib)
            reads |= pool.load(Job(name, reward.arguments, reward.timeout_s)).reads
    unread = sorted(set(reward.arguments) - reads)
    if unread:
        raise ValueError(
            f"reward.arguments has {unread}, which no parameter of {list(names)} is named after;"
            " remove them, or correct their names"
        )
