"""What counts as the final answer of a response, and as the same number."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.rewards.answer_format import answer_format
from tasks.rewards.final_answer import after_marker, last_boxed, last_number
from tasks.rewards.gsm8k import gsm8k
from tasks.rewards.length import length
from tasks.rewards.read_number import read_number
from tests.rewards.second_reader import read

RIGHT, WRONG, UNPARSED = (1.0, "ok"), (0.0, "ok"), (0.0, "wrong-format")

ANSWERS = [
    ("#### 18", "18", RIGHT),
    ("####18", "18", RIGHT),
    ("#### 18.", "18", RIGHT),
    ("#### 18.0", "18", RIGHT),
    ("#### 18.00", "18", RIGHT),
    ("#### 018", "18", RIGHT),
    ("#### +18", "18", RIGHT),
    ("#### 19", "18", WRONG),
    ("#### 180", "18", WRONG),
    ("#### 1.8", "18", WRONG),
    ("#### -18", "18", WRONG),
    ("#### \u221218", "-18", RIGHT),
    ("#### -$18", "-18", RIGHT),
    ("#### - 18", "-18", RIGHT),
    ("#### 8,000", "8000", RIGHT),
    ("#### 8,000", "000", WRONG),
    ("#### 8000", "8,000", RIGHT),
    ("#### $8,000.00", "8000", RIGHT),
    ("#### \\$8{,}000", "8000", RIGHT),
    ("#### 8\\,000", "8000", RIGHT),
    ("#### 8\u202f000", "8000", RIGHT),
    ("#### 1,234,567", "1234567", RIGHT),
    ("#### 18,", "18", RIGHT),
    ("#### 3,4", "34", UNPARSED),
    ("#### 3, 4", "34", UNPARSED),
    ("#### (3, 4)", "34", UNPARSED),
    ("#### 12,34", "1234", UNPARSED),
    ("#### 1.234.567", "1234567", UNPARSED),
    ("#### 3 and 4", "3", UNPARSED),
    ("#### 3 or 4", "3", UNPARSED),
    ("#### 5:30", "5", UNPARSED),
    ("#### 50%", "50", RIGHT),
    ("#### 50\\%", "50", RIGHT),
    ("#### 50 percent", "50", RIGHT),
    ("#### 18 dollars", "18", RIGHT),
    ("#### 18 dollars per hour", "18", RIGHT),
    ("#### $18/hour", "18", RIGHT),
    ("#### 18km", "18", RIGHT),
    ("#### 18 m", "18", RIGHT),
    ("#### 18 \\text{ apples}", "18", RIGHT),
    ("#### 90^\\circ", "90", RIGHT),
    ("#### 18 (eighteen)", "18", RIGHT),
    ("#### 18 - the total", "18", RIGHT),
    ("#### 18. That is 3 * 6.", "18", RIGHT),
    ("#### The answer is 18.", "18", RIGHT),
    ("#### x = 18", "18", RIGHT),
    ("#### 3 * 6 = 18", "18", RIGHT),
    ("#### **18**", "18", RIGHT),
    ("#### $18$", "18", RIGHT),
    ("#### \\(18\\)", "18", RIGHT),
    ("#### 18 ####", "18", RIGHT),
    ("#### 18<|im_end|>", "18", RIGHT),
    ("#### 2 million", "2000000", RIGHT),
    ("#### 2 million", "2", WRONG),
    ("#### 1/2", "0.5", RIGHT),
    ("#### -3/4", "-0.75", RIGHT),
    ("#### \\frac{1}{2}", "1/2", RIGHT),
    ("#### -\\dfrac{8,000}{2}", "-4000", RIGHT),
    ("#### \\frac12", "0.5", RIGHT),
    ("#### 1 1/2", "1.5", RIGHT),
    ("#### 1\\frac{1}{2}", "3/2", RIGHT),
    ("#### 1/0", "0", WRONG),
    ("#### .5", "1/2", RIGHT),
    ("#### 1e3", "1000", RIGHT),
    ("#### 1e999999999", "1", UNPARSED),
    ("#### 5x", "5", UNPARSED),
    ("#### eighteen", "18", UNPARSED),
    ("####", "18", UNPARSED),
    ("18 ####", "18", UNPARSED),
    ("#### 3 + 15", "18", RIGHT),
    ("#### 3 + 15", "3", WRONG),
    ("#### 3 \\times 6", "18", RIGHT),
    ("#### (3)*(6)", "18", RIGHT),
    ("#### 3* 6", "18", RIGHT),
    ("#### 3! + 12", "18", RIGHT),
    ("#### 2**3", "8", RIGHT),
    ("#### \\sqrt{16}", "4", RIGHT),
    ("#### 17\n#### 18", "18", RIGHT),
    ("#### 18\n#### 17", "18", WRONG),
    ("####\n18", "18", RIGHT),
    ("#### 18\nWait, 5 more things", "18", RIGHT),
    ("\\boxed{18}", "18", RIGHT),
    ("so \\boxed{\\frac{36}{2}} of 5", "18", RIGHT),
    ("\\boxed{\\text{18 apples}}", "18", RIGHT),
    ("\\boxed{17} or \\boxed{18}", "18", RIGHT),
    ("\\boxed{18", "18", UNPARSED),
    ("\\boxed{}, 18", "18", UNPARSED),
    ("#### 17 but \\boxed{18}", "18", WRONG),
    ("The answer is 18.", "18", RIGHT),
    ("It costs $8,000.", "8000", RIGHT),
    ("3 bags of 6 are 18 apples!", "18", RIGHT),
    ("We get 18 (as 3*6).", "6", UNPARSED),
    ("half, that is 1 1/2.", "1.5", RIGHT),
    ("the pair 3,4", "4", UNPARSED),
    ("total=18", "18", RIGHT),
    ("**18**.", "18", RIGHT),
    ("<answer>18</answer>", "18", RIGHT),
    ("no idea", "18", UNPARSED),
    ("", "18", UNPARSED),
    ("\u0661\u0668", "18", UNPARSED),
]


@pytest.mark.parametrize(("response", "answer", "verdict"), ANSWERS)
def test_the_verdict_on_a_written_answer(
    response: str, answer: str, verdict: tuple[float, str]
) -> None:
    score = gsm8k(response, f"so it is\n#### {answer}", "")
    assert (score.value, score.status) == verdict
    assert score.parts == {"gsm8k": verdict[0]}


def _written(random_: random.Random) -> tuple[str, Fraction | None]:
    """Return a random way to write a random number, and the number, or None if it is none."""
    size = random_.choice([9, 99, 9999, 9999999])
    whole, under = random_.randint(0, size), random_.randint(2, 99)
    over = random_.randint(1, under)
    cents = random_.randint(0, 99)
    sign = random_.choice(["", "", "", "-", "\u2212"])
    separator = random_.choice([",", ",", "{,}", "\u202f"])
    grouped = f"{whole:,}".replace(",", separator)
    text, value = random_.choice(
        [
            (str(whole), Fraction(whole)),
            (grouped, Fraction(whole)),
            (f"{grouped}.{cents:02d}", whole + Fraction(cents, 100)),
            (f"{whole}.{cents:02d}", whole + Fraction(cents, 100)),
            (f".{cents:02d}", Fraction(cents, 100)),
            (f"{over}/{under}", Fraction(over, under)),
            (f"\\frac{{{over}}}{{{under}}}", Fraction(over, under)),
            (f"\\dfrac{{{whole}}}{{{under}}}", Fraction(whole, under)),
            (f"{whole} {over}/{under}", whole + Fraction(over, under)),
            (f"{whole}\\frac{{{over}}}{{{under}}}", whole + Fraction(over, under)),
            (f"{whole} million", Fraction(whole * 10**6)),
            (f"{whole}, {over}", None),
            (f"{whole % 100},{cents:02d}", None),
            (f"{whole} + {over}", None),
        ]
    )
    currency = random_.choice(["", "", "$", "\\$", "\u20ac"])
    unit = random_.choice(["", "", "", "%", "\\%", " dollars", " km", "\\text{ apples}"])
    before, after = random_.choice(
        [
            ("", ""),
            ("", "."),
            ("**", "**"),
            ("\\(", "\\)"),
            ("$", "$"),
            ("x = ", ""),
            ("", " each."),
        ]
    )
    number = None if value is None else -value if sign else value
    return f"{before}{sign}{currency}{text}{unit}{after}", number


def test_two_readers_and_the_writer_agree_on_a_thousand_answers() -> None:
    random_ = random.Random(4)
    disagreements = []
    for _ in range(1000):
        text, value = _written(random_)
        got = (read_number(text), read(text))
        if got != (value, value):
            disagreements.append((text, value, *got))
    assert disagreements == []


@given(st.text("0123456789,.$%/\\{}()#-+*= fracboxed\u2212\n", max_size=80) | st.text(max_size=20))
def test_reading_and_looking_never_fail_whatever_the_text(text: str) -> None:
    read_number(text)
    last_boxed(text)
    answer_format(text, "", "")
    found = last_number(text)
    assert (found is None) == (not any(digit in text for digit in "0123456789"))


@pytest.mark.parametrize(
    "piece", ["1,", "\\text{", "\\frac{1}{", "####", "\\boxed{", "9", "( 1", "$"]
)
def test_long_garbage_is_read_in_no_time(piece: str) -> None:
    text = piece * 20_000
    read_number(text)
    gsm8k(f"#### {text}", "1", "")
    gsm8k(text, "1", "")


@given(st.fractions(max_denominator=10**6), st.integers(1, 50))
def test_a_number_is_read_exactly(number: Fraction, factor: int) -> None:
    text = f"{number.numerator * factor}/{number.denominator * factor}"
    assert read_number(text) == number


def test_only_a_marked_answer_counts_if_so_configured() -> None:
    assert gsm8k("it is 18", "18", "", marked_only=True).status == "wrong-format"
    assert gsm8k("it is \\boxed{18}", "18", "", marked_only=True).value == 1.0
    assert gsm8k("it is #### 18", "18", "", marked_only=True).value == 1.0


def test_the_answer_that_was_found_is_shown() -> None:
    assert gsm8k("so #### 19 dollars\nok", "18", "").detail == "19 dollars"


def test_a_problem_without_a_number_as_its_answer_is_an_error_of_the_data() -> None:
    with pytest.raises(ValueError, match="'eighteen' is no number"):
        gsm8k("#### 18", "eighteen", "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6 * 3\n#### 18", 1.0),
        ("6 * 3\n#### $1,800 in all", 1.0),
        ("####\n18", 1.0),
        ("6 * 3 = 18", 0.0),
        ("####", 0.25),
        ("#### eighteen", 0.25),
        ("#### 3\n#### 4", 0.25),
        ("", 0.0),
    ],
)
def test_the_format_is_one_marker_with_a_number_after_it(text: str, value: float) -> None:
    score = answer_format(text, "19", "", marker_value=0.25)
    assert (score.value, score.parts) == (value, {"format": value})
    assert score.status == ("ok" if value == 1.0 else "wrong-format")
    assert answer_format(text, "19", "").value == float(value == 1.0)
    assert answer_format(text.replace("####", "=>"), "19", "", marker="=>").value == float(
        value == 1.0
    )


def test_length_is_a_fraction_of_the_full_length_and_never_more_than_one() -> None:
    values = [length("a" * n, "", "", full_characters=4).value for n in (0, 1, 4, 9)]
    assert values == [0.0, 0.25, 1.0, 1.0]


def test_a_marker_that_only_closes_is_passed_over() -> None:
    assert after_marker("## 5 ## 6 ##", "##") == "6"
    assert after_marker("5", "##") is None


def test_braces_within_a_box_are_kept() -> None:
    assert last_boxed("\\boxed{1} and \\fbox{\\frac{a}{b}}") == "\\frac{a}{b}"
    assert last_boxed("none") is None
