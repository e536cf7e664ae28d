"""Another way to read a number, for comparison: a scanner over characters, without expressions.

It knows what `tests/rewards/test_gsm8k.py` generates, and nothing of the product's reader.
"""

from decimal import Decimal
from fractions import Fraction

SCALES = {"thousand": 3, "million": 6, "billion": 9}
DASHES = "-\u2212"


def read(text: str) -> Fraction | None:
    for noise in ("\\text", "\\(", "\\)", "\\dfrac", "\\tfrac", "\\$", "$", "\u20ac", "**", "\\%"):
        text = text.replace(noise, {"\\dfrac": "\\frac", "\\tfrac": "\\frac"}.get(noise, ""))
    text = text.replace("{,}", ",").replace("\u202f", ",").rstrip(" .").lstrip()
    if "=" in text:
        text = text[text.rindex("=") + 1 :].strip()
    start = next((i for i, c in enumerate(text) if c.isdigit() or c in ".\\"), None)
    if start is None:
        return None
    negative = text[:start].rstrip()[-1:] in tuple(DASHES)
    value, left = _amount(text[start:])
    words = left.translate(str.maketrans("%{}", "   ")).split()
    if value is None or any(c.isdigit() or c in ",+*" for c in left):
        return None
    if words and words[0] in SCALES:
        value *= 10 ** SCALES[words[0]]
    return -value if negative else value


def _amount(text: str) -> tuple[Fraction | None, str]:
    if text.startswith("\\frac"):
        over, _, rest = text[len("\\frac{") :].partition("}{")
        under, _, rest = rest.partition("}")
        return Fraction(_plain(over)) / Fraction(_plain(under)), rest
    word = ""
    for character in text:
        if not (character.isdigit() or character in ".,"):
            break
        word += character
    left = text[len(word) :]
    first = _plain(word)
    if first is None:
        return None, left
    if left.startswith("\\frac") or (left[:1] == " " and left[1:2].isdigit() and "/" in left):
        more, rest = _amount(left.strip())
        return (None if more is None else Fraction(first) + more), rest
    if left.startswith("/") and left[1:2].isdigit():
        under, rest = _amount(left[1:])
        return (None if not under else Fraction(first) / under), rest
    return Fraction(first), left


def _plain(word: str) -> Decimal | None:
    whole, point, decimals = word.strip().rstrip(",").partition(".")
    groups = whole.split(",")
    regular = len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])
    if "." in decimals or "," in decimals or (len(groups) > 1 and not (regular and groups[0])):
        return None
    return Decimal("".join(groups) + point + decimals)
