"""The `evaluation` section: accuracy on held-out prompts."""

from typing import Annotated

from pydantic import Field

from configs.base import Section
from configs.reward import Reward, title

ACCURACIES = frozenset({"exact_match", "gsm8k"})
"""Rewards that are 1 for a right answer and 0 for every other."""

WHOLE_REWARD = ""
"""Stands for the value of the one reward function, in place of a named part."""


class Evaluation(Section):
    """Sampling of its own, which touches no training state."""

    every: int = Field(default=25, ge=0)
    """Steps between evaluations, beside those of the first and the last policy; 0: only those."""

    num_prompts: int = Field(default=500, ge=1)
    """Held-out prompts, taken in their fixed order."""

    num_samples: int = Field(default=1, ge=1)
    """Responses per prompt; more than one needs a temperature."""

    temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""

    pass_at: list[Annotated[int, Field(ge=1)]] = []
    """Values of k for which pass@k is estimated, each at most `num_samples`; empty: 1, 2, 4 and so
    on where there are several samples, none else."""

    correct_part: str = ""
    """Part of the reward that is at least 1 for a right response; empty: the one of `exact_match`
    and `gsm8k` among `reward.parts`, or the value of the one reward function."""

    @property
    def ks(self) -> list[int]:
        """Every k that pass@k is estimated for."""
        powers = [2**power for power in range(self.num_samples.bit_length())]
        return self.pass_at or (powers if self.num_samples > 1 else [])


def correct_parts(evaluation: Evaluation, reward: Reward) -> list[str]:
    """Return the parts that could say whether a response is right; more or less than one is vague.

    >>> correct_parts(Evaluation(), Reward(parts={"gsm8k": 1.0, "format": 0.2}))
    ['gsm8k']
    >>> correct_parts(Evaluation(), Reward(provider="exact_match")) == [WHOLE_REWARD]
    True
    """
    if evaluation.correct_part:
        return [evaluation.correct_part]
    if not reward.parts:
        return [WHOLE_REWARD]
    titles = [title(provider) for provider in reward.parts]
    return titles if len(titles) == 1 else [name for name in titles if name in ACCURACIES]
