"""How a module is spread over the ranks."""

from accelerate import Accelerator
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from configs.trainer import Strategy


def spread(module: nn.Module, accelerator: Accelerator, strategy: Strategy) -> nn.Module:
    """Return the module spread over the ranks, each of which holds the same weights.

    Args:
        module: holds a transformers model as `model`.
        accelerator: knows the ranks; with one process the module comes back as it is.
        strategy: `ddp`: each rank keeps a copy and gradients are averaged; `fsdp2`: each rank keeps
            a part of every parameter, its gradient and its moments.
    """
    if accelerator.num_processes == 1 or strategy == "ddp":
        return accelerator.prepare_model(module)
    # Accelerate would quietly fall back to copies on a CPU.
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for block in _blocks(module):
        fully_shard(block, mesh=mesh)
    # Without `reshard_after_forward` a pass without gradients would leave the root whole, and the
    # optimizer would be handed parameters that it does not know.
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
    _require_parts(module)
    return module


def _require_parts(module: nn.Module) -> None:
    whole = [name for name, p in module.named_parameters() if not isinstance(p, DTensor)]
    if whole:
        raise RuntimeError(f"trainer.strategy=fsdp2 left parameters whole: {whole[:8]}")


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module whose names are those of one process."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the repeated layers, which transformers says may not be split."""
    names = set(getattr(module.model, "_no_split_modules", None) or ())
    return [block for block in module.modules() if type(block).__name__ in names]
