"""The policy that sampled a batch, when it is not the one that is trained on it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import torch
from torch import Tensor

from configs.overlap import BEHAVIOUR
from configs.run import RunConfig
from objectives.batch import TrajectoryBatch
from objectives.objective import Objective
from tasks.policy.files import PolicyFiles
from tasks.trainer import proofs
from tasks.trainer.session import LANGUAGE_MODEL, Session, frozen

Score = Callable[[TrajectoryBatch], Tensor]
"""From rows to the behaviour policy's log-probabilities of their responses [B, T]."""


def attest(config: RunConfig, table: pa.Table, files: PolicyFiles, behaviour: PolicyFiles) -> None:
    """Refuse rows of another policy than `behaviour`, and a `behaviour` that trails by too much.

    Raises:
        ValueError: naming what the rows say and what was expected.
    """
    proofs.attest_lag(files.version - behaviour.version, bound=config.rollout.staleness)
    proofs.attest(
        table["policy_version"].to_numpy(),
        table["policy_digest"].unique().to_pylist(),
        version=behaviour.version,
        digest=behaviour.digest,
    )


def behaviour_logprobs(
    config: RunConfig, session: Session, behaviour: PolicyFiles, lag: int, chunk: TrajectoryBatch
) -> Tensor:
    """Return log pi_old [B, T] (nats) of the response tokens, from where the config says.

    Args:
        config: the run's.
        session: the policy in training, before its update.
        behaviour: the policy that sampled the rows; its weights are read only if it is another one
            and log pi_old is recomputed.
        lag: versions between the two.
        chunk: the rows.

    Raises:
        ValueError: the engine is to be believed, and reported nothing for a token that trains.
    """
    if config.rl.old_logprobs == "engine":
        return engine_logprobs(chunk)
    if lag == 0:
        return session.score(chunk, temperature=config.rl.temperature)
    policy = frozen(LANGUAGE_MODEL, BEHAVIOUR, behaviour, dtype=config.model.dtype)
    with torch.no_grad():
        return policy.token_logprobs(chunk, temperature=config.rl.temperature).logprobs


def engine_logprobs(chunk: TrajectoryBatch) -> Tensor:
    """Return what the engine reported [B, T] (nats), 0 where no token trains."""
    logprobs = chunk.engine_logprobs
    missing = logprobs.isnan() & chunk.loss_mask.bool()
    if missing.any():
        rows = chunk.row_ids[missing.any(1)].tolist()
        raise ValueError(
            f"rl.old_logprobs=engine, but the engine reported no log-probability for "
            f"{int(missing.sum())} tokens that train, first in sample_id={rows[0]}; "
            "set rl.old_logprobs=recompute"
        )
    return logprobs.nan_to_num(0.0)


@contextmanager
def holding(objective: Objective, chunks: list[TrajectoryBatch], score: Score) -> Iterator[None]:
    """Hold the behaviour policy's log-probabilities of some rows while they are trained on.

    Every chunk is scored, a repeated row as well, for all ranks to make equally many passes.
    """
    cache, seen = objective.old_logp_cache, set[int]()
    for chunk in chunks if cache is not None else ():
        scores = score(chunk)
        fresh = [row for row, name in enumerate(chunk.row_ids.tolist()) if name not in seen]
        cache.freeze(chunk.row_ids[fresh], scores[fresh])
        seen.update(chunk.row_ids.tolist())
    yield
    if cache is not None:
        cache.clear()
