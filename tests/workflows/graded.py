"""Rewards of the end-to-end tests, on `PYTHONPATH` there as a user's own would be."""

from tasks.rewards.reward import Score


def variety(response_text: str, answer: str, payload: str) -> Score:
    """Give a model that knows nothing a signal: the share of different characters."""
    return Score(len(set(response_text)) / 16)


def broken(response_text: str, answer: str, payload: str) -> Score:
    raise RuntimeError("no score today")


def uneven(response_text: str, answer: str, payload: str) -> Score:
    """Give every response one part and some of them another."""
    parts = {"whole": float("1" in response_text)}
    if "2" in response_text:
        parts["some"] = 1.0
    return Score(0.5, parts=parts)
