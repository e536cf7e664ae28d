"""Answers that are expressions, not numbers. Parsing can hang: only call this in a worker."""

import logging
import re
from fractions import Fraction

from math_verify import parse, verify

MAX_CHARACTERS = 200
_EXPRESSION = re.compile(r"[\w\s+\-*/^(){}\[\]\\.|!<>=]*")

# It warns at every call that it has no time limit; here the worker process is the limit.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def equals(expression: str, number: Fraction) -> bool | None:
    r"""Return whether `expression` has the value of `number`; None if it cannot be read.

    >>> equals(r"3 \\times 6", Fraction(18)), equals("3, 4", Fraction(34))
    (True, None)
    """
    expression = expression.replace("**", "^")
    if len(expression) > MAX_CHARACTERS or not _EXPRESSION.fullmatch(expression):
        return None
    value = parse(f"${expression}$", parsing_timeout=None)
    if not value:
        return None
    gold = parse(rf"$\frac{{{number.numerator}}}{{{number.denominator}}}$", parsing_timeout=None)
    return verify(gold, value, timeout_seconds=None)
