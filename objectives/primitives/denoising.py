"""The forward process of diffusion, what a network is to predict in it, and by how much it errs.

Shapes: `N` points, `...` the shape of one.
"""

from torch import Tensor

from objectives.primitives.shapes import require_shape

PREDICTIONS = ("noise", "velocity")
"""What a denoiser may be trained to predict."""


def noised(clean: Tensor, noise: Tensor, signal: Tensor, spread: Tensor) -> Tensor:
    """Return signal * clean + spread * noise, [N, ...].

    Args:
        clean: [N, ...].
        noise: [N, ...], standard normal.
        signal: [N], sqrt(alpha_bar) of DDPM (arXiv:2006.11239).
        spread: [N], sqrt(1 - alpha_bar).

    Raises:
        ValueError: if shapes disagree.
    """
    require_shape("noise", noise, tuple(clean.shape))
    return _along(signal, clean) * clean + _along(spread, clean) * noise


def denoising_target(
    clean: Tensor, noise: Tensor, signal: Tensor, spread: Tensor, *, prediction: str
) -> Tensor:
    """Return what the network is to predict, [N, ...].

    `noise` is the noise itself; `velocity` is signal * noise - spread * clean (arXiv:2202.00512).

    Raises:
        ValueError: for another `prediction`, or if shapes disagree.

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> denoising_target(2 * one, one, one[0] * 0.8, one[0] * 0.6, prediction="velocity")
    tensor([[-0.4000]])
    """
    if prediction not in PREDICTIONS:
        raise ValueError(f"prediction is {prediction!r}, expected one of {', '.join(PREDICTIONS)}")
    require_shape("noise", noise, tuple(clean.shape))
    if prediction == "noise":
        return noise
    return _along(signal, clean) * noise - _along(spread, clean) * clean


def denoising_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the squared error of each point, a mean over its coordinates, [N].

    Raises:
        ValueError: if shapes disagree.

    >>> import torch
    >>> denoising_error(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([5.])
    """
    require_shape("predicted", predicted, tuple(target.shape))
    return (predicted - target).square().flatten(1).mean(1)


def _along(factor: Tensor, points: Tensor) -> Tensor:
    require_shape("signal or spread", factor, (points.shape[0],))
    return factor.reshape(-1, *[1] * (points.ndim - 1))
