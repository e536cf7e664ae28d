"""Rewards of the end-to-end tests, on `PYTHONPATH` there as a user's own would be."""

from tasks.rewards.reward import Score


def variety(response_text: str, answer: str, payload: str) -> Score:
    """Give a model that knows nothing a signal: the share of different characters."""
    return Score(len(set(response_text)) / 16)


def broken(response_text: str, answer: str, payload: str) -> Score:
    raise RuntimeError("no score today")
