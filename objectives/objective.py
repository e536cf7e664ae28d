"""The contract between an algorithm's loss and the trainer that runs it."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import torch
from torch import Tensor

from objectives.batch import ReferenceScorer
from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric, MetricAdapter, Metrics
from objectives.old_logp import OldLogpCache

__all__ = [
    "OBJECTIVE_WEIGHT_SUM",
    "Metric",
    "MetricAdapter",
    "Objective",
    "OldLogpCache",
    "Reduction",
    "ReferenceScorer",
    "Term",
    "identity_difference",
    "loss_terms",
]

JsonValue = str | int | float | bool | None
"""What an identity may hold: one JSON scalar per key."""

ABSENT = "<absent>"
"""Stands in `identity_difference` for the side that lacks the key."""


class Reduction(Enum):
    """How the losses of several chunks become one."""

    MEAN = auto()
    """The loss is a mean over the chunk's sequences; its weight is their number."""

    TOKEN_SUM = auto()
    """The loss is numerator over weight; `metrics[OBJECTIVE_WEIGHT_SUM]` is the weight."""


@dataclass(frozen=True)
class Term:
    """One sum of the loss with the weight that divides it once, over all chunks and ranks.

    An objective whose parts have different units returns a tuple of terms instead of a scalar; the
    loss of a step is then the sum over terms of (sum of numerators) / (sum of weights).

    Attributes:
        numerator: scalar on the model's graph.
        weight: scalar without gradient, in the unit of the numerator.
    """

    numerator: Tensor
    weight: Tensor


Loss = Tensor | tuple[Term, ...]
"""What an objective returns beside its metrics: a scalar, or several terms."""

LossFn = Callable[..., tuple[Loss, Metrics]]
"""`fn(model, batch) -> (loss, metrics)`; never communicates, launches, saves or moves anything.

The batch is a `TrajectoryBatch`, or what the rows of another topology are laid out as, such as a
`PreferenceBatch`; the model is the adapter that goes with it.
"""


@dataclass(frozen=True)
class Objective:
    """A loss with what the trainer must know in order to run it.

    Attributes:
        fn: computes the loss of a chunk and its metrics by local name.
        reduction: how chunk losses combine.
        requires: columns of the trajectory table that must be there and not all null.
        metric_adapter: public names of the metrics.
        identity: flat JSON mapping of every value that changes the mathematics.
        old_logp_cache: frozen log-probabilities of the behaviour policy, when several updates are
            made on one collected batch; the trainer freezes it before the first of them.
        reference_scorer: scorer of the frozen reference, when the loss has a KL penalty.

    Raises:
        TypeError: if a field is of the wrong kind.
        ValueError: if the identity is empty or holds a number that JSON cannot.
    """

    fn: LossFn
    reduction: Reduction
    requires: tuple[str, ...] = field(kw_only=True)
    metric_adapter: MetricAdapter = field(kw_only=True)
    identity: Mapping[str, JsonValue] = field(kw_only=True)
    old_logp_cache: OldLogpCache | None = field(default=None, kw_only=True)
    reference_scorer: ReferenceScorer | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"Objective.fn is {self.fn!r}, expected fn(model, batch)")
        _require_type("reduction", self.reduction, Reduction)
        _require_type("metric_adapter", self.metric_adapter, MetricAdapter)
        if isinstance(self.requires, str):
            raise TypeError(f"Objective.requires is {self.requires!r}, expected a tuple of columns")
        object.__setattr__(self, "requires", tuple(self.requires))
        object.__setattr__(self, "identity", _checked_identity(self.identity))

    def identity_digest(self) -> str:
        """Return the SHA-256 of the identity as canonical JSON; equal for equal mathematics."""
        canonical = json.dumps(
            dict(self.identity), sort_keys=True, separators=(",", ":"), allow_nan=False
        )
        return hashlib.sha256(canonical.encode()).hexdigest()


def _require_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"Objective.{name} is {value!r}, expected a {kind.__name__}")


def _checked_identity(identity: Mapping[str, object]) -> dict[str, JsonValue]:
    if not identity:
        raise ValueError("Objective.identity is empty; list every value that changes the loss")
    checked: dict[str, JsonValue] = {}
    for key, value in identity.items():
        if value is not None and not isinstance(value, str | int | float | bool):
            raise TypeError(
                f"Objective.identity[{key!r}] is a {type(value).__name__}, expected a string, "
                "number, boolean or None; flatten it into several keys"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"Objective.identity[{key!r}] is {value}, expected a finite number")
        checked[key] = value
    return checked


def identity_difference(
    ours: Mapping[str, JsonValue], theirs: Mapping[str, JsonValue]
) -> dict[str, tuple[JsonValue, JsonValue]]:
    """Return the keys on which two identities differ, sorted, with both values.

    >>> identity_difference({"epsilon_low": 0.2, "eps": 1e-6}, {"epsilon_low": 0.3, "eps": 1e-6})
    {'epsilon_low': (0.2, 0.3)}
    """
    pairs = {
        key: (ours.get(key, ABSENT), theirs.get(key, ABSENT))
        for key in sorted(ours.keys() | theirs.keys())
    }
    # As JSON, so that True and 1 differ just as they do in the digest.
    return {key: pair for key, pair in pairs.items() if json.dumps(pair[0]) != json.dumps(pair[1])}


def loss_terms(
    loss: Loss, metrics: Metrics, *, reduction: Reduction, num_sequences: int
) -> tuple[Term, ...]:
    """Return the numerators and weights behind what an objective returned for one chunk.

    Args:
        loss: first value of `fn`.
        metrics: second value of `fn`.
        reduction: the objective's.
        num_sequences: rows of the chunk, the weight under `Reduction.MEAN`.

    Raises:
        TypeError: if a scalar loss under `TOKEN_SUM` comes without its weight.
        ValueError: if the loss is neither a scalar nor a tuple of terms.
    """
    if isinstance(loss, tuple):
        return loss
    if loss.ndim != 0:
        raise ValueError(f"the objective's loss has shape {list(loss.shape)}, expected a scalar")
    if reduction is Reduction.MEAN:
        weight = torch.tensor(float(num_sequences), dtype=loss.dtype, device=loss.device)
    else:
        weight = _declared_weight(metrics).to(loss)
    return (Term(loss * weight, weight),)


def _declared_weight(metrics: Metrics) -> Tensor:
    weight: object = metrics.get(OBJECTIVE_WEIGHT_SUM)
    if not isinstance(weight, Metric) or weight.kind != "sum":
        raise TypeError(
            f"a TOKEN_SUM objective must report metrics[{OBJECTIVE_WEIGHT_SUM!r}] as Metric.sum("
            f"weight), got {weight!r}"
        )
    return weight.numerator
