"""The proofs that a config asks for, on the rows of a step."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from configs.run import RunConfig
from objectives.objective import Objective
from tasks.trainer import proofs
from tasks.trainer.behaviour import Score, holding
from tasks.trainer.rows import Rows, collate, plan_chunks
from tasks.trainer.session import Session


def prove(
    config: RunConfig, objective: Objective, session: Session, rows: Rows, score: Score
) -> None:
    """Run the proofs that the config asks for, on every rank with the same rows."""
    picked = proofs.pick_proof_rows(rows)
    if config.trainer.prove_reduction and len(picked) > 1:
        batch = collate(rows, picked, session.accelerator.device)
        with holding(objective, [batch], score):
            staggered = proofs.stagger(batch)
            proofs.prove_reduction(session.policy, objective, staggered, session.accelerator)
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
