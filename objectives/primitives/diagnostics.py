"""The per-token diagnostics that every surrogate returns beside its loss."""

import torch
from torch import Tensor


def surrogate_diagnostics(
    log_ratio: Tensor,
    *,
    clipped_low: Tensor | None = None,
    clipped_high: Tensor | None = None,
    dual_clipped: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return detached [B, T] tensors: the log-ratio in nats and, as 0 or 1, where a bound binds.

    A surrogate without one of the bounds leaves it out and reports zeros.
    """
    ratio = log_ratio.detach()
    flags = {
        "clipped_low": clipped_low,
        "clipped_high": clipped_high,
        "dual_clipped": dual_clipped,
    }
    return {"log_ratio": ratio} | {
        name: torch.zeros_like(ratio) if flag is None else flag.to(ratio.dtype)
        for name, flag in flags.items()
    }
