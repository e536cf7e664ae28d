"""Pairs as tensors, and their scores under a reference, kept and verified."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from configs.dpo import Preferences
from configs.model import Model
from tasks.data.preferences import prepare_pairs
from tasks.data.schemas import PREFERENCES
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.policy.pairing import pair_encoder
from tasks.policy.start import initial_policy
from tasks.policy.tokenizing import tokenizer_of
from tasks.trainer.pairs import PairRows, read_pair_rows, without_last
from tasks.trainer.reference_scores import fingerprint_of, referenced, require_own_reference
from tests.policy.builders import UNTRAINED
from tests.trainer.builders import CPU, reference

TINY = Preferences(digits=1, num_held_out=90)
BOUND = 64


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> PolicyFiles:
    root = tmp_path_factory.mktemp("policy")
    return initial_policy(Model(embedded=UNTRAINED), TINY.problems, seed=0, output_root=root)


@pytest.fixture(scope="module")
def tables(files: PolicyFiles) -> list[pa.Table]:
    encode = pair_encoder(tokenizer_of(files), TINY)
    return [table.slice(0, 5) for table in prepare_pairs(TINY, encode)]


def uneven() -> PairRows:
    lengths = [(2, 3, 1), (4, 1, 5), (3, 2, 2)]
    arrays = [[np.arange(1, n + 1) for n in side] for side in zip(*lengths, strict=True)]
    numbers = np.array([-1.0, -2.0, -3.0], dtype=np.float32)
    return PairRows(
        ids=np.array([7, 8, 9]),
        prompts=arrays[0],
        chosen=arrays[1],
        rejected=arrays[2],
        reference_chosen=numbers,
        reference_rejected=2 * numbers,
    )


def test_a_chunk_holds_all_chosen_completions_and_then_all_rejected_ones() -> None:
    batch = uneven().collate(np.array([1, 0]), CPU)
    assert batch.pair_ids.tolist() == [8, 7]
    assert batch.responses.token_counts.tolist() == [1, 3, 5, 1]
    assert batch.responses.response_tokens[2].tolist() == [1, 2, 3, 4, 5]
    assert batch.responses.input_ids[1].tolist() == [0, 0, 1, 2, 1, 2, 3, 0, 0]
    assert batch.reference_chosen.tolist() == [-2.0, -1.0]
    assert batch.reference_rejected.tolist() == [-4.0, -2.0]


@pytest.mark.parametrize("bound", [1, 20, 40, 1000])
def test_chunks_hold_every_pair_once_within_the_bound(bound: int) -> None:
    chunks = uneven().chunks(np.arange(3), max_tokens=bound, device=CPU)
    assert sorted(int(i) for chunk in chunks for i in chunk.pair_ids) == [7, 8, 9]
    for chunk in chunks:
        assert chunk.num_sequences == 1 or chunk.responses.input_ids.numel() <= bound


def test_a_proof_gets_a_last_pair_that_trains_nothing() -> None:
    batch = without_last(uneven().collate(np.arange(3), CPU))
    assert batch.trains.tolist() == [True, True, False]
    assert batch.responses.loss_mask.sum(1).tolist() == batch.responses.token_counts.tolist()


def test_reference_scores_are_those_of_each_completion_alone(
    files: PolicyFiles, tables: list[pa.Table], tmp_path: Path
) -> None:
    scored, _ = referenced(tables, files, dtype="float32", max_tokens=BOUND, cache=tmp_path)
    model = load_model(files.weights, dtype="float32")
    for row in scored[0].to_pylist():
        for side in ("chosen", "rejected"):
            with torch.no_grad():
                alone, _ = reference(model, row["prompt_tokens"], row[f"{side}_tokens"])
            assert row[f"reference_{side}_logprob"] == pytest.approx(alone.sum().item(), abs=1e-4)


def test_scores_are_kept_and_read_again(
    files: PolicyFiles, tables: list[pa.Table], tmp_path: Path
) -> None:
    first, fingerprint = referenced(
        tables, files, dtype="float32", max_tokens=BOUND, cache=tmp_path
    )
    gone = replace(files, weights=files.weights.parent / "weights")
    again, same = referenced(tables, gone, dtype="float32", max_tokens=BOUND, cache=tmp_path)
    assert same == fingerprint
    assert all(a.equals(b, check_metadata=True) for a, b in zip(first, again, strict=True))
    assert len(list(tmp_path.glob("reference-*/*.arrow"))) == 2


def test_what_is_kept_of_other_pairs_is_refused(
    files: PolicyFiles, tables: list[pa.Table], tmp_path: Path
) -> None:
    _, fingerprint = referenced(tables, files, dtype="float32", max_tokens=BOUND, cache=tmp_path)
    folder = tmp_path / f"reference-{fingerprint[:16]}"
    (folder / "1.arrow").replace(folder / "0.arrow")
    (folder / "1.arrow").write_bytes((folder / "0.arrow").read_bytes())
    with pytest.raises(ValueError, match="computed with another model, tokenizer or set of pairs"):
        referenced(tables, files, dtype="float32", max_tokens=BOUND, cache=tmp_path)


def test_scores_of_another_model_tokenizer_type_or_table_are_refused(
    files: PolicyFiles, tables: list[pa.Table], tmp_path: Path
) -> None:
    scored, _ = referenced(tables, files, dtype="float32", max_tokens=BOUND, cache=tmp_path)
    require_own_reference(scored, files, dtype="float32")
    for others, policy, dtype in (
        (scored, replace(files, digest="another"), "float32"),
        (scored, files, "bfloat16"),
        (scored[::-1], files, "float32"),
        ([scored[0].slice(1), scored[1]], files, "float32"),
    ):
        with pytest.raises(ValueError, match="run score_reference again"):
            require_own_reference(others, policy, dtype=dtype)


def test_another_tokenizer_is_another_fingerprint(
    files: PolicyFiles, tables: list[pa.Table], tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    other = replace(files, weights=tmp_path)
    one, two = (fingerprint_of(tables, f, dtype="float32") for f in (files, other))
    assert one != two


def test_a_table_without_scores_has_zeros_for_them(tables: list[pa.Table]) -> None:
    assert tables[0].schema.names == PREFERENCES.names
    assert read_pair_rows(tables[0]).reference_chosen.tolist() == [0.0] * 5
