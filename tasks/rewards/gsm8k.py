"""The reward for word problems with a number as the answer, in the manner of GSM8K."""

import re
from fractions import Fraction

from tasks.rewards.expressions import equals
from tasks.rewards.final_answer import after_marker, last_boxed, last_number
from tasks.rewards.read_number import plain, read_number
from tasks.rewards.reward import Score

MARKER = "####"
_OPERATION = re.compile(r"\\[a-z]+|[+*/^(!]|-\s*[\d(]")


def gsm8k(response_text: str, answer: str, _payload: str, *, marked_only: bool = False) -> Score:
    r"""Return 1 if the final answer of the response equals the number in `answer`, else 0.

    The final answer is what follows the last `####`, else the last `\\boxed{}`, else the last
    number. A response without a final answer, or with one that is no number or expression, is 0
    with status `wrong-format`.

    Args:
        response_text: the response.
        answer: a number, or a solution that ends in `#### ` and a number.
        marked_only: whether a number that neither `####` nor `\\boxed{}` marks is no answer.

    Raises:
        ValueError: `answer` holds no number.

    >>> gsm8k("That makes 8 * 1000 = $8,000.", "... #### 8000", "").value
    1.0
    """
    gold = _gold(answer)
    marked = after_marker(response_text, MARKER)
    if marked is None:
        marked = last_boxed(response_text)
    if marked is not None:
        return _verdict(marked, is_right=_is_right(marked, gold))
    found = None if marked_only else last_number(response_text)
    value = None if found is None else read_number(found)
    return _verdict(found or "", is_right=None if value is None else value == gold)


def _gold(answer: str) -> Fraction:
    marked = after_marker(answer, MARKER)
    gold = read_number(answer if marked is None else marked)
    if gold is None:
        raise ValueError(
            f"the answer {answer[-80:]!r} is no number, expected one such as '#### 18'"
        )
    return gold


def _is_right(text: str, gold: Fraction) -> bool | None:
    value = read_number(text)
    if value is not None:
        return value == gold
    expression = plain(text).rpartition("=")[2].strip(" .*_`")
    return equals(expression, gold) if _OPERATION.search(expression) else None


def _verdict(found: str, *, is_right: bool | None) -> Score:
    value = float(bool(is_right))
    status = "wrong-format" if is_right is None else "ok"
    return Score(value, status, {"gsm8k": value}, found)
