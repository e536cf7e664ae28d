"""One optimizer step over the chunks of a mini-batch, the same on one process as on many."""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from objectives.batch import TrajectoryBatch
from objectives.metrics import (
    OBJECTIVE_WEIGHT_SUM,
    Metric,
    PackedMetrics,
    merge_metrics,
    pack_metrics,
    unpack_metrics,
)
from objectives.objective import Objective, loss_terms
from tasks.policy.whole import part_of
from tasks.trainer.calling import returned_by
from tasks.trainer.policy import PolicyAdapter

Metrics = dict[str, Metric]


class Accumulated(NamedTuple):
    """What one rank's chunks added up to, beside the gradients.

    Attributes:
        weight: float64 scalar.
        numerator: sum of all terms' numerators, float64 scalar; not finite if any of them is not.
        num_terms: terms of the loss.
        metrics: by public name.
    """

    weight: Tensor
    numerator: Tensor
    num_terms: int
    metrics: Metrics


class Gradients(NamedTuple):
    """What is known of a mini-batch once its gradient is in the parameters.

    Attributes:
        weight: of the loss's first term, over all ranks.
        numerator: sum of all terms' numerators over all ranks.
        metrics: merged over chunks and ranks.
    """

    weight: float
    numerator: float
    metrics: Metrics


def accumulate(
    policy: PolicyAdapter,
    objective: Objective,
    chunks: Sequence[TrajectoryBatch],
    accelerator: Accelerator,
    *,
    idle: Sequence[TrajectoryBatch] = (),
    term: int = 0,
) -> Accumulated:
    """Add up the gradients of all chunks' numerators of one term of the loss.

    Each chunk's numerator goes backward, not its mean, so chunks of unequal weight add up right.

    Args:
        policy: the policy adapter over the prepared model.
        objective: the loss.
        chunks: this rank's chunks.
        idle: chunks that only keep step with the other ranks and count for nothing; with them every
            rank has equally many.
        accelerator: built with `gradient_accumulation_steps=1`; its `backward` would otherwise
            divide once more.
        term: which of the loss's terms goes backward; a scalar loss has one.
    """
    weight = torch.zeros((), dtype=torch.float64, device=accelerator.device)
    numerator = torch.zeros_like(weight)
    reported: list[Metrics] = []
    num_terms = 1
    last = len(chunks) + len(idle) - 1
    for place, chunk in enumerate((*chunks, *idle)):
        counts = float(place < len(chunks))
        # Copies of the model exchange gradients once, with the last chunk.
        apart = nullcontext() if place == last else accelerator.no_sync(policy.module)
        with apart:
            loss, metrics = returned_by(objective, policy, chunk)
            terms = loss_terms(
                loss, metrics, reduction=objective.reduction, num_sequences=chunk.num_sequences
            )
            accelerator.backward(terms[term].numerator * counts)
        num_terms = len(terms)
        weight += terms[term].weight.double() * counts
        if counts:
            numerator += sum(t.numerator.detach().double() for t in terms)
        adapted = objective.metric_adapter.adapt(metrics)
        reported.append(adapted if counts else {n: m.nothing() for n, m in adapted.items()})
    return Accumulated(weight, numerator, num_terms, merge_metrics(reported))


def gradients(
    policy: PolicyAdapter,
    objective: Objective,
    chunks: Sequence[TrajectoryBatch],
    accelerator: Accelerator,
    *,
    idle: Sequence[TrajectoryBatch] = (),
) -> Gradients:
    """Leave the gradient of the mini-batch's mean loss in the parameters.

    Terms of different units are each divided by their own weight and then added, so every term but
    the first costs a pass of its own.
    """
    parameters = [p for p in policy.module.parameters() if p.requires_grad]
    first = accumulate(policy, objective, chunks, accelerator, idle=idle)
    total = divide_gradients(parameters, first.weight, accelerator)
    for term in range(1, first.num_terms):
        before = [parameter.grad for parameter in parameters]
        policy.module.zero_grad(set_to_none=True)
        later = accumulate(policy, objective, chunks, accelerator, idle=idle, term=term)
        divide_gradients(parameters, later.weight, accelerator)
        _add(parameters, before)
    numerator = accelerator.reduce(first.numerator, reduction="sum").item()
    return Gradients(total, numerator, reduce_metrics(first.metrics, accelerator))


def _add(parameters: Iterable[nn.Parameter], gradients_before: Iterable[Tensor | None]) -> None:
    for parameter, before in zip(parameters, gradients_before, strict=True):
        if parameter.grad is None:
            parameter.grad = before
        elif before is not None:
            parameter.grad.add_(before)


def divide_gradients(
    parameters: Iterable[nn.Parameter], weight: Tensor, accelerator: Accelerator
) -> float:
    """Divide every accumulated gradient by the weight of all ranks, once; return that weight.

    The wrapped model has averaged gradients over the ranks where they should have been summed, so
    the divisor is the total weight over the number of ranks. Nothing is divided by a weight of 0.

    Raises:
        ValueError: the weight is negative or no number.
    """
    total = accelerator.reduce(weight, reduction="sum")
    if not total.item() >= 0:
        raise ValueError(
            f"the objective's weight over the mini-batch is {total.item():g}, expected the number "
            f"of what its numerator sums over; rl.builder owns metrics[{OBJECTIVE_WEIGHT_SUM!r}]"
        )
    if total.item() == 0:
        return 0.0
    divisor = total / accelerator.num_processes
    for parameter in parameters:
        if parameter.grad is not None:
            part_of(parameter.grad).div_(divisor.to(parameter.grad.dtype))
    return total.item()


def reduce_metrics(metrics: Metrics, accelerator: Accelerator) -> Metrics:
    """Merge the metrics of all ranks."""
    if accelerator.num_processes == 1:
        return metrics
    sums, mins, maxs = (part.to(accelerator.device) for part in pack_metrics(metrics))
    reduced = PackedMetrics(
        accelerator.reduce(sums, reduction="sum"),
        accelerator.gather(mins[None]).amin(0),
        accelerator.gather(maxs[None]).amax(0),
    )
    return unpack_metrics(reduced, metrics)


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one optimizer step did.

    Attributes:
        metrics: of the objective, by public name, merged over chunks and ranks.
        weight: the objective's weight of the whole mini-batch; 0 if no row trained.
        grad_norm: L2 norm of the gradient before it was clipped; NaN if the step was skipped.
        applied: whether the weights changed.
    """

    metrics: Metrics
    weight: float
    grad_norm: float
    applied: bool


def update(
    policy: PolicyAdapter,
    objective: Objective,
    chunks: Sequence[TrajectoryBatch],
    optimizer: torch.optim.Optimizer,
    accelerator: Accelerator,
    *,
    max_grad_norm: float,
    idle: Sequence[TrajectoryBatch] = (),
) -> Update:
    """Take one optimizer step, or skip it if no token of any rank trains.

    Weight, norm and metrics are those of all ranks, so each of them decides alike.

    Raises:
        FloatingPointError: if the loss or the gradient is not finite; the weights are then
            unchanged.
    """
    parameters = [p for p in policy.module.parameters() if p.requires_grad]
    total, numerator, metrics = gradients(policy, objective, chunks, accelerator, idle=idle)
    if total == 0:
        optimizer.zero_grad(set_to_none=True)
        return Update(metrics=metrics, weight=0.0, grad_norm=float("nan"), applied=False)
    norm = accelerator.clip_grad_norm_(parameters, max_grad_norm or float("inf"))
    grad_norm = float(norm)
    if not (math.isfinite(grad_norm) and math.isfinite(numerator)):
        optimizer.zero_grad(set_to_none=True)
        raise FloatingPointError(
            f"the loss is {numerator / total:g} and its gradient's norm {grad_norm:g}, expected "
            "finite numbers; the weights were not changed. Look at what this step trained on and "
            "at the metrics of the steps before; a smaller trainer.learning_rate may help"
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Update(metrics=metrics, weight=total, grad_norm=grad_norm, applied=True)
