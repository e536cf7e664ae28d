"""What a reward function is: text in, a score out, and nothing of tables or tasks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real

LARGEST = 3.4028234e38
"""Of the numbers that a table's float32 columns hold."""

PART_NAME = re.compile(r"[A-Za-z0-9_.\- ]+(/[A-Za-z0-9_.\- ]+)*")


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
        if self.value is not None and not abs(self.value) <= LARGEST:
            raise ValueError(
                f"a score is {self.value}, expected a finite number that float32 holds; None with "
                "status 'error' says that a response could not be scored"
            )
        if not isinstance(self.parts, Mapping):
            raise TypeError(f"a score's parts are {self.parts!r}, expected numbers by name")
        for name, part in self.parts.items():
            _check_part(name, part)


def _check_part(name: object, part: object) -> None:
    if not isinstance(name, str) or not PART_NAME.fullmatch(name):
        raise ValueError(
            f"a score has a part named {name!r}, expected characters A-Z a-z 0-9 _ . - / and space"
        )
    if not isinstance(part, Real) or not abs(part) <= LARGEST:
        raise ValueError(
            f"the part {name!r} of a score is {part!r}, expected a finite number that float32 holds"
        )


RewardFunction = Callable[[str, str, str], Score]
"""Called with a response's text, the prompt's answer and its payload; at the top of a module.

Three other forms are recognised. An `async def` is awaited, several responses side by side. A
function whose first parameter is named `responses` gets lists of the three texts and returns a list
of scores; what it is given together is a matter of speed, so a score must depend on its own texts
alone. Parameters after these three are filled from `reward.arguments` by name.
"""
