"""The `data` section: where prompts come from."""

from typing import Literal

from pydantic import Field

from configs.base import Section


class Data(Section):
    """The prompt source and its order."""

    source: Literal["arithmetic"] = "arithmetic"
    """`arithmetic`: all additions of two numbers of `digits` digits, made locally."""

    digits: int = Field(default=2, ge=1, le=3)
    """Digits of each operand of the `arithmetic` source."""

    seed: int = Field(default=0, ge=0)
    """Seed of the split into training and held-out problems and of the order of prompts."""

    num_held_out: int = Field(default=500, ge=1)
    """Problems that are never trained on and that evaluation draws from."""
