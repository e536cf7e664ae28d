"""Both pools of a run, with a word about what was left out."""

import hashlib
import logging

import pyarrow as pa

from configs.data import Data
from tasks.data.arrow import content_digest
from tasks.data.prompts import Encode, Pool, build_pool
from tasks.data.sources import load_problems

MAX_NAMED = 5

logger = logging.getLogger(__name__)


def prepare(
    data: Data, encode: Encode, *, max_prompt_tokens: int
) -> tuple[pa.Table, pa.Table, str]:
    """Return the pool to train on, the pool to evaluate on, and the fingerprint of both.

    Raises:
        ValueError: if no problem of a part is usable, or a training problem is held out as well.
    """
    problems = load_problems(data)
    shared = {p.text for p in problems.train} & {p.text for p in problems.held_out}
    if shared:
        raise ValueError(
            f"{len(shared)} problems are both trained on and held out, such as "
            f"{min(shared)[:80]!r}; remove them from one of the two"
        )
    pools = [build_pool(part, encode, max_prompt_tokens=max_prompt_tokens) for part in problems]
    for name, pool in zip(("training", "held-out"), pools, strict=True):
        _tell(name, pool, max_prompt_tokens)
    train, held_out = (pool.table for pool in pools)
    digests = content_digest(train) + content_digest(held_out)
    return train, held_out, hashlib.sha256(f"{digests}{data.seed}".encode()).hexdigest()


def _tell(name: str, pool: Pool, max_prompt_tokens: int) -> None:
    reasons = {
        f"longer than rollout.max_prompt_tokens={max_prompt_tokens}": pool.too_long,
        "spelling a control token": pool.unsafe,
    }
    for reason, ids in reasons.items():
        if ids:
            named = ", ".join(ids[:MAX_NAMED]) + (" ..." if len(ids) > MAX_NAMED else "")
            logger.warning("%d %s problems left out as %s: %s", len(ids), name, reason, named)
