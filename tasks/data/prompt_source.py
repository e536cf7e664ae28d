"""What a source of prompts is: indexed rows, split into training and held-out ones."""

from typing import NamedTuple, Protocol


class Prompt(NamedTuple):
    """One problem: `payload` is JSON for a reward that needs more than the answer."""

    prompt_id: str
    source: str
    text: str
    answer: str
    payload: str = ""


class PromptSource(Protocol):
    """Rows by index, the same ones in every process that opens the same configuration."""

    num_prompts: int
    num_held_out: int

    def row(self, index: int) -> Prompt:
        """Return training row `index`, in `range(num_prompts)`."""
        ...

    def held_out_row(self, index: int) -> Prompt:
        """Return held-out row `index`, in `range(num_held_out)`; none is a training row."""
        ...

    def fingerprint(self) -> str:
        """Return a digest that changes when a row, the order or the split does."""
        ...
