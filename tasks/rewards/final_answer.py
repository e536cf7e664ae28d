r"""Where in a response its final answer stands: after `####`, in `\boxed{}`, or the last number."""

import re

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LAST_WORD_WITH_A_DIGIT = re.compile(r"\S*\d\S*(?=[^\d]*\Z)")
_WHOLE_BEFORE_A_RATIO = re.compile(r"(?<!\S)[+-]?\d+ \Z")
WINDOW = 200
"""Characters around the last digit of a text within which its last number is looked for."""


def after_marker(text: str, marker: str) -> str | None:
    """Return the first line with text after the last `marker` that has some; None without marker.

    A marker that nothing follows gives "": the answer was announced and not given.

    >>> after_marker("6 * 3 #### 18 dollars", "####"), after_marker("#### ", "####")
    ('18 dollars', '')
    """
    before, found, after = text.rpartition(marker)
    while found and not after.strip():
        before, found, after = before.rpartition(marker)
    if found:
        return after.strip().splitlines()[0].strip()
    return "" if marker in text else None


def last_boxed(text: str) -> str | None:
    r"""Return what is in the last closed `\boxed{}`; "" if none is closed, None if there is none.

    >>> last_boxed(r"so \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return None
    depth = 1
    for end in range(starts[-1], len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[starts[-1] : end].strip()
    return ""


def last_number(text: str) -> str | None:
    """Return the last word with a digit in it and what follows; None if there is no digit.

    >>> last_number("3 bags cost $1,200. Right?")
    '$1,200. Right?'
    """
    digit = max(text.rfind(digit) for digit in "0123456789")
    around = text[max(digit - WINDOW, 0) : digit + WINDOW]
    word = _LAST_WORD_WITH_A_DIGIT.search(around)
    if digit < 0 or word is None:
        return None
    whole = _WHOLE_BEFORE_A_RATIO.search(around[: word.start()]) if "/" in word[0] else None
    return around[whole.start() if whole else word.start() :].lstrip("([{<\"'*_`:~").strip()
