"""One training step: an annotated table and a policy directory in, an updated policy out."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from configs.distillation import TEACHER
from configs.overlap import BEHAVIOUR
from configs.run import RunConfig
from objectives.batch import ReferenceScorer, TeacherScorer
from objectives.build import ModelContext, build, load_builder
from objectives.objective import Objective
from tasks.data.schemas import ROUTED_EXPERTS
from tasks.data.teaching import rows_by_role
from tasks.policy.files import PolicyFiles
from tasks.trainer.behaviour import Score, attest, behaviour_logprobs, holding
from tasks.trainer.packing import plan_rows
from tasks.trainer.proving import prove
from tasks.trainer.reference import BaseReference, open_reference
from tasks.trainer.rows import Rows, collate, read_rows, split_rows
from tasks.trainer.session import Session, checkout, publish
from tasks.trainer.shares import Share, plan_share
from tasks.trainer.teacher import FrozenTeachers, open_teacher
from tasks.trainer.updates import Trained, padding, prove_once, take_updates

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
) -> Trained:
    """Update a policy on one batch and write the result.

    Args:
        config: the run's.
        table: an `ANNOTATED` or `TEACHER` table of the rows to train on.
        files: the policy to update.
        to: empty directories for the new weights and the new trainer state.
        auxiliary: other policies that the objective scores with, by role: `reference`, and the
            teachers where their logits are needed; `behaviour`, the policy that sampled the rows,
            where it is not `files`.

    Raises:
        ValueError: if the rows are another policy's, or a proof fails.
    """
    if config.trainer.num_threads:
        torch.set_num_threads(config.trainer.num_threads)
    others = auxiliary or {}
    behaviour = others.get(BEHAVIOUR, files)
    attest(config, table, files, behaviour)
    lag = files.version - behaviour.version
    session = checkout(config, files)
    objective = build_objective(
        config, _reference(config, others, session), _teachers(config, others, table)
    )
    require_columns(objective, table)
    _require_experts(config, table)
    score = partial(behaviour_logprobs, config, session, behaviour, lag)
    metrics = _updates(config, objective, session, read_rows(table), score)
    return Trained(
        policy=publish(session, files, to),
        identity=objective.identity_digest(),
        metrics={**_with_alarm(config, metrics), "train/policy_lag": float(lag)},
    )


def _reference(
    config: RunConfig, auxiliary: Mapping[str, PolicyFiles], session: Session
) -> ReferenceScorer | None:
    if "reference" not in auxiliary:
        own = config.model.lora.rank > 0 and config.rl.kl_beta > 0
        return BaseReference(session.policy) if own else None
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


def _require_experts(config: RunConfig, table: pa.Table) -> None:
    if config.rollout.routing_replay and ROUTED_EXPERTS not in table.column_names:
        raise ValueError(
            f"rollout.routing_replay=true, but the table has no column {ROUTED_EXPERTS!r}: it was "
            "sampled without; run the rollout of this step again"
        )


def _updates(
    config: RunConfig, objective: Objective, session: Session, rows: Rows, score: Score
) -> dict[str, float]:
    """Take the step's optimizer steps; return its metrics.

    `score` gives the behaviour policy's log-probabilities of a chunk.
    """
    shares = [
        _share(config, session, rows, part)
        for part in split_rows(len(rows), config.rl.mini_batches)
    ]
    prove_once(objective, lambda: prove(config, objective, session, rows, score))
    with holding(objective, [c for own, idle in shares for c in (*own, *idle)], score):
        metrics = take_updates(config, objective, session, shares)
    masks = [chunk.attention_mask for share in shares for chunk in share.own]
    return {**metrics, **padding(masks, session.accelerator)}


def _share(config: RunConfig, session: Session, rows: Rows, part: npt.NDArray[np.int64]) -> Share:
    """Lay out this rank's rows of a mini-batch that train; one empty-handed row if none does.

    A row without a token that trains adds nothing to numerator or weight and costs no pass.
    """
    trains = part[rows.num_training_tokens()[part] > 0]
    bound, accelerator = config.trainer.max_tokens_per_chunk, session.accelerator
    scale = session.attention_scale
    planned = plan_share(
        rows.widths,
        trains if len(trains) else part[:1],
        rank=accelerator.process_index,
        num_ranks=accelerator.num_processes,
        plan=lambda picked: plan_rows(rows, picked, scale, max_tokens=bound),
        prompts=rows.prompt_numbers if scale else None,
    )
    return planned.each(lambda chunk: collate(rows, chunk, accelerator.device))
