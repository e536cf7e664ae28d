"""What a reward function is: text in, a score out, and nothing of tables or tasks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on one response.

    Attributes:
        value: the reward; None if the response could not be scored, which is not a reward of 0.
        status: `ok`, `wrong-format` (scored, but not of the form of an answer), `error` or
            `timeout`; None as the value goes with the last two and only with them.
        parts: named components of the value, for metrics.
        detail: for a person; only its beginning is kept.
    """

    value: float | None
    status: str = "ok"
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        expected = ("error", "timeout") if self.value is None else ("ok", "wrong-format")
        if self.status not in expected:
            raise ValueError(
                f"a score of {self.value} has status {self.status!r}, expected one of {expected}"
            )
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(
                f"a score is {self.value}, expected a finite number; None with status 'error' says"
                " that a response could not be scored"
            )


RewardFunction = Callable[[str, str, str], Score]
"""Called with a response's text, the prompt's answer and its payload; at the top of a module.

Three other forms are recognised. An `async def` is awaited, several responses side by side. A
function whose first parameter is named `responses` gets lists of the three texts and returns a list
of scores; what it is given together is a matter of speed, so a score must depend on its own texts
alone. Parameters after these three are filled from `reward.arguments` by name.
"""
