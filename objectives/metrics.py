"""Metrics that mean the same under every split into chunks and ranks, and their public names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

MetricKind = Literal["mean", "sum", "min", "max"]

OBJECTIVE_WEIGHT_SUM = "objective/weight_sum"
"""Local name under which a `Reduction.TOKEN_SUM` objective reports its weight (`Metric.sum`)."""

PUBLIC_NAME = re.compile(r"(train|val)/[a-z0-9_/.\-]+")
"""Every public metric name: the characters that all trackers accept, under one of two roots."""


def _scalar(value: Tensor | float) -> Tensor:
    tensor = torch.as_tensor(value).detach()
    if tensor.ndim != 0:
        raise ValueError(f"a metric holds scalars, got a tensor of shape {list(tensor.shape)}")
    return tensor.to(torch.float64)


def _kept_or(neutral: float, values: Tensor, keep: Tensor) -> Tensor:
    # One neutral element more, so that a chunk without any token has an extremum too.
    flat = torch.where(keep, values, neutral).flatten()
    return torch.nn.functional.pad(flat, (0, 1), value=neutral)


class Metric:
    """A quantity that chunks and ranks can merge without changing its value.

    `Metric(numerator, denominator)` is a mean; `Metric.sum`, `Metric.min` and `Metric.max` are the
    other kinds. Parts are detached float64 scalars on the device they came from, so that making a
    metric never waits for the device; only `value` does.

    Attributes:
        kind: how two of them merge.
        numerator: sum of what is averaged; for the other kinds the quantity itself.
        denominator: number of things averaged over; 1 for the other kinds and never read.

    Raises:
        ValueError: if a part is not a scalar.

    >>> a, b = Metric(torch.tensor(1.0), torch.tensor(1)), Metric(torch.tensor(18.0), 9)
    >>> a.merge(b).value
    1.9
    """

    __slots__ = ("denominator", "kind", "numerator")

    def __init__(
        self,
        numerator: Tensor | float,
        denominator: Tensor | float = 1.0,
        kind: MetricKind = "mean",
    ) -> None:
        self.numerator = _scalar(numerator)
        self.denominator = _scalar(denominator).to(self.numerator.device)
        self.kind: MetricKind = kind

    def __repr__(self) -> str:
        return f"Metric({self.value}, kind={self.kind!r})"

    def __float__(self) -> float:
        return self.value

    @classmethod
    def mean(cls, values: Tensor, keep: Tensor) -> "Metric":
        """Mean of the values where `keep` is true; what stands elsewhere is never read."""
        return cls(torch.where(keep, values, 0).sum(dtype=torch.float64), keep.sum())

    @classmethod
    def sum(cls, total: Tensor | float) -> "Metric":
        """A quantity that adds up over chunks and ranks."""
        return cls(total, kind="sum")

    @classmethod
    def min(cls, values: Tensor, keep: Tensor) -> "Metric":
        """Smallest value where `keep` is true."""
        return cls(_kept_or(torch.inf, values, keep).amin(), kind="min")

    @classmethod
    def max(cls, values: Tensor, keep: Tensor) -> "Metric":
        """Largest value where `keep` is true."""
        return cls(_kept_or(-torch.inf, values, keep).amax(), kind="max")

    def nothing(self) -> "Metric":
        """Return a metric of the same kind that changes no other when merged into it."""
        neutral = {"min": torch.inf, "max": -torch.inf}.get(self.kind, 0.0)
        zero = torch.zeros_like(self.numerator)
        return Metric(zero + neutral, zero if self.kind == "mean" else 1.0, self.kind)

    def merge(self, other: "Metric") -> "Metric":
        """Return the metric of both parts together.

        Raises:
            ValueError: if the two are of different kinds.
        """
        if self.kind != other.kind:
            raise ValueError(
                f"cannot merge a {self.kind!r} metric with a {other.kind!r} one; "
                "one local name must stand for one kind in every chunk"
            )
        if self.kind == "min":
            return Metric(torch.minimum(self.numerator, other.numerator), kind="min")
        if self.kind == "max":
            return Metric(torch.maximum(self.numerator, other.numerator), kind="max")
        denominator = self.denominator + other.denominator if self.kind == "mean" else 1.0
        return Metric(self.numerator + other.numerator, denominator, self.kind)

    @property
    def value(self) -> float:
        """The value as a float; NaN where nothing was counted. Waits for the device."""
        if self.kind == "mean":
            count = self.denominator.item()
            return self.numerator.item() / count if count else float("nan")
        value = self.numerator.item()
        return float("nan") if self.kind in {"min", "max"} and abs(value) == torch.inf else value


Metrics = Mapping[str, Metric]
"""Metrics by name: algorithm-local before the adapter, public after it."""


def require_metrics(metrics: Mapping[str, object]) -> dict[str, Metric]:
    """Return the mapping if every value is a `Metric`.

    Raises:
        TypeError: naming the first value that is not one.
    """
    checked: dict[str, Metric] = {}
    for name, value in metrics.items():
        if not isinstance(value, Metric):
            raise TypeError(
                f"metric {name!r} is a {type(value).__name__}, expected a Metric: a bare number "
                "cannot be merged over chunks and ranks; return Metric(numerator, denominator), "
                "Metric.sum, Metric.min or Metric.max"
            )
        checked[name] = value
    return checked


def merge_metrics(chunks: Iterable[Mapping[str, object]]) -> dict[str, Metric]:
    """Merge the metrics of several chunks, name by name.

    Raises:
        TypeError: for a value that is not a `Metric`.
        ValueError: if the chunks report different names: ranks reduce them together, so a name
            that only some chunks report would be paired with another one.
    """
    merged: dict[str, Metric] | None = None
    for chunk in chunks:
        checked = require_metrics(chunk)
        if merged is None:
            merged = checked
            continue
        if merged.keys() != checked.keys():
            names = sorted(merged.keys() ^ checked.keys())
            raise ValueError(f"metrics {names} are reported by some chunks only; report all always")
        merged = {name: metric.merge(checked[name]) for name, metric in merged.items()}
    return merged or {}


class PackedMetrics(NamedTuple):
    """Metrics as three vectors, one all-reduce each.

    Attributes:
        sums: numerators then denominators of means and sums; reduce by addition.
        mins: reduce by minimum.
        maxs: reduce by maximum.
    """

    sums: Tensor
    mins: Tensor
    maxs: Tensor


def pack_metrics(metrics: Metrics) -> PackedMetrics:
    """Lay metrics out, in the order of their names, as vectors that ranks can reduce."""
    ordered = [metrics[name] for name in sorted(metrics)]
    added = [metric for metric in ordered if metric.kind in {"mean", "sum"}]
    sums = [metric.numerator for metric in added] + [metric.denominator for metric in added]
    mins = [metric.numerator for metric in ordered if metric.kind == "min"]
    maxs = [metric.numerator for metric in ordered if metric.kind == "max"]
    return PackedMetrics(*(_stack(parts) for parts in (sums, mins, maxs)))


def _stack(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts) if parts else torch.zeros(0, dtype=torch.float64)


def unpack_metrics(packed: PackedMetrics, like: Metrics) -> dict[str, Metric]:
    """Undo `pack_metrics` after the reduction; `like` gives names and kinds."""
    names = sorted(like)
    added = [name for name in names if like[name].kind in {"mean", "sum"}]
    numerators, denominators = packed.sums[: len(added)], packed.sums[len(added) :]
    result = {
        name: Metric(numerators[i], denominators[i], like[name].kind)
        for i, name in enumerate(added)
    }
    for kind, values in (("min", packed.mins), ("max", packed.maxs)):
        of_kind = [name for name in names if like[name].kind == kind]
        result |= {name: Metric(values[i], kind=like[name].kind) for i, name in enumerate(of_kind)}
    return {name: result[name] for name in names}


@dataclass(frozen=True)
class MetricAdapter:
    """The stable public name of every metric that an objective reports.

    Attributes:
        names: local name -> public name, `train/...` or `val/...`, in `[a-z0-9_/.-]`.
        ignored: local names that are not published. `OBJECTIVE_WEIGHT_SUM` is the trainer's and
            always is.

    Raises:
        ValueError: for a public name outside the pattern, one given twice, or a local name that is
            both mapped and ignored.
    """

    names: Mapping[str, str]
    ignored: frozenset[str] = field(default_factory=frozenset[str])

    def __post_init__(self) -> None:
        for local, public in self.names.items():
            if not PUBLIC_NAME.fullmatch(public):
                raise ValueError(
                    f"metric {local!r} is mapped to {public!r}, expected train/ or val/ followed "
                    "by lower-case letters, digits and any of _ / . -"
                )
        repeated = sorted({name for name in self.names.values() if self._count(name) > 1})
        if repeated:
            raise ValueError(f"public metric names {repeated} are given to several metrics")
        both = sorted(self.ignored & self.names.keys())
        if both:
            raise ValueError(f"metrics {both} are mapped and ignored at once; choose one")

    def _count(self, public: str) -> int:
        return list(self.names.values()).count(public)

    def adapt(self, metrics: Mapping[str, object]) -> dict[str, Metric]:
        """Return the metrics under their public names, without the ignored ones.

        Raises:
            TypeError: for a value that is not a `Metric`.
            ValueError: naming a local name that is neither mapped nor ignored.
        """
        checked = require_metrics(metrics)
        unmapped = sorted(
            checked.keys() - self.names.keys() - self.ignored - {OBJECTIVE_WEIGHT_SUM}
        )
        if unmapped:
            raise ValueError(
                f"metrics {unmapped} have no public name; map them to train/... in the objective's "
                "MetricAdapter or list them as ignored"
            )
        return {self.names[name]: metric for name, metric in checked.items() if name in self.names}
