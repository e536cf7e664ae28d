"""One training step: an annotated table and a policy directory in, an updated policy out."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from configs.distillation import TEACHER
from configs.run import RunConfig
from objectives.batch import ReferenceScorer, TeacherScorer, TrajectoryBatch
from objectives.build import ModelContext, build, load_builder
from objectives.objective import Objective
from tasks.policy.files import PolicyFiles
from tasks.trainer import proofs
from tasks.trainer.behaviour import attest, behaviour_logprobs
from tasks.trainer.reference import open_reference
from tasks.trainer.rows import Rows, collate, plan_chunks, read_rows, split_rows
from tasks.trainer.session import Session, checkout, publish
from tasks.trainer.teacher import FrozenTeachers, open_teacher
from tasks.trainer.teacher_scores import rows_by_role
from tasks.trainer.updates import Trained, padding, prove_once, take_updates

Chunks = list[TrajectoryBatch]
Score = Callable[[TrajectoryBatch], Tensor]

ENGINE_MISMATCH = "train/engine/mismatch_mean"
ENGINE_ALARM = "train/engine/alarm"

logger = logging.getLogger(__name__)


def build_objective(
    config: RunConfig,
    reference_scorer: ReferenceScorer | None = None,
    teacher_scorer: TeacherScorer | None = None,
) -> Objective:
    """Return the objective that the config names.

    Args:
        config: the run's.
        reference_scorer: scorer of the frozen reference; without one the objective can be asked for
            its identity, but a loss with a KL penalty cannot be computed.
        teacher_scorer: gives the teacher's logits, for a loss over the whole vocabulary.

    Raises:
        ValueError: if `rl.builder` is not an importable builder of an `Objective`.
    """
    context = ModelContext(
        name_or_path=config.model.identity, max_response_length=config.rollout.max_tokens
    )
    builder = load_builder(config.rl.builder, config.rl.builder_arguments)
    return build(
        builder,
        config.rl,
        context,
        reference_scorer=reference_scorer,
        teacher_scorer=teacher_scorer,
        staleness=config.rollout.staleness,
    )


def train(
    config: RunConfig,
    table: pa.Table,
    files: PolicyFiles,
    to: tuple[Path, Path],
    auxiliary: Mapping[str, PolicyFiles] | None = None,
    *,
    behaviour: PolicyFiles | None = None,
) -> Trained:
    """Update a policy on one batch and write the result.

    Args:
        config: the run's.
        table: an `ANNOTATED` or `TEACHER` table of the rows to train on.
        files: the policy to update.
        to: empty directories for the new weights and the new trainer state.
        auxiliary: other policies that the objective scores with, by role: `reference`, and the
            teachers where their logits are needed.
        behaviour: the policy that sampled the rows; None: `files`.

    Raises:
        ValueError: if the rows are another policy's, or a proof fails.
    """
    if config.trainer.num_threads:
        torch.set_num_threads(config.trainer.num_threads)
    others, behaviour = auxiliary or {}, behaviour or files
    objective = build_objective(
        config, _reference(config, others), _teachers(config, others, table)
    )
    require_columns(objective, table)
    attest(config, table, files, behaviour)
    lag = files.version - behaviour.version
    session = checkout(config, files)
    score = partial(behaviour_logprobs, config, session, behaviour, lag)
    metrics = _updates(config, objective, session, read_rows(table), score)
    return Trained(
        policy=publish(session, files, to),
        identity=objective.identity_digest(),
        metrics={**_with_alarm(config, metrics), "train/policy_lag": float(lag)},
    )


def _reference(config: RunConfig, auxiliary: Mapping[str, PolicyFiles]) -> ReferenceScorer | None:
    if "reference" not in auxiliary:
        return None
    return open_reference(auxiliary["reference"], dtype=config.model.dtype)


def _teachers(
    config: RunConfig, auxiliary: Mapping[str, PolicyFiles], table: pa.Table
) -> TeacherScorer | None:
    if TEACHER not in auxiliary:
        return None
    rows = rows_by_role(table["source"].to_pylist(), auxiliary)
    ids = table["sample_id"].to_numpy()
    return FrozenTeachers(
        teachers={
            role: open_teacher(auxiliary[role], role, dtype=config.teacher.dtype) for role in rows
        },
        roles={int(row): role for role, picked in rows.items() for row in ids[picked]},
    )


def _with_alarm(config: RunConfig, metrics: dict[str, float]) -> dict[str, float]:
    """Say whether engine and trainer disagree about the sampled tokens by more than is allowed."""
    mismatch, bound = metrics.get(ENGINE_MISMATCH, float("nan")), config.rl.engine_mismatch_bound
    if mismatch > bound:
        logger.warning(
            "the sampling engine's log-probabilities differ from the trainer's by %.3g nats on "
            "average, more than rl.engine_mismatch_bound=%g: check that both use the same weights, "
            "temperature and precision, or set rl.engine_correction",
            mismatch,
            bound,
        )
    return {**metrics, ENGINE_ALARM: float(mismatch > bound)}


def require_columns(objective: Objective, table: pa.Table) -> None:
    """Refuse a table that lacks what the objective reads, before any forward pass.

    Raises:
        ValueError: naming the column and, where it is known, the stage that adds it.
    """
    for name in objective.requires:
        absent = name not in table.column_names
        if absent or (len(table) and table[name].null_count == len(table)):
            raise ValueError(
                f"the objective requires column {name!r}, but the table "
                f"{'has none' if absent else 'holds only nulls there'}; "
                "it must be added by a stage before train_chunks"
            )


def _updates(
    config: RunConfig, objective: Objective, session: Session, rows: Rows, score: Score
) -> dict[str, float]:
    """Take the step's optimizer steps; return its metrics.

    `score` gives the behaviour policy's log-probabilities of a chunk.
    """
    batches = [
        _chunks(config, session, rows, part)
        for part in split_rows(len(rows), config.rl.mini_batches)
    ]
    _freeze(objective, batches, score)
    prove_once(objective, lambda: _prove(config, objective, session, rows))
    metrics = take_updates(config, objective, session, batches)
    if objective.old_logp_cache is not None:
        objective.old_logp_cache.clear()
    masks = [chunk.attention_mask for chunks in batches for chunk in chunks]
    return {**metrics, **padding(masks)}


def _chunks(config: RunConfig, session: Session, rows: Rows, part: npt.NDArray[np.int64]) -> Chunks:
    """Lay out the rows of a mini-batch that train; one empty-handed chunk if none does.

    A row without a token that trains adds nothing to numerator or weight and costs no pass.
    """
    trains = part[rows.num_training_tokens()[part] > 0]
    plan = plan_chunks(
        rows.widths,
        trains if len(trains) else part[:1],
        max_tokens=config.trainer.max_tokens_per_chunk,
    )
    return [collate(rows, chunk, session.accelerator.device) for chunk in plan]


def _freeze(objective: Objective, batches: list[Chunks], score: Score) -> None:
    """Freeze the behaviour policy's log-probabilities of every row before the first update."""
    if objective.old_logp_cache is None:
        return
    for chunk in (chunk for chunks in batches for chunk in chunks):
        objective.old_logp_cache.freeze(chunk.row_ids, score(chunk))


def _prove(config: RunConfig, objective: Objective, session: Session, rows: Rows) -> None:
    """Run the proofs that the config asks for."""
    if config.trainer.prove_reduction:
        picked = proofs.pick_proof_rows(rows)
        if len(picked) > 1:
            batch = proofs.stagger(collate(rows, picked, session.accelerator.device))
            proofs.prove_reduction(session.policy, objective, batch, session.accelerator)
    if config.rl.certified_deterministic_forward:
        _certify(config, session, rows)


def _certify(config: RunConfig, session: Session, rows: Rows) -> None:
    trains = np.flatnonzero(rows.num_training_tokens())
    bounds = (config.trainer.max_tokens_per_chunk, int(rows.widths.sum(1).max()))
    first, second = (
        dict(_sequence_means(config, session, rows, trains, bound)) for bound in bounds
    )
    epsilon = min(config.rl.epsilon_low, config.rl.epsilon_high)
    proofs.certify_forward(first, second, smaller_epsilon=epsilon)


def _sequence_means(
    config: RunConfig,
    session: Session,
    rows: Rows,
    trains: npt.NDArray[np.int64],
    max_tokens: int,
) -> Iterator[tuple[int, float]]:
    for chunk in plan_chunks(rows.widths, trains, max_tokens=max_tokens):
        batch = collate(rows, chunk, session.accelerator.device)
        scores = session.score(batch, temperature=config.rl.temperature)
        logprobs = scores.double() * batch.loss_mask
        yield from zip(
            batch.row_ids.tolist(), (logprobs.sum(1) / batch.token_counts).tolist(), strict=True
        )
