from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from tests.objectives.builders import make_batch


def test_responses_are_the_last_columns() -> None:
    batch = make_batch()
    width = batch.response_tokens.shape[1]
    assert torch.equal(batch.input_ids[:, -width:], batch.response_tokens)
    assert batch.response_mask.tolist() == batch.attention_mask[:, 2:].tolist()
    assert batch.response_mask.sum(1).tolist() == [5, 1, 0, 3]
    assert batch.num_sequences == 4


def test_optional_columns_default_to_none_and_the_batch_is_frozen() -> None:
    batch = make_batch()
    assert batch.teacher_logprobs is batch.teacher_topk_ids is batch.teacher_topk_logprobs is None
    with pytest.raises(FrozenInstanceError):
        batch.advantages = torch.zeros(4)


def test_rows_can_be_taken_in_any_order() -> None:
    batch = make_batch()
    taken = batch.take(torch.tensor([2, 0]))
    assert taken.row_ids.tolist() == [23, 3]
    assert torch.equal(taken.input_ids, batch.input_ids[[2, 0]])
    assert taken.engine_logprobs is not None
    assert taken.teacher_logprobs is None


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("row_ids", (3,)),
        ("input_ids", (3, 8)),
        ("attention_mask", (4, 7)),
        ("response_tokens", (24,)),
        ("loss_mask", (4, 5)),
        ("token_counts", (4, 1)),
        ("advantages", (3,)),
        ("advantages", (4, 1)),
        ("engine_logprobs", (4, 5)),
        ("teacher_logprobs", (4, 5)),
        ("teacher_topk_ids", (4, 6)),
        ("teacher_topk_logprobs", (4, 5, 2)),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(field: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"{field} has shape"):
        replace(make_batch(), **{field: torch.zeros(shape, dtype=torch.long)})


def test_advantages_may_be_per_token() -> None:
    assert replace(make_batch(), advantages=torch.zeros(4, 6)).advantages.ndim == 2
