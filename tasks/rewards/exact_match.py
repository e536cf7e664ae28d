"""The reward for tasks whose answers are digits: all of them right, in order."""

from tasks.rewards.reward import Score

RIGHT = Score(1.0, parts={"exact_match": 1.0})
WRONG = Score(0.0, parts={"exact_match": 0.0})
NOT_AN_ANSWER = Score(0.0, "wrong-format", {"exact_match": 0.0})


def exact_match(response_text: str, answer: str, _payload: str) -> Score:
    """Return 1 if the response is the answer, both stripped of white space, else 0.

    A response that is not made of digits alone, as answers are, is 0 with status `wrong-format`.

    >>> exact_match(" 052", "052", "").value, exact_match("52", "052", "").status
    (1.0, 'ok')
    """
    text = response_text.strip()
    if text == answer.strip():
        return RIGHT
    return WRONG if text.isascii() and text.isdigit() else NOT_AN_ANSWER
