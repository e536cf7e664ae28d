"""One training step on preference pairs, and their evaluation."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from configs.dpo import DpoConfig
from objectives import diffusion_dpo, dpo
from objectives.metrics import merge_metrics
from objectives.objective import Objective
from objectives.pairs import Denoiser, DiffusionBatch, PreferenceBatch
from tasks.policy.files import PolicyFiles
from tasks.trainer import proofs
from tasks.trainer.loop import require_columns
from tasks.trainer.pairs import PairRows, read_pair_rows, without_last
from tasks.trainer.points import DENOISER, PointRows, read_point_rows
from tasks.trainer.rows import split_rows
from tasks.trainer.session import (
    LANGUAGE_MODEL,
    Adapter,
    Network,
    Session,
    checkout,
    device,
    frozen,
    publish,
)
from tasks.trainer.shares import Share, plan_share
from tasks.trainer.updates import Trained, padding, prove_once, take_updates

REFERENCE = "reference"
"""Role of the frozen policy among the auxiliary ones."""


Batch = PreferenceBatch | DiffusionBatch


def network_of(config: DpoConfig) -> Network:
    """Return what kind of model is trained."""
    return DENOISER if config.dpo.pairs == "points" else LANGUAGE_MODEL


def build_preference_objective(config: DpoConfig, reference: Denoiser | None = None) -> Objective:
    """Return the objective of a run on preference pairs.

    Args:
        config: the run's.
        reference: adapter over the frozen denoiser, where points are preferred; without it the
            objective can be asked for its identity alone.
    """
    if config.dpo.pairs == "points":
        return diffusion_dpo.build_objective(
            config.dpo, prediction=config.denoiser.prediction, reference=reference
        )
    return dpo.build_objective(config.dpo)


def train_preferences(
    config: DpoConfig,
    table: pa.Table,
    files: PolicyFiles,
    to: tuple[Path, Path],
    auxiliary: Mapping[str, PolicyFiles],
) -> Trained:
    """Update a policy on the pairs of one step and write the result.

    Args:
        config: the run's, its steps counted.
        table: a `REFERENCED` table, or one of `POINTS`.
        files: the policy.
        to: empty directories for the new weights and the new trainer state.
        auxiliary: the reference, where its scores depend on the step (points).

    Raises:
        ValueError: if a column is missing or a proof fails.
    """
    _set_threads(config)
    objective = build_preference_objective(config, _reference(config, auxiliary))
    require_columns(objective, table)
    session = checkout(config, files, network_of(config))
    metrics = _updates(config, objective, session, read(config, table))
    return Trained(
        policy=publish(session, files, to), identity=objective.identity_digest(), metrics=metrics
    )


@torch.no_grad()
def evaluate_preferences(
    config: DpoConfig,
    table: pa.Table,
    files: PolicyFiles,
    auxiliary: Mapping[str, PolicyFiles],
) -> dict[str, float]:
    """Return held-out metrics: those of the objective itself, over the first pairs of a table.

    Raises:
        ValueError: there are fewer held-out pairs than `evaluation.num_pairs`.
    """
    if config.evaluation.num_pairs > len(table):
        raise ValueError(
            f"evaluation.num_pairs={config.evaluation.num_pairs} exceeds the {len(table)} usable "
            "held-out pairs; lower it"
        )
    _set_threads(config)
    objective = build_preference_objective(config, _reference(config, auxiliary))
    policy = frozen(network_of(config), "policy", files, dtype=config.model.dtype)
    rows = read(config, table.slice(0, config.evaluation.num_pairs))
    seen = [objective.fn(policy, chunk)[1] for chunk in _all_chunks(config, rows)]
    merged = merge_metrics(objective.metric_adapter.adapt(metrics) for metrics in seen)
    values = {name: metric.value for name, metric in merged.items()}
    return {
        "val/accuracy": values["train/preference/accuracy"],
        "val/loss": values["train/loss"],
        "val/margin": values["train/preference/margin"],
        "val/reward_chosen": values["train/preference/reward_chosen"],
        "val/reward_rejected": values["train/preference/reward_rejected"],
        "val/num_pairs": values["train/preference/num_pairs"],
    }


def read(config: DpoConfig, table: pa.Table) -> PairRows | PointRows:
    """Return the rows of a table as the run's pairs."""
    if config.dpo.pairs == "text":
        return read_pair_rows(table)
    return read_point_rows(table, seed=config.job.seed, num_timesteps=config.denoiser.num_timesteps)


def _updates(
    config: DpoConfig, objective: Objective, session: Session, rows: PairRows | PointRows
) -> dict[str, float]:
    """Take the step's optimizer steps; return its metrics."""
    shares = [
        _share(config, session, rows, part)
        for part in split_rows(len(rows), config.dpo.mini_batches)
    ]
    if config.trainer.prove_reduction:
        prove_once(objective, lambda: _prove(objective, session, rows))
    metrics = take_updates(config, objective, session, shares)
    masks = [_mask(chunk) for share in shares for chunk in share.own]
    return {**metrics, **padding(masks, session.accelerator)}


def _mask(chunk: Batch) -> torch.Tensor:
    """Return which places of a chunk are not padding; none is among points."""
    if isinstance(chunk, PreferenceBatch):
        return chunk.responses.attention_mask
    return torch.ones_like(chunk.timesteps)


def _share(
    config: DpoConfig, session: Session, rows: PairRows | PointRows, part: npt.NDArray[np.int64]
) -> Share:
    """Lay out this rank's pairs of a mini-batch."""
    bound, accelerator = config.trainer.max_tokens_per_chunk, session.accelerator
    planned = plan_share(
        rows.widths,
        part,
        rank=accelerator.process_index,
        num_ranks=accelerator.num_processes,
        plan=lambda picked: rows.plan(picked, max_tokens=bound),
    )
    return planned.each(lambda chunk: rows.collate(chunk, accelerator.device))


def _prove(objective: Objective, session: Session, rows: PairRows | PointRows) -> None:
    picked = np.arange(min(len(rows), proofs.NUM_PROOF_ROWS))
    batch = rows.collate(picked, session.accelerator.device)
    if len(picked) > 1:
        proof = without_last(batch) if isinstance(batch, PreferenceBatch) else batch
        proofs.prove_reduction(session.policy, objective, proof, session.accelerator)


def _all_chunks(config: DpoConfig, rows: PairRows | PointRows) -> list[Batch]:
    bound = config.trainer.max_tokens_per_chunk
    return rows.chunks(np.arange(len(rows)), max_tokens=bound, device=device())


def _reference(config: DpoConfig, auxiliary: Mapping[str, PolicyFiles]) -> Adapter | None:
    files = auxiliary.get(REFERENCE)
    if files is None:
        return None
    return frozen(network_of(config), REFERENCE, files, dtype=config.model.dtype)


def _set_threads(config: DpoConfig) -> None:
    if config.trainer.num_threads:
        torch.set_num_threads(config.trainer.num_threads)
