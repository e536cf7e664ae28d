"""Problems: what a prompt source gives, before any tokenizer has seen it."""

from typing import NamedTuple


class Problem(NamedTuple):
    """One problem; `payload` is JSON for a reward that needs more than the answer."""

    problem_id: str
    source: str
    text: str
    answer: str
    payload: str = ""


class Problems(NamedTuple):
    """Problems to train on and problems to evaluate on; none is in both."""

    train: list[Problem]
    held_out: list[Problem]
