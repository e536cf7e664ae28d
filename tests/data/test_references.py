"""Reference log-probabilities are tied to the model, the tokenizer and the pairs."""

import pyarrow as pa
import pytest

from tasks.data.arrow import read_table, write_table
from tasks.data.references import reference_fingerprint, require_fingerprint, with_references
from tasks.data.schemas import PREFERENCES, REFERENCED


def pairs(**changed: list) -> pa.Table:
    columns = {
        "pair_id": [0, 1],
        "source": ["s", "s"],
        "prompt_text": ["q", "r"],
        "chosen_text": ["yes", "on"],
        "rejected_text": ["no", "off"],
        "prompt_tokens": [[1], [2]],
        "chosen_tokens": [[3, 0], [4, 0]],
        "rejected_tokens": [[5, 0], [6, 0]],
    }
    return pa.table({**columns, **changed}, schema=PREFERENCES)


def fingerprint(table: pa.Table, *, model: str = "m", tokenizer: str = "t") -> str:
    return reference_fingerprint([table], model=model, tokenizer=tokenizer)


def test_scores_keep_their_fingerprint_through_a_file(tmp_path) -> None:
    scored = with_references(pairs(), [-1.0, -2.0], [-3.0, -4.0], fingerprint(pairs()))
    write_table(tmp_path / "t.arrow", scored)
    back = read_table(tmp_path / "t.arrow")
    assert back.schema.equals(REFERENCED)
    assert back["reference_rejected_logprob"].to_pylist() == [-3.0, -4.0]
    require_fingerprint(back, fingerprint(back), stage="test")


@pytest.mark.parametrize(
    "other",
    [
        fingerprint(pairs(), model="another"),
        fingerprint(pairs(), tokenizer="another"),
        fingerprint(pairs(chosen_tokens=[[3, 0], [9, 0]])),
        fingerprint(pairs().take([1, 0])),
    ],
    ids=["model", "tokenizer", "tokens", "order"],
)
def test_scores_of_something_else_are_refused(other: str) -> None:
    scored = with_references(pairs(), [-1.0, -2.0], [-3.0, -4.0], other)
    with pytest.raises(ValueError, match=f"fingerprint {other[:12]}, expected") as raised:
        require_fingerprint(scored, fingerprint(scored), stage="train_pairs")
    assert "run score_reference again" in str(raised.value)


def test_pairs_that_were_never_scored_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fingerprint \(none\), expected"):
        require_fingerprint(pairs(), fingerprint(pairs()), stage="train_pairs")
