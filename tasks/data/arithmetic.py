"""The embedded task: additions of two zero-padded numbers, `07+45=` with the answer `052`."""

import hashlib
from functools import cached_property

import numpy as np

from tasks.data.prompt_source import Prompt

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"

VOCABULARY = [PAD, EOS, UNK, "<bos>", *"0123456789", *"+-*= ", "\n"]
"""The symbols of the task's character tokenizer, in the order of their ids."""

MAX_DIGITS = 3


class Arithmetic:
    """All `10 ** (2 * digits)` additions in an order of the seed; the last ones are held out.

    Operands have `digits` digits and answers `digits + 1`, so that every problem has the same
    length and an answer starts with its most significant digit.

    >>> source = Arithmetic(digits=2, seed=0, num_held_out=500)
    >>> source.num_prompts, len(source.row(0).text), len(source.row(0).answer)
    (9500, 6, 3)
    """

    def __init__(self, *, digits: int, seed: int, num_held_out: int) -> None:
        """Set up the source; nothing is made before the first row is asked for.

        Raises:
            ValueError: `digits` is not 1 to 3, or no problem is left to train on or to hold out.
        """
        if not 1 <= digits <= MAX_DIGITS:
            raise ValueError(f"data.digits={digits}: expected 1 to {MAX_DIGITS}")
        total = 10 ** (2 * digits)
        if not 0 < num_held_out < total:
            raise ValueError(
                f"data.num_held_out={num_held_out}: expected 1 to {total - 1}, as there are"
                f" {total} additions of {digits} digits"
            )
        self.digits = digits
        self.seed = seed
        self.num_held_out = num_held_out
        self.num_prompts = total - num_held_out

    @cached_property
    def _order(self) -> np.ndarray:
        total = self.num_prompts + self.num_held_out
        return np.random.Generator(np.random.PCG64(self.seed)).permutation(total).astype(np.int64)

    def row(self, index: int) -> Prompt:
        """Return training problem `index`, in `range(num_prompts)`."""
        if not 0 <= index < self.num_prompts:
            raise IndexError(f"row {index}: the source has {self.num_prompts} training problems")
        return self._problem(index)

    def held_out_row(self, index: int) -> Prompt:
        """Return held-out problem `index`, in `range(num_held_out)`."""
        if not 0 <= index < self.num_held_out:
            raise IndexError(f"row {index}: the source has {self.num_held_out} held-out problems")
        return self._problem(self.num_prompts + index)

    def fingerprint(self) -> str:
        """Return a SHA-256 over the problems, their order and which of them are held out."""
        parts = f"arithmetic digits={self.digits} held_out={self.num_held_out}".encode()
        return hashlib.sha256(parts + self._order.astype("<i8").tobytes()).hexdigest()

    def _problem(self, position: int) -> Prompt:
        left, right = divmod(int(self._order[position]), 10**self.digits)
        text = f"{left:0{self.digits}d}+{right:0{self.digits}d}="
        return Prompt(
            prompt_id=f"arithmetic/{text[:-1]}",
            source="arithmetic",
            text=text,
            answer=f"{left + right:0{self.digits + 1}d}",
        )
