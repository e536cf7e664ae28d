"""The reward for the form of a response: its answer after `####`."""

from tasks.rewards.final_answer import after_marker
from tasks.rewards.read_number import read_number
from tasks.rewards.reward import Score


def answer_format(
    response_text: str,
    _answer: str,
    _payload: str,
    *,
    marker: str = "####",
    marker_value: float = 0.0,
) -> Score:
    """Return 1 if `marker` stands once in the response and a number after it, right or wrong.

    Other responses have status `wrong-format` and are 0, or `marker_value` if they have the marker
    at all: a first step for a policy that never gets everything right.

    >>> [answer_format(text, "", "", marker_value=0.25).value for text in ("#### 3", "####", "3")]
    [1.0, 0.25, 0.0]
    """
    num_markers = response_text.count(marker)
    after = after_marker(response_text, marker)
    if num_markers == 1 and after and read_number(after) is not None:
        return Score(1.0, parts={"format": 1.0})
    value = marker_value if num_markers else 0.0
    return Score(value, "wrong-format", {"format": value})
