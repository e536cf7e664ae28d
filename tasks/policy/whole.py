"""Tensors that ranks hold in parts, and values that only one rank computes.

In a process that trains alone all of this is the identity.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

T = TypeVar("T")


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors put together from their parts, on the first rank; nothing on the others.

    Every rank must call it with the same names. One tensor at a time is whole on all of them.
    """
    if not dist.is_initialized():
        return dict(tensors)
    found = {}
    for name, tensor in tensors.items():
        value = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if dist.get_rank() == 0:
            found[name] = value.cpu()
    return found


def part_of(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def parted_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor, the same on every rank, in parts as those of a parameter."""
    if not isinstance(parameter, DTensor):
        return tensor
    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def on_first_rank(compute: Callable[[], T]) -> T:
    """Return what a function returns on the first rank, to all ranks; they wait for it."""
    if not dist.is_initialized():
        return compute()
    shared = [compute() if dist.get_rank() == 0 else None]
    device = torch.device("cuda") if torch.cuda.is_available() else None
    dist.broadcast_object_list(shared, device=device)
    return shared[0]  # pyright: ignore[reportReturnType] - the first rank's
