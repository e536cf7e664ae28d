"""The `evaluation` section: accuracy on held-out prompts."""

from pydantic import Field

from configs.base import Section


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
