"""Checks that run with the program, before the first update: cheap, and fatal when they fail."""

import math

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator

from objectives.batch import TrajectoryBatch
from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric, MetricAdapter
from objectives.objective import Objective, Reduction
from tasks.policy.whole import part_of
from tasks.trainer.policy import PolicyAdapter
from tasks.trainer.rows import Rows
from tasks.trainer.step import gradients

NUM_PROOF_ROWS = 4


def _mean_logprob(
    policy: PolicyAdapter, batch: TrajectoryBatch
) -> tuple[torch.Tensor, dict[str, Metric]]:
    logprobs = policy.token_logprobs(batch, temperature=1.0).logprobs
    weight = batch.loss_mask.sum().to(logprobs)
    return (logprobs * batch.loss_mask).sum() / weight, {OBJECTIVE_WEIGHT_SUM: Metric.sum(weight)}


MEAN_LOGPROB = Objective(
    _mean_logprob,
    Reduction.TOKEN_SUM,
    requires=(),
    metric_adapter=MetricAdapter({}),
    identity={"name": "mean log-probability"},
)
"""What a gradient is small or large beside."""

ROUNDING = 0.1
"""Share of the tolerance, of that gradient, which rounding of log-probabilities may leave."""


def attest(
    versions: npt.NDArray[np.int64], digests: list[str], *, version: int, digest: str
) -> None:
    """Refuse rows that another policy than the one about to be trained has sampled.

    Raises:
        ValueError: naming what the rows say and what was expected.
    """
    foreign = sorted(set(versions.tolist()) - {version})
    if foreign:
        raise ValueError(
            f"rows were sampled by policy_version {foreign}, expected {version}: importance ratios "
            "would be taken against another policy; run the rollout of this step again"
        )
    strange = sorted(set(digests) - {digest})
    if strange:
        raise ValueError(
            f"rows were sampled by weights of policy_digest {strange[0]}, expected {digest}, "
            f"though both are called version {version}; run the rollout of this step again"
        )


def attest_lag(lag: int, *, bound: int) -> None:
    """Refuse rows of a policy that is newer than the one to be trained, or too many versions older.

    Raises:
        ValueError: naming the distance and the bound.
    """
    if not 0 <= lag <= bound:
        raise ValueError(
            f"rows were sampled {lag} policy versions before the policy to be trained, expected 0 "
            f"to {bound} (rollout.staleness); run the rollout of this step again"
        )


def pick_proof_rows(rows: Rows, num_rows: int = NUM_PROOF_ROWS) -> npt.NDArray[np.int64]:
    """Return a few rows that train, those with an advantage first."""
    trains = np.flatnonzero(rows.num_training_tokens())
    order = np.argsort(rows.advantages[trains] == 0, kind="stable")
    return trains[order][:num_rows]


def stagger(batch: TrajectoryBatch) -> TrajectoryBatch:
    """Return the batch with rows of unequal lengths, the last one masked, and advantages of +-1.

    A weight in the wrong unit is invisible where all rows are equally long, and every weight is
    where no row has an advantage.
    """
    order = batch.loss_mask.long().cumsum(1)
    limit = torch.arange(1, len(order) + 1, device=order.device)[:, None]
    limit[-1] = 0
    mask = batch.loss_mask & (order <= limit)
    fields = {name: getattr(batch, name) for name in TrajectoryBatch.__dataclass_fields__}
    signs = torch.ones_like(batch.advantages)
    signs[1::2] = -1
    changed = {"loss_mask": mask, "token_counts": mask.sum(1), "advantages": signs}
    return TrajectoryBatch(**{**fields, **changed})


def prove_reduction(
    policy: PolicyAdapter, objective: Objective, batch: TrajectoryBatch, accelerator: Accelerator
) -> float:
    """Compare the gradient over a few rows, whole and one row at a time; return the difference.

    Args:
        policy: the policy to be trained; its gradients are cleared.
        objective: the loss; an old log-probability cache must hold the rows.
        batch: a few rows, at least two of which train.
        accelerator: the trainer's.

    Returns:
        The relative difference of the two gradients.

    Raises:
        ValueError: if it exceeds what rounding explains.
    """
    singles = [batch.take(torch.tensor([row])) for row in range(batch.num_sequences)]
    whole = _gradient(policy, objective, [batch], accelerator)
    split = _gradient(policy, objective, singles, accelerator)
    sums = accelerator.reduce(
        torch.stack([_products(one, other) for one, other in zip(whole, split, strict=True)]).sum(0)
    )
    difference = (sums[0].sqrt() / sums[1].sqrt().clamp(min=1e-12)).item()
    tolerance = policy.forward_noise
    if not difference <= tolerance and not _is_rounding(policy, batch, accelerator, sums[0].sqrt()):
        raise ValueError(
            f"reduction proof failed: the gradient over {batch.num_sequences} rows differs by "
            f"{difference:.3g} (relative) between one chunk and a chunk per row, expected at most "
            f"{tolerance}. {_diagnosis(sums)} The objective's loss and the weight that it "
            "reports under OBJECTIVE_WEIGHT_SUM are not of the same unit, or not of the same mask: "
            "return numerator / weight and exactly that weight. (rl.builder owns this code; "
            "trainer.prove_reduction=false skips the proof.)"
        )
    return difference


def _is_rounding(
    policy: PolicyAdapter, batch: TrajectoryBatch, accelerator: Accelerator, distance: torch.Tensor
) -> bool:
    """Return whether two gradients are apart by what rounding of log-probabilities explains.

    A gradient that is 0 but for rounding, such as that of a student that is its own teacher, has no
    scale of its own to compare with; that of the mean log-probability has.
    """
    if not isinstance(batch, TrajectoryBatch):
        return False
    yardstick = _gradient(policy, MEAN_LOGPROB, [batch], accelerator)
    squares = torch.stack([part.double().square().sum() for part in yardstick]).sum()
    scale = accelerator.reduce(squares).sqrt()
    return bool(distance <= ROUNDING * policy.forward_noise * scale)


def _diagnosis(sums: torch.Tensor) -> str:
    scale = (sums[2] / sums[1].clamp(min=1e-24)).item()
    return f"Split, it is {scale:.3f} times the whole one."


def _products(whole: torch.Tensor, split: torch.Tensor) -> torch.Tensor:
    """Return the squared difference of two gradients, the first one's square, and their product.

    One parameter at a time, as float64 copies of all gradients would take more than training does.
    """
    one, other = whole.double(), split.double()
    return torch.stack([(one - other).square().sum(), one.square().sum(), (one * other).sum()])


def _gradient(
    policy: PolicyAdapter,
    objective: Objective,
    chunks: list[TrajectoryBatch],
    accelerator: Accelerator,
) -> list[torch.Tensor]:
    """Return the gradient of each parameter, or this rank's part of it, and clear it."""
    parameters = [p for p in policy.module.parameters() if p.requires_grad]
    policy.module.zero_grad(set_to_none=True)
    gradients(policy, objective, chunks, accelerator)
    result = [part_of(torch.zeros_like(p) if p.grad is None else p.grad) for p in parameters]
    policy.module.zero_grad(set_to_none=True)
    return result


def certify_forward(
    first: dict[int, float], second: dict[int, float], *, smaller_epsilon: float
) -> None:
    """Refuse a forward pass whose noise between two chunkings rivals the clip range.

    Args:
        first: mean log-probability of every sequence (nats) by row id, under one chunking.
        second: the same under another.
        smaller_epsilon: the smaller of the two clip ranges.

    Raises:
        ValueError: if a sequence's two means differ by more than a tenth of it.
    """
    ratios = ((abs(first[row] - second[row]), row) for row in first)
    # A NaN compares with nothing, so that `max` alone would pass over it.
    worst = max(ratios, key=lambda ratio: (math.isnan(ratio[0]), *ratio))
    bound = smaller_epsilon / 10
    if not worst[0] <= bound:
        raise ValueError(
            f"forward certification failed: sample {worst[1]} has a mean log-ratio of "
            f"{worst[0]:.3g} nats between two chunkings of the same weights, expected at most "
            f"{bound:.3g} (a tenth of the smaller epsilon {smaller_epsilon}): rounding alone would "
            "clip responses; use model.dtype=float32 or larger epsilons"
        )
