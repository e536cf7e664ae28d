"""The `reward` section: how a response is scored."""

from pydantic import Field

from configs.base import Section

JUDGE = "tasks.rewards.judge:judge"
"""The provider that asks a language model."""

JUDGE_REQUEST_TIMEOUT_S = 30.0
"""Seconds that it waits for one reply, unless `reward.arguments.request_timeout_s` says."""


class Reward(Section):
    """The reward function and what is done about failures."""

    provider: str = "exact_match"
    """`exact_match`, `gsm8k`, `format`, `length`, or `package.module:function` of your own, such
    as `tasks.rewards.judge:judge`."""

    parts: dict[str, float] = Field(default_factory=dict)
    """Provider to weight, for a weighted sum in place of the one `provider`; empty: none."""

    arguments: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Keyword arguments; each goes to every provider that has a parameter of that name."""

    timeout_s: float = Field(default=10.0, gt=0.0)
    """Seconds after which the process that scores a response is killed; its reward is null."""

    num_workers: int = Field(default=0, ge=0)
    """Processes that score, other than by `exact_match`, `format` and `length`, which need none;
    0: one per CPU, at most 8."""

    worker_memory_mib: int = Field(default=4096, ge=0)
    """Memory that one such process may allocate, so that it fails before the machine; 0: any."""

    max_error_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """The step stops when more than this fraction of responses could not be scored."""

    overlong_buffer_tokens: int = Field(default=0, ge=0)
    """Responses that reach into the last so many tokens are penalised linearly; 0: never."""

    overlong_penalty: float = Field(default=1.0, ge=0.0)
    """Largest overlong penalty, at `rollout.max_tokens` tokens."""


def title(provider: str) -> str:
    """Return the name of the part that a provider gives: `judge` for `package.module:judge`."""
    return provider.rpartition(":")[2]
