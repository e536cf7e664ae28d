"""The `reward` section: how a response is scored."""

from pydantic import Field

from configs.base import Section


class Reward(Section):
    """The reward function and what is done about failures."""

    provider: str = "exact_match"
    """`exact_match`, or `package.module:function` of a `(text, answer, payload) -> Score`."""

    max_error_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """The step stops when more than this fraction of responses could not be scored."""

    overlong_buffer_tokens: int = Field(default=0, ge=0)
    """Responses that reach into the last so many tokens are penalised linearly; 0: never."""

    overlong_penalty: float = Field(default=1.0, ge=0.0)
    """Largest overlong penalty, at `rollout.max_tokens` tokens."""
