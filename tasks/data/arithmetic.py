"""The embedded task: additions of two zero-padded numbers, `07+45=` with the answer `052`."""

import numpy as np

from tasks.data.problems import Problem, Problems

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"

VOCABULARY = [PAD, EOS, UNK, "<bos>", *"0123456789", *"+-*= ", "\n"]
"""The symbols of the task's character tokenizer, in the order of their ids."""


def arithmetic_problems(*, digits: int, seed: int, num_held_out: int) -> Problems:
    """Return all `10 ** (2 * digits)` additions in an order of the seed; the last are held out.

    Operands have `digits` digits and answers `digits + 1`, so that every problem has the same
    length and an answer starts with its most significant digit.

    Raises:
        ValueError: if no problem would be left to train on.

    >>> train, held_out = arithmetic_problems(digits=2, seed=0, num_held_out=500)
    >>> len(train), len(held_out), len(train[0].text), len(train[0].answer)
    (9500, 500, 6, 3)
    """
    total = 10 ** (2 * digits)
    if not 0 < num_held_out < total:
        raise ValueError(
            f"data.num_held_out={num_held_out}: expected 1 to {total - 1}, as there are "
            f"{total} additions of data.digits={digits} digits"
        )
    order = np.random.Generator(np.random.PCG64(seed)).permutation(total).tolist()
    problems = [_addition(*divmod(number, 10**digits), digits) for number in order]
    return Problems(problems[:-num_held_out], problems[-num_held_out:])


def _addition(left: int, right: int, digits: int) -> Problem:
    text = f"{left:0{digits}d}+{right:0{digits}d}="
    return Problem(
        problem_id=f"arithmetic/{text[:-1]}",
        source="arithmetic",
        text=text,
        answer=f"{left + right:0{digits + 1}d}",
    )
