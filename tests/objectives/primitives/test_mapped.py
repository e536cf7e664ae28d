import pytest
import torch
from torch import Tensor

from objectives.primitives.mapped import map_logits

TOKENS, HIDDEN, VOCABULARY = 7, 4, 5


def tensors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=g).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, HIDDEN, generator=g).to(dtype).requires_grad_()
    return hidden, weight


def two_values(logits: Tensor, positions: Tensor) -> Tensor:
    """Depend on the logits and on which token it is; the second value carries no gradient."""
    first = (1 + positions) * logits.log_softmax(-1).square().sum(-1)
    return torch.stack([first, logits.detach().amax(-1)], -1)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_values_and_gradients_do_not_depend_on_the_size_of_chunks(rows: int) -> None:
    hidden, weight = tensors()
    expected = two_values(hidden @ weight.T, torch.arange(TOKENS))
    whole = torch.autograd.grad(expected[:, 0].sin().sum(), (hidden, weight))
    values = map_logits(hidden, weight, two_values, chunk_elements=rows * VOCABULARY)
    assert values.shape == (TOKENS, 2)
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
    split = torch.autograd.grad(values[:, 0].sin().sum(), (hidden, weight))
    torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-12)


def test_no_more_logits_than_a_chunk_exist_at_once() -> None:
    hidden, weight = tensors()
    seen: list[int] = []

    def count(logits: Tensor, positions: Tensor) -> Tensor:
        seen.append(len(logits))
        return logits[:, :1]

    map_logits(hidden, weight, count, chunk_elements=3 * VOCABULARY).sum().backward()
    assert seen[:3] == [3, 3, 1]
    assert sorted(seen[3:]) == [1, 3, 3]


def test_logits_of_bfloat16_features_are_float32() -> None:
    hidden, weight = tensors(torch.bfloat16)
    values = map_logits(hidden, weight, lambda logits, _: logits[:, :1], chunk_elements=VOCABULARY)
    assert values.dtype == torch.float32
    expected = (hidden.float() @ weight.float().T)[:, :1]
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)
    values.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_a_head_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight has shape \[5, 4\]"):
        map_logits(torch.zeros(2, 3), torch.zeros(5, 4), two_values)
