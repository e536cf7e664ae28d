"""Log-probabilities and entropies of chosen tokens without the [tokens, vocabulary] matrix.

Shapes: `N` tokens, `H` hidden features, `V` vocabulary.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

from objectives.primitives.shapes import require_shape

CHUNK_ELEMENTS = 2**26
"""Most logits that exist at once: 256 MB of float32. What is computed from them takes as much again
or, with entropies, twice as much."""


@overload
def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    with_entropy: Literal[False] = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor: ...


@overload
def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    with_entropy: Literal[True],
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]: ...


@overload
def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    with_entropy: bool,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor | tuple[Tensor, Tensor]: ...


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    with_entropy: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return log softmax(hidden @ weight.T / temperature) at the targets, [N], in nats.

    Logits of at most `chunk_elements` numbers exist at any time, in the forward and in the backward
    pass, which computes them again. When all of them fit into one chunk they are kept instead.
    Products and sums are float32 (float64 for float64 input), also for bfloat16 features and under
    autocast.

    Args:
        hidden: [N, H] features; carries gradient.
        weight: [V, H] output embedding; carries gradient.
        targets: [N] int64 token ids in [0, V).
        temperature: the logits are divided by this, above 0.
        with_entropy: also return the entropy [N] of each distribution, differentiable as well.
        chunk_elements: most logits that exist at once; at least one token's are.

    Returns:
        The log-probabilities [N], or these and the entropies [N].

    Raises:
        ValueError: if shapes disagree or the temperature is not positive.

    >>> hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [0.0]])
    >>> selected_logprobs(hidden, weight, torch.tensor([1]), 1.0)
    tensor([-0.6931])
    """
    require_shape("hidden", hidden, (None, None))
    require_shape("weight", weight, (None, hidden.shape[1]))
    require_shape("targets", targets, (hidden.shape[0],))
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected a number above 0")
    plan = _Plan(max(1, chunk_elements // weight.shape[0]), temperature, with_entropy)
    with torch.autocast(hidden.device.type, enabled=False):
        if hidden.shape[0] <= plan.rows:
            logits = _logits(hidden, weight, temperature)
            logprobs, entropy = _score_kept(logits, targets, with_entropy=with_entropy)
        else:
            logprobs, entropy = _ChunkedLogprobs.apply(hidden, weight, targets, plan)
    return (logprobs, entropy) if with_entropy else logprobs


class _Plan(NamedTuple):
    rows: int
    temperature: float
    with_entropy: bool


def _wide(tensor: Tensor) -> Tensor:
    # A bfloat16 number is exact in TF32 too: where that is allowed, tensor cores lose nothing here.
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _split(tensor: Tensor, rows: int) -> list[Tensor]:
    return [tensor[start : start + rows] for start in range(0, tensor.shape[0], rows)]


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = _wide(hidden) @ _wide(weight).T
    return logits if temperature == 1 else logits.div_(temperature)


def _score_kept(logits: Tensor, targets: Tensor, *, with_entropy: bool) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy (read only if asked for), each [N]."""
    everything = logits.log_softmax(-1)
    logprobs = everything.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return logprobs, -(everything.exp() * everything).sum(-1) if with_entropy else logprobs


def _score(logits: Tensor, targets: Tensor, *, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probability, log-normaliser and entropy (zeros if not asked for), each [N]."""
    normaliser = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - normaliser
    if not with_entropy:
        return logprobs, normaliser, torch.zeros_like(normaliser)
    probabilities = (logits - normaliser.unsqueeze(-1)).exp_()
    return logprobs, normaliser, normaliser - probabilities.mul_(logits).sum(-1)


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    plan: _Plan


class _ChunkedLogprobs(Function):
    """Log-probability and entropy of the targets, one chunk of rows after the other."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]: ...

    @staticmethod
    def forward(
        ctx: _Context, hidden: Tensor, weight: Tensor, targets: Tensor, plan: _Plan
    ) -> tuple[Tensor, Tensor]:
        wide = _wide(weight)
        parts = [
            _score(_logits(rows, wide, plan.temperature), ids, with_entropy=plan.with_entropy)
            for rows, ids in zip(_split(hidden, plan.rows), _split(targets, plan.rows), strict=True)
        ]
        logprobs, normaliser, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, targets, normaliser, entropy)
        ctx.plan = plan
        return logprobs, entropy

    @staticmethod
    def backward(ctx: _Context, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        grad_hidden, grad_weight = _backward(ctx, *grad_outputs)
        return grad_hidden, grad_weight, None, None


@once_differentiable
def _backward(
    ctx: _Context, grad_logprobs: Tensor, grad_entropy: Tensor
) -> tuple[Tensor, Tensor | None]:
    hidden, weight, targets, normaliser, entropy = ctx.saved_tensors
    wide, plan = _wide(weight), ctx.plan
    grad_hidden = torch.empty_like(hidden)
    grad_weight = torch.zeros_like(wide) if ctx.needs_input_grad[1] else None
    for start in range(0, hidden.shape[0], plan.rows):
        part = slice(start, start + plan.rows)
        with torch.autocast(hidden.device.type, enabled=False):
            logprobs = _logits(hidden[part], wide, plan.temperature)
            logprobs -= normaliser[part].unsqueeze(-1)
            grad = _grad_logits(
                logprobs,
                targets[part],
                grad_logprobs[part],
                (grad_entropy[part], entropy[part]) if plan.with_entropy else None,
            )
            grad /= plan.temperature
            grad_hidden[part] = grad @ wide
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, _wide(hidden[part]))
    return grad_hidden, None if grad_weight is None else grad_weight.to(weight)


def _grad_logits(
    logprobs: Tensor,
    targets: Tensor,
    grad_logprobs: Tensor,
    entropy: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return the gradient of the scaled logits [n, V]: g (onehot - p) - g_H p (log p + H).

    It takes the place of `logprobs`.
    """
    factor = grad_logprobs.unsqueeze(-1)
    if entropy is not None:
        grad_entropy, value = (part.unsqueeze(-1) for part in entropy)
        factor = (logprobs + value).mul_(grad_entropy).add_(factor)
    grad = logprobs.exp_().mul_(factor).neg_()
    return grad.scatter_add_(-1, targets.unsqueeze(-1), grad_logprobs.unsqueeze(-1))
