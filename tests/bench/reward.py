"""The reward of the benchmark as a provider of ours."""

from tasks.rewards.reward import Score
from tests.bench.work import distinct


def variety(response_text: str, answer: str, payload: str) -> Score:
    """Return the share of different characters: cheap, and hardly ever equal within a group."""
    return Score(distinct(response_text))
