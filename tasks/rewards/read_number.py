r"""Numbers as people and models write them: `$8,000.00`, `1 1/2`, `\frac{1}{2}`, `18 dollars`."""

import re
from fractions import Fraction

MAX_DIGITS = 60
"""Longer numbers are not read: no answer has so many digits, and their arithmetic is slow."""

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_PLAIN = rf"(?:{_WHOLE}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{{1,2}}(?!\w))?"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s?(?:(?P<whole>\d+)\s(?:and\s)?(?=\d+\s?/\s?\d))?"
    rf"(?P<over>{_PLAIN})(?:\s?/\s?(?P<under>{_PLAIN}))?"
)
_REST = re.compile(
    r"""
    (?!(?:\s*[a-z]+){0,2}\s*\b(?:and|or|to|plus|minus|times)\s+-?\.?\d)  # no second number
    (?:\s*(?:$|%|</?[a-z|]|[/(]\s*[a-z])         # a percentage, a rate, a remark
      |[.:?"'_](?!\d)|[,;](?!\s*[-+]?\.?\d)      # the end of a sentence
      |[!)\]](?!\s*[-+*/^\\(\d])                # the end of a remark
      |\*(?:$|[.,;:!?)]|\s+[a-z])               # the end of an emphasis
      |\s+[-\u2013\u2014]+\s+[a-z]               # a dash and words
      |\s*(?!(?:x|pi)\b)[a-z]{2}                 # a unit
      |\s+(?!x\b)[a-z]\b|[mghsl](?![\w(^*/+]))   # a short one
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SCALE = re.compile(r"\s?(thousand|million|billion|trillion)\b", re.IGNORECASE)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_WORDS = re.compile(r"[^\d\\+*/^]*(?<![\w.,/^\\-])(?=[+-]?\.?\d)")

_CHARACTERS = str.maketrans(
    dict.fromkeys("\u2212\ufe63\uff0d", "-")
    | dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f", "\u2009")
    | dict.fromkeys("$\u20ac\u00a3\u00a5\u200b", "")
    | {"\u2044": "/", "\u00d7": "*", "~": "\u2009"}
)
_FIGURE = rf"\s*(-?{_PLAIN})\s*"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"</?\w{1,20}>|<\|[^|<>]{1,40}\|>", " "),
        (r"\\[()\[\]]", " "),
        (r"\\[,;:! ]", "\u2009"),
        (r"\\%", "%"),
        (r"\{,\}", ","),
        (r"(?<=\d)\u2009(?=\d{3}(?!\d))", ","),
        (r"\^\s*(?:\\circ|\{\\circ\})", " "),
        (r"\\(?:left|right|displaystyle)(?![a-z])", ""),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r" \1 "),
        (r"\\[dt]frac(?![a-z])", r"\\frac"),
        (rf"\\frac\s*\{{{_FIGURE}\}}\s*\{{{_FIGURE}\}}", r" \1/\2"),
        (r"\\frac\s*(\d)\s*(\d)", r" \1/\2"),
        (r"(?<!\d)\*\*|\*\*(?!\d)", ""),
        (r"\s+", " "),
    )
)


def read_number(text: str) -> Fraction | None:
    r"""Return the one number that `text` states, exactly, or None.

    Thousands separators, currency and percent signs, units, words around the number, LaTeX markup
    and a final period are ignored; `50%` is 50. Pairs (`3,4`), ranges, times of day, misplaced
    separators (`12,34`) and expressions (`3 + 4`) are not one number.

    >>> [str(read_number(text)) for text in ("$8,000.", "1 1/2", r"\frac{1}{2}", "18.0", "3,4")]
    ['8000', '3/2', '1/2', '18', 'None']
    """
    text = plain(text).rpartition("=")[2].strip(" *_`'\"")
    match = _NUMBER.match(text)
    if match is None and (words := _WORDS.match(text)):
        match = _NUMBER.match(text, words.end())
    if match is None:
        return None
    scale = _SCALE.match(text, match.end())
    rest = text[scale.end() if scale else match.end() :]
    if _REST.match(rest) is None:
        return None
    value = _value(match)
    return value * _SCALES[scale[1].lower()] if scale and value is not None else value


def plain(text: str) -> str:
    r"""Return `text` without currency signs, tags, LaTeX spacing and text commands.

    >>> plain(r"\(\dfrac{1}{2}\text{ km}\)").strip()
    '1/2 km'
    """
    text = text.replace("\\$", "").translate(_CHARACTERS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > MAX_DIGITS:
        return None
    whole, over, under = (
        Fraction((match[name] or default).replace(",", ""))
        for name, default in (("whole", "0"), ("over", "0"), ("under", "1"))
    )
    if under == 0:
        return None
    value = whole + over / under
    return -value if match["sign"] == "-" else value
