"""Values per token from full next-token logits, without the [tokens, vocabulary] matrix.

Shapes: `N` tokens, `n` tokens of a chunk, `H` hidden features, `V` vocabulary, `C` values.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

from objectives.primitives.shapes import require_shape

CHUNK_ELEMENTS = 2**24
"""Most logits that exist at once; a function of them keeps several tensors of that size."""

PerToken = Callable[[Tensor, Tensor], Tensor]
"""`(logits [n, V], positions [n]) -> values [n, C]`, a pure function.

Each row of values depends on the same row of logits alone; `positions` says which of all `N` tokens
the rows are. It is called once in the forward and once more in the backward pass.
"""


def map_logits(
    hidden: Tensor, weight: Tensor, per_token: PerToken, *, chunk_elements: int = CHUNK_ELEMENTS
) -> Tensor:
    """Return `per_token` of the logits hidden @ weight.T, [N, C].

    Logits of at most `chunk_elements` numbers exist at any time; a chunk's are computed again in
    the backward pass, unless there is only one chunk. Logits are float32, or float64 for float64
    input, also for bfloat16 features and under autocast.

    Args:
        hidden: [N, H] features; carries gradient.
        weight: [V, H] output embedding; carries gradient.
        per_token: what is computed from the logits.
        chunk_elements: most logits that exist at once; at least one token's do.

    Raises:
        ValueError: if shapes disagree.

    >>> hidden, weight = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
    >>> map_logits(hidden, weight, lambda logits, positions: logits.amax(-1, keepdim=True))
    tensor([[1.],
            [2.]])
    """
    require_shape("hidden", hidden, (None, None))
    require_shape("weight", weight, (None, hidden.shape[1]))
    rows = max(1, chunk_elements // weight.shape[0])
    positions = torch.arange(hidden.shape[0], device=hidden.device)
    if hidden.shape[0] <= rows:
        return _values(hidden, weight, positions, per_token)
    parts = [slice(start, start + rows) for start in range(0, hidden.shape[0], rows)]
    return torch.cat(
        [_Recomputed.apply(hidden[part], weight, positions[part], per_token) for part in parts]
    )


def _values(hidden: Tensor, weight: Tensor, positions: Tensor, per_token: PerToken) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        return per_token(_wide(hidden) @ _wide(weight).T, positions)


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    per_token: PerToken


class _Recomputed(Function):
    """The values of a chunk, whose logits do not outlive the forward pass."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: object, **kwargs: object) -> Tensor: ...

    @staticmethod
    def forward(
        ctx: _Context, hidden: Tensor, weight: Tensor, positions: Tensor, per_token: PerToken
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, positions)
        ctx.per_token = per_token
        return _values(hidden, weight, positions, per_token)

    @staticmethod
    def backward(ctx: _Context, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = _backward(ctx, *grad_outputs)
        return grad_hidden, grad_weight, None, None


@once_differentiable
def _backward(ctx: _Context, grad_values: Tensor) -> tuple[Tensor, Tensor]:
    hidden, weight, positions = ctx.saved_tensors
    leaves = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    with torch.enable_grad():
        values = _values(*leaves, positions, ctx.per_token)
    grad_hidden, grad_weight = torch.autograd.grad(values, leaves, grad_values)
    return grad_hidden, grad_weight


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
