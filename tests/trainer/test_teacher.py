"""What a frozen teacher says: aligned with the tokens, over shared ids, to the right rows."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from tasks.data.schemas import ANNOTATED, TEACHER, require
from tasks.data.teaching import UNKNOWN_LOGPROB, rows_by_role
from tasks.policy import resident
from tasks.policy.files import PolicyFiles
from tasks.trainer.policy import PolicyModel
from tasks.trainer.rows import collate, read_rows
from tasks.trainer.teacher import FrozenTeacher, FrozenTeachers
from tasks.trainer.teacher_scores import add_teacher_scores
from tests.data.tables import build
from tests.policy.builders import open_policy, run_config
from tests.trainer.builders import (
    CPU,
    adapter,
    batch_of,
    learned_positions,
    make_rows,
    reference,
)


def teacher_of(seed: int = 0, *, vocabulary: int = 20, padded: int = 20) -> FrozenTeacher:
    model = PolicyModel(learned_positions(seed, vocab_size=padded))
    return FrozenTeacher(model=model, vocabulary_size=vocabulary)


def test_values_from_full_logits_stand_at_their_tokens_and_zero_at_padding() -> None:
    model, rows = learned_positions(), make_rows()
    batch = batch_of(rows)
    tokens = batch.response_tokens[batch.response_mask.bool()]

    def chosen(logits: Tensor, positions: Tensor) -> Tensor:
        return logits.log_softmax(-1).gather(-1, tokens[positions, None])

    values = adapter(model).map_logits(batch, chosen)[..., 0]
    scored = adapter(model).token_logprobs(batch, temperature=1.0).logprobs
    torch.testing.assert_close(values, scored)
    assert (values[batch.response_mask == 0] == 0).all()
    assert values.requires_grad


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_token_t_is_scored_given_all_before_it(temperature: float) -> None:
    teacher, rows = teacher_of(), make_rows()
    found = teacher.score(batch_of(rows), temperature=temperature, topk=0)
    parts = [
        reference(teacher.model.model, prompt, response, temperature)[0]
        for prompt, response in zip(rows.prompts, rows.responses, strict=True)
    ]
    torch.testing.assert_close(found[:, 0], torch.cat(parts), rtol=0, atol=2e-5)
    assert not found.requires_grad


def test_the_likeliest_tokens_come_first_with_their_log_probabilities() -> None:
    teacher, rows = teacher_of(), make_rows(((4, 3),))
    found = teacher.score(batch_of(rows), temperature=1.0, topk=4)
    ids = torch.tensor([[*rows.prompts[0], *rows.responses[0]]])
    every = teacher.model.model(ids).logits[0, 3:-1].log_softmax(-1)
    values, places = every.topk(4)
    torch.testing.assert_close(found[:, 1:5], values.double(), rtol=0, atol=2e-5)
    assert found[:, 5:].tolist() == places.tolist()


def test_rows_of_the_head_beyond_the_shared_ids_are_left_out() -> None:
    wide, rows = teacher_of(vocabulary=12, padded=20), make_rows(vocabulary=12)
    found = wide.score(batch_of(rows), temperature=1.0, topk=12)
    ids = torch.tensor([[*rows.prompts[0], *rows.responses[0]]])
    start = len(rows.prompts[0]) - 1
    shared = wide.model.model(ids).logits[0, start:-1, :12].log_softmax(-1)
    expected = shared.gather(-1, torch.tensor(rows.responses[0])[:, None])[:, 0]
    torch.testing.assert_close(found[: len(expected), 0], expected.double(), rtol=0, atol=2e-5)
    assert found[:, 1:13].exp().sum(1).tolist() == pytest.approx([1.0] * len(found), abs=1e-5)
    logits = wide.teacher_logits(batch_of(rows))(torch.arange(3))
    assert logits.shape == (3, 12)


def test_a_token_that_the_teacher_does_not_know_has_a_floor() -> None:
    teacher, rows = teacher_of(vocabulary=12), make_rows(((3, 4),))
    rows.responses[0][:] = [2, 15, 3, 19]
    found = teacher.score(batch_of(rows), temperature=1.0, topk=0)[:, 0]
    assert (found == UNKNOWN_LOGPROB).tolist() == [False, True, False, True]


def test_every_row_gets_the_logits_of_its_own_teacher() -> None:
    first, second = teacher_of(0), teacher_of(1)
    batch = batch_of(make_rows())
    ids = batch.row_ids.tolist()
    roles = dict(zip(ids, ["a", "b", "a", "b"], strict=True))
    mixed = FrozenTeachers(teachers={"a": first, "b": second}, roles=roles).teacher_logits(batch)
    one, other = first.teacher_logits(batch), second.teacher_logits(batch)
    owner = torch.tensor([0, 1, 0, 1])[:, None].expand_as(batch.response_tokens)
    owner = owner[batch.response_mask.bool()]
    positions = torch.tensor([12, 0, 3, 7, 8, 4])
    expected = torch.where(owner[positions, None] == 0, one(positions), other(positions))
    torch.testing.assert_close(mixed(positions), expected, rtol=0, atol=2e-5)
    assert not torch.allclose(one(positions), other(positions), atol=1e-2)


def test_a_source_without_a_teacher_of_its_own_has_the_default_one() -> None:
    teachers = dict.fromkeys(["teacher", "teacher:gsm8k"])
    found = rows_by_role(["math", "gsm8k", "math"], teachers)
    assert {role: rows.tolist() for role, rows in found.items()} == {
        "teacher": [0, 2],
        "teacher:gsm8k": [1],
    }


@pytest.fixture
def policy(tmp_path: Path) -> Iterator[PolicyFiles]:
    resident.drop("teacher")
    yield open_policy(run_config(tmp_path))
    resident.drop("teacher")


def scored(policy: PolicyFiles, root: Path, **rl: object) -> pa.Table:
    responses = [[5, 6, 7], [8], [], [9, 10]]
    table = build(
        ANNOTATED,
        4,
        response_tokens=responses,
        engine_logprobs=[[-1.0] * len(r) for r in responses],
        loss_mask=[[True] * len(r) for r in responses],
    )
    config = run_config(root, rl=rl, trainer={"max_tokens_per_chunk": 8})
    return add_teacher_scores(table, config, {"teacher": policy})


def test_the_table_has_a_score_per_token_in_the_order_of_its_rows(
    policy: PolicyFiles, tmp_path: Path
) -> None:
    table = scored(policy, tmp_path)
    require(table, TEACHER, stage="test")
    model = resident.borrow("teacher", policy.digest, lambda: None).model.model
    for prompt, response, found in zip(
        *(table[name].to_pylist() for name in ("prompt_tokens", "response_tokens")),
        table["teacher_logprobs"].to_pylist(),
        strict=True,
    ):
        assert len(found) == len(response)
        if response:
            expected, _ = reference(model, prompt, response)
            assert found == pytest.approx(expected.tolist(), abs=2e-5)
    assert table["teacher_topk_ids"].null_count == 4


def test_the_likeliest_tokens_travel_from_the_table_into_the_batch(
    policy: PolicyFiles, tmp_path: Path
) -> None:
    table = scored(policy, tmp_path, teacher_topk=3)
    rows = read_rows(table.take([0, 1, 3]))
    batch = collate(rows, np.array([2, 0]), CPU)
    assert batch.teacher_topk_ids.shape == batch.teacher_topk_logprobs.shape == (2, 3, 3)
    ids, logprobs = table["teacher_topk_ids"].to_pylist(), table["teacher_topk_logprobs"]
    assert batch.teacher_topk_ids[1].tolist() == ids[0]
    assert batch.teacher_topk_ids[0, :2].tolist() == ids[3]
    assert batch.teacher_topk_logprobs[1].tolist() == logprobs.to_pylist()[0]
    assert batch.teacher_logprobs[0, :2].tolist() == table["teacher_logprobs"].to_pylist()[3]


def test_a_table_without_a_teacher_gives_a_batch_without_one() -> None:
    batch = collate(read_rows(build(ANNOTATED)), np.array([0]), CPU)
    assert batch.teacher_logprobs is None
    assert batch.teacher_topk_ids is None


def test_scores_of_another_length_than_the_response_are_refused(
    policy: PolicyFiles, tmp_path: Path
) -> None:
    table = scored(policy, tmp_path)
    place = table.schema.get_field_index("teacher_logprobs")
    short = pa.array([[-1.0], [-1.0], [], [-1.0, -2.0]], pa.list_(pa.float32()))
    broken = table.set_column(place, TEACHER.field("teacher_logprobs"), short)
    with pytest.raises(ValueError, match="'response_tokens' and 'teacher_logprobs'"):
        require(broken, TEACHER, stage="train_chunks")
