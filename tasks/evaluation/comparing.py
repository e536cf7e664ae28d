"""Two evaluations of the same prompts, compared prompt by prompt."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.evaluation.estimators import normal_interval
from tasks.evaluation.measuring import accuracies, passes, rewards
from tasks.evaluation.paired import mcnemar, sign_flip
from tasks.evaluation.record import Kept

IDENTITY = ("prompt_id", "source", "prompt_text", "answer")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How two policies differ in one measure.

    Attributes:
        measure: `accuracy`, `pass@k` or `reward`.
        first: mean of the first, over the prompts that count.
        second: the same of the second.
        low: lower end of the 95 % interval of second - first.
        high: its upper end.
        p_value: two-sided, of the two being equally good.
        test: what it was computed by.
        num_prompts: prompts for which both have a value; others do not count.
    """

    measure: str
    first: float
    second: float
    low: float
    high: float
    p_value: float
    test: str
    num_prompts: int


def compare(first: Kept, second: Kept) -> list[Difference]:
    """Return the differences of two evaluations: accuracy, every common pass@k, reward.

    Raises:
        ValueError: they are of different prompts, or judge responses differently; every
            difference is named.
    """
    problems = [*_of_prompts(first, second), *_of_rewards(first, second)]
    if problems:
        raise ValueError(
            f"{first.directory} and {second.directory} cannot be compared:\n"
            + "\n".join(f"  {line}" for line in problems)
            + "\nevaluate both with the same data, reward and evaluation settings"
        )
    ours, theirs = first.outcomes, _in_order_of(first.outcomes, second.outcomes)
    common = set(first.record.pass_at) & set(second.record.pass_at)
    pairs = {
        "accuracy": (accuracies(ours), accuracies(theirs)),
        **{f"pass@{k}": (passes(ours, k), passes(theirs, k)) for k in sorted(common - {1})},
        "reward": (rewards(ours), rewards(theirs)),
    }
    return [_difference(measure, *values) for measure, values in pairs.items()]


def different_sampling(first: Kept, second: Kept) -> list[str]:
    """Return one line for each setting of sampling in which two evaluations differ."""
    return _differing(first.record.sampling, second.record.sampling)


def _of_prompts(first: Kept, second: Kept) -> Iterator[str]:
    """Yield what differs between the prompts of two evaluations."""
    rows = [
        {row["prompt_id"]: row for row in kept.outcomes.select(IDENTITY).to_pylist()}
        for kept in (first, second)
    ]
    for kept, named in zip((first, second), rows, strict=True):
        if len(named) < len(kept.outcomes):
            yield f"{kept.directory} has {len(kept.outcomes) - len(named)} prompt ids twice"
    a, b = rows
    for kept, lacking in ((first, b.keys() - a.keys()), (second, a.keys() - b.keys())):
        if lacking:
            yield f"{kept.directory} lacks {len(lacking)} prompts, such as {min(lacking)!r}"
    shared = [name for name in a if name in b and a[name] != b[name]]
    if shared:
        name = shared[0]
        fields = [field for field in IDENTITY if a[name][field] != b[name][field]]
        yield f"{len(shared)} prompts are not the same, such as {name!r} in its {', '.join(fields)}"
    if a == b and first.record.prompts != second.record.prompts:
        yield (
            f"the fingerprints of their prompts are {first.record.prompts[:12]} and "
            f"{second.record.prompts[:12]}: their payloads differ"
        )


def _of_rewards(first: Kept, second: Kept) -> list[str]:
    """Return what differs between the rewards of two evaluations."""
    return [f"reward: {line}" for line in _differing(first.record.reward, second.record.reward)]


def _differing(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    return [
        f"{key} is {first.get(key)!r} and {second.get(key)!r}"
        for key in sorted(first.keys() | second.keys())
        if first.get(key) != second.get(key)
    ]


def _in_order_of(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    place = {name: row for row, name in enumerate(theirs["prompt_id"].to_pylist())}
    return theirs.take([place[name] for name in ours["prompt_id"].to_pylist()])


def _difference(measure: str, first: np.ndarray, second: np.ndarray) -> Difference:
    both = ~(np.isnan(first) | np.isnan(second))
    if not both.any():
        raise ValueError(f"no prompt has a value of {measure} in both evaluations")
    first, second = first[both], second[both]
    low, high = normal_interval(second - first)
    p_value, test = _test(first, second)
    return Difference(
        measure=measure,
        first=float(first.mean()),
        second=float(second.mean()),
        low=low,
        high=high,
        p_value=p_value,
        test=test,
        num_prompts=int(both.sum()),
    )


def _test(first: np.ndarray, second: np.ndarray) -> tuple[float, str]:
    """Return a p-value and its test: McNemar's where both are right or wrong on every prompt."""
    if np.isin([first, second], (0.0, 1.0)).all():
        only_first, only_second = int((first > second).sum()), int((second > first).sum())
        return mcnemar(only_first, only_second), f"McNemar, {only_first} against {only_second}"
    return sign_flip(second - first), "sign flips"
