"""Log-probabilities of preference pairs under their reference: computed once, kept, verified."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from objectives.dpo import TEMPERATURE
from objectives.primitives.preferences import sequence_logprobs
from tasks.data.arrow import read_table, write_table
from tasks.data.references import reference_fingerprint, require_fingerprint, with_references
from tasks.data.schemas import REFERENCED, require
from tasks.policy.files import PolicyFiles
from tasks.policy.tokenizing import tokenizer_digest
from tasks.trainer.pairs import read_pair_rows
from tasks.trainer.session import LANGUAGE_MODEL, device, frozen


class Scores(NamedTuple):
    """Log-probabilities (nats) of the completions of pairs, in their order [N]."""

    chosen: np.ndarray
    rejected: np.ndarray


def referenced(
    tables: Sequence[pa.Table],
    files: PolicyFiles,
    *,
    dtype: str,
    max_tokens: int,
    cache: Path,
) -> tuple[list[pa.Table], str]:
    """Return tables of pairs with their scores under a policy, and the fingerprint of all.

    They are kept under `cache`; what is read from there must have the very same fingerprint.

    Args:
        tables: PREFERENCES.
        files: the reference.
        dtype: type of its weights.
        max_tokens: most padded tokens of a forward pass.
        cache: directory of kept scores.

    Raises:
        ValueError: what is kept is of another reference or of other pairs.
    """
    fingerprint = fingerprint_of(tables, files, dtype=dtype)
    kept = [cache / f"reference-{fingerprint[:16]}" / f"{n}.arrow" for n in range(len(tables))]
    if all(path.is_file() for path in kept):
        found = [require(read_table(path), REFERENCED, stage="score_reference") for path in kept]
        require_own_reference(found, files, dtype=dtype)
        return found, fingerprint
    done = []
    for table, path in zip(tables, kept, strict=True):
        scores = score_pairs(table, files, dtype=dtype, max_tokens=max_tokens)
        done.append(with_references(table, *scores, fingerprint))
        write_table(path, done[-1])
    return done, fingerprint


def require_own_reference(tables: Sequence[pa.Table], files: PolicyFiles, *, dtype: str) -> None:
    """Refuse scores that are not those of this policy on exactly these pairs.

    Raises:
        ValueError: the fingerprint computed anew is not the one that the tables carry.
    """
    expected = fingerprint_of(tables, files, dtype=dtype)
    for table in tables:
        require_fingerprint(table, expected, stage="open_pair_run")


def fingerprint_of(tables: Sequence[pa.Table], files: PolicyFiles, *, dtype: str) -> str:
    """Return the digest of what the scores of these pairs under this policy depend on."""
    return reference_fingerprint(
        tables, model=f"{files.digest} {dtype}", tokenizer=tokenizer_digest(files)
    )


@torch.no_grad()
def score_pairs(table: pa.Table, files: PolicyFiles, *, dtype: str, max_tokens: int) -> Scores:
    """Return the log-probabilities of every completion of a table under a policy.

    Dropout is off and no adapter stands before the weights: this is the policy as the first step
    finds it, so that there all margins are 0.
    """
    policy = frozen(LANGUAGE_MODEL, "policy", files, dtype=dtype)
    rows = read_pair_rows(table)
    scores = Scores(*(np.empty(len(rows), np.float32) for _ in Scores._fields))
    places = {int(pair): row for row, pair in enumerate(rows.ids)}
    for chunk in rows.chunks(np.arange(len(rows)), max_tokens=max_tokens, device=device()):
        scored = policy.token_logprobs(chunk.responses, temperature=TEMPERATURE)
        sums = sequence_logprobs(scored.logprobs, chunk.responses.loss_mask).float().cpu().numpy()
        picked = [places[int(pair)] for pair in chunk.pair_ids]
        scores.chosen[picked], scores.rejected[picked] = np.split(sums, 2)
    return scores
