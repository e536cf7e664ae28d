"""The length of a response as a reward; a negative weight in a sum makes it a penalty."""

from tasks.rewards.reward import Score


def length(
    response_text: str, _answer: str, _payload: str, *, full_characters: int = 1000
) -> Score:
    """Return the number of characters over `full_characters`, at most 1.

    >>> length("abc", "", "", full_characters=4).value
    0.75
    """
    value = min(len(response_text) / full_characters, 1.0)
    return Score(value, parts={"length": value})
