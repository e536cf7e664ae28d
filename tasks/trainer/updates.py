"""The optimizer steps of one training step, whatever its rows are laid out as."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator

from configs.plan import AnyConfig
from objectives.metrics import Metric, merge_metrics
from objectives.objective import Objective
from tasks.policy import resident
from tasks.policy.files import PolicyFiles
from tasks.trainer.schedule import learning_rate
from tasks.trainer.session import Session
from tasks.trainer.shares import Share
from tasks.trainer.step import Update, reduce_metrics, update


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training step returns: the updated policy and what is worth telling about it."""

    policy: PolicyFiles
    identity: str
    metrics: dict[str, float]


def take_updates(
    config: AnyConfig, objective: Objective, session: Session, batches: list[Share]
) -> dict[str, float]:
    """Take one optimizer step for each mini-batch; return their metrics."""
    updates = [_one_update(config, objective, session, share) for share in batches]
    rate = session.state.optimizer.param_groups[0]["lr"]
    return {**_report(updates), "train/learning_rate": rate}


def prove_once(objective: Objective, prove: Callable[[], None]) -> None:
    """Run the proofs of an objective, once per process and objective."""
    digest = objective.identity_digest()
    if not resident.borrow("proved", digest, lambda: False):
        prove()
        resident.publish("proved", digest, True)


def padding(masks: list[torch.Tensor], accelerator: Accelerator) -> dict[str, float]:
    """Return how many chunks all ranks have and how much of them is padding, from their masks."""
    padded = Metric(
        sum(float(mask.numel() - mask.sum()) for mask in masks),
        sum(mask.numel() for mask in masks),
    )
    local = {"train/padding_fraction": padded, "train/num_chunks": Metric.sum(float(len(masks)))}
    return {name: metric.value for name, metric in reduce_metrics(local, accelerator).items()}


def _one_update(config: AnyConfig, objective: Objective, session: Session, share: Share) -> Update:
    optimizer = session.state.optimizer
    for group in optimizer.param_groups:
        group["lr"] = _rate(config, session)
    session.state.num_updates += 1
    return update(
        session.policy,
        objective,
        share.own,
        optimizer,
        session.accelerator,
        max_grad_norm=config.trainer.max_grad_norm,
        idle=share.idle,
    )


def _rate(config: AnyConfig, session: Session) -> float:
    num_steps = config.schedule.max_steps * config.schedule.mini_batches
    return learning_rate(session.state.num_updates, num_steps, config.trainer)


def _report(updates: list[Update]) -> dict[str, float]:
    """Return the metrics of the step: merged over its updates, never averaged twice."""
    applied = [u for u in updates if u.applied]
    metrics = {name: m.value for name, m in merge_metrics(u.metrics for u in updates).items()}
    norms = [u.grad_norm for u in applied]
    return {
        **metrics,
        "train/grad_norm": float(np.mean(norms)) if norms else float("nan"),
        "train/grad_norm_max": max(norms, default=float("nan")),
        "train/weight": sum(u.weight for u in updates),
        "train/num_updates": float(len(applied)),
        "train/num_skipped_updates": float(len(updates) - len(applied)),
    }
