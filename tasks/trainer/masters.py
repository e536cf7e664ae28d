"""AdamW for weights of few bits: updates add up in float32, the model gets them rounded.

An update of AdamW is about as large as the learning rate, and bfloat16 numbers of a usual weight's
size (0.02) are 1e-4 apart: updates of 1e-6 would all be rounded away.
"""

from collections.abc import Iterable

import torch
from torch import nn


class MasterAdamW(torch.optim.AdamW):
    """AdamW over float32 copies of a model's parameters.

    Attributes:
        parameters: the model's; gradients are read from them and results rounded into them.
        masters: their float32 copies, which the moments belong to.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], **settings: object) -> None:
        self.parameters = list(parameters)
        self.masters = [
            nn.Parameter(parameter.detach().to(torch.float32, copy=True))
            for parameter in self.parameters
        ]
        super().__init__(self.masters, **settings)

    @torch.no_grad()
    def step(self) -> None:
        """Take a step on the copies and round it into the model."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        super().step()
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.copy_(master)
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002
        """Clear the gradients of the model, which are all that are kept."""
        for parameter in self.parameters:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()


def needs_masters(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether some of the parameters have fewer bits than float32."""
    return any(parameter.dtype.itemsize < torch.float32.itemsize for parameter in parameters)
