"""Which source of prompts a configuration names."""

from configs.data import Data
from tasks.data.arithmetic import Arithmetic
from tasks.data.prompt_source import PromptSource


def open_source(data: Data) -> PromptSource:
    """Open the source that the `data` section names.

    Raises:
        ValueError: the section's numbers leave nothing to train on or to evaluate.
    """
    match data.source:
        case "arithmetic":
            return Arithmetic(digits=data.digits, seed=data.seed, num_held_out=data.num_held_out)
