from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from objectives.primitives.logprobs import selected_logprobs

N, H, V = 7, 4, 11
CHUNKS = [1, V, 3 * V, N * V]
"""One token, one token exactly, a split that leaves a remainder, everything at once."""


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (N,), generator=g)


def _dense(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> list[Tensor]:
    logprobs = torch.log_softmax(hidden @ weight.T / temperature, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return [logprobs[torch.arange(len(targets)), targets], entropy]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_the_dense_matrix(chunk: int, temperature: float) -> None:
    ours, theirs = _inputs(), _inputs()
    upstream = torch.linspace(-1, 2, N, dtype=torch.float64)
    values = selected_logprobs(*ours, temperature, with_entropy=True, chunk_elements=chunk)
    expected = _dense(*theirs, temperature)
    torch.testing.assert_close(list(values), expected)
    for pair in (values, expected):
        (pair[0] * upstream + pair[1] * upstream.flip(0)).sum().backward()
    for got, want in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("with_entropy", [False, True])
def test_every_chunking_passes_gradcheck(chunk: int, with_entropy: bool) -> None:
    hidden, weight, targets = _inputs()

    def run(h: Tensor, w: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return selected_logprobs(
            h, w, targets, 0.7, with_entropy=with_entropy, chunk_elements=chunk
        )

    assert gradcheck(run, (hidden, weight))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_without_entropy_the_log_probabilities_come_alone(chunk: int) -> None:
    hidden, weight, targets = _inputs()
    value = selected_logprobs(hidden, weight, targets, 1.3, chunk_elements=chunk)
    torch.testing.assert_close(value, _dense(hidden, weight, targets, 1.3)[0])


@pytest.mark.parametrize("chunk", [V, N * V])
def test_a_frozen_head_gets_no_gradient(chunk: int) -> None:
    hidden, weight, targets = _inputs()
    frozen = weight.detach()
    selected_logprobs(hidden, frozen, targets, 1.0, chunk_elements=chunk).sum().backward()
    reference = _inputs()[0]
    _dense(reference, frozen, targets, 1.0)[0].sum().backward()
    assert frozen.grad is None
    torch.testing.assert_close(hidden.grad, reference.grad)


@pytest.mark.parametrize("chunk", [V, N * V])
@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_features_are_multiplied_and_summed_in_float32(chunk: int, autocast: bool) -> None:
    hidden, weight, targets = _inputs(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = selected_logprobs(hidden, weight, targets, 1.0, chunk_elements=chunk)
    value.sum().backward()
    wide = [x.detach().float().requires_grad_() for x in (hidden, weight)]
    expected = _dense(*wide, targets, 1.0)[0]
    expected.sum().backward()
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    assert hidden.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(hidden.grad, wide[0].grad.bfloat16())
    torch.testing.assert_close(weight.grad, wide[1].grad.bfloat16())


class _Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return out


@pytest.mark.parametrize("with_entropy", [False, True])
def test_no_more_than_a_chunk_of_logits_ever_exists(with_entropy: bool) -> None:
    tokens, vocabulary = 64, 50
    hidden = torch.randn(tokens, 2, requires_grad=True)
    weight = torch.randn(vocabulary, 2, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.long)
    with _Largest() as largest:
        value = selected_logprobs(
            hidden, weight, targets, 1.0, with_entropy=with_entropy, chunk_elements=4 * vocabulary
        )
        torch.cat(value).sum().backward() if with_entropy else value.sum().backward()
    assert largest.size == 4 * vocabulary


def test_no_tokens_give_no_values() -> None:
    hidden = torch.zeros(0, H, requires_grad=True)
    value = selected_logprobs(hidden, torch.ones(V, H), torch.zeros(0, dtype=torch.long), 1.0)
    assert value.shape == (0,)
    value.sum().backward()


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    hidden, weight, targets = _inputs()
    value = selected_logprobs(hidden, weight, targets, 1.0, chunk_elements=V).sum()
    (gradient,) = torch.autograd.grad(value, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        gradient.sum().backward()


def test_shapes_and_temperatures_are_checked() -> None:
    hidden, weight, targets = _inputs()
    with pytest.raises(ValueError, match="weight has shape"):
        selected_logprobs(hidden, weight[:, :2], targets, 1.0)
    with pytest.raises(ValueError, match="targets has shape"):
        selected_logprobs(hidden, weight, targets[:3], 1.0)
    with pytest.raises(ValueError, match="temperature is 0"):
        selected_logprobs(hidden, weight, targets, 0.0)
