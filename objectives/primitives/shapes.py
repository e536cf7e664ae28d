"""Shape checks at the door of a primitive: by name, once, before any arithmetic."""

import torch
from torch import Tensor


def require_shape(name: str, tensor: Tensor, expected: tuple[int | None, ...]) -> None:
    """Refuse a tensor whose shape is not the expected one.

    Args:
        name: what the caller calls the tensor.
        tensor: the tensor to check.
        expected: one entry per axis; None admits any length.

    Raises:
        ValueError: on another rank or another length of an axis, naming both shapes.

    >>> require_shape("mask", torch.ones(2, 3), (2, None))
    """
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected) and all(
        want is None or have == want for have, want in zip(shape, expected, strict=True)
    )
    if not fits:
        wanted = ["any" if want is None else str(want) for want in expected]
        raise ValueError(f"{name} has shape {list(shape)}, expected [{', '.join(wanted)}]")


def keep(mask: Tensor) -> Tensor:
    """Return the mask as booleans, whatever number type it came in.

    >>> keep(torch.tensor([1.0, 0.0])).tolist()
    [True, False]
    """
    return mask != 0


def require_token_matrix(**tensors: Tensor) -> None:
    """Check that the first tensor is [B, T] and that the others have its shape.

    Raises:
        ValueError: naming the tensor that differs.
    """
    expected: tuple[int | None, ...] = (None, None)
    for name, tensor in tensors.items():
        require_shape(name, tensor, expected)
        expected = tuple(tensor.shape)


def spread_advantages(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return [B, T] advantages from one per sequence [B] or one per token [B, T]; 0 where masked.

    Raises:
        ValueError: for any other shape.

    >>> spread_advantages(torch.tensor([2.0]), torch.tensor([[1, 0]]))
    tensor([[2., 0.]])
    """
    if advantages.ndim == 1:
        require_shape("advantages", advantages, (mask.shape[0],))
        advantages = advantages.unsqueeze(1)
    else:
        require_shape("advantages", advantages, tuple(mask.shape))
    return torch.where(keep(mask), advantages, 0)
