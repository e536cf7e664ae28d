"""What ties a table of reference log-probabilities to the model and the pairs it was made from."""

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from tasks.data.arrow import content_digest
from tasks.data.schemas import PREFERENCES, REFERENCED, extend, read_stamp

FINGERPRINT = "reference"
"""Key of the fingerprint in a table's metadata."""


def reference_fingerprint(tables: Sequence[pa.Table], *, model: str, tokenizer: str) -> str:
    """Return a digest of everything that reference log-probabilities are a function of.

    Args:
        tables: the pairs, with the log-probabilities or without.
        model: digest of the reference's weights and the type that they are loaded in.
        tokenizer: digest of its tokenizer.
    """
    plain = [table.select(PREFERENCES.names).replace_schema_metadata(None) for table in tables]
    parts = [model, tokenizer, *(content_digest(table) for table in plain)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def with_references(
    table: pa.Table, chosen: Sequence[float], rejected: Sequence[float], fingerprint: str
) -> pa.Table:
    """Return pairs with the log-probabilities (nats) of their completions under the reference."""
    columns = {"reference_chosen_logprob": chosen, "reference_rejected_logprob": rejected}
    extended = extend(table, REFERENCED, columns, stage="score_reference")
    return extended.replace_schema_metadata({**read_stamp(extended), FINGERPRINT: fingerprint})


def require_fingerprint(table: pa.Table, expected: str, *, stage: str) -> None:
    """Refuse reference log-probabilities of another model, tokenizer or set of pairs.

    Raises:
        ValueError: naming both fingerprints.
    """
    found = read_stamp(table).get(FINGERPRINT, "")
    if found != expected:
        raise ValueError(
            f"{stage}: reference log-probabilities have the fingerprint {found[:12] or '(none)'}"
            f", expected {expected[:12]}: they were computed with another model, tokenizer or set "
            "of pairs; run score_reference again on these pairs"
        )
