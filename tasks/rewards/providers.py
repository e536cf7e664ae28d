"""From the name in `reward.provider` to the function, and how that function wants to be called."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.rewards.reward import Score

BUILT_IN = {
    "exact_match": "tasks.rewards.exact_match:exact_match",
    "format": "tasks.rewards.answer_format:answer_format",
    "gsm8k": "tasks.rewards.gsm8k:gsm8k",
    "length": "tasks.rewards.length:length",
}
NEEDS_NO_WORKER = frozenset({"exact_match", "format", "length"})
"""They only look at characters, so they cannot hang; they run in the calling process."""

BATCHED = "responses"
"""The name of the first parameter of a function that scores several responses at once."""

NUM_TEXTS = 3
"""Every reward function is called with responses, answers and payloads; arguments come after."""


@dataclass(frozen=True)
class Provider:
    """A reward function, ready to be called with texts.

    Attributes:
        name: what the configuration calls it.
        function: takes the response's text, the answer and the payload, or lists of them.
        batched: whether it takes lists.
        is_async: whether what it returns is awaited.
        reads: names of the configured arguments that it got.
    """

    name: str
    function: Callable[..., Any]
    batched: bool = False
    is_async: bool = False
    reads: frozenset[str] = frozenset()

    @property
    def together(self) -> bool:
        """Whether the responses of a batch are scored at the same time, not in turn."""
        return self.batched or self.is_async


def load(name: str, arguments: Mapping[str, Any]) -> Provider:
    """Return the provider that `reward.provider` names, with those arguments that it can take.

    Raises:
        ValueError: it is neither a built-in nor the import path of a callable.
    """
    function = _find(name)
    parameters = list(inspect.signature(function).parameters.values())
    reads = {p.name for p in parameters[NUM_TEXTS:]} & set(arguments)
    chosen = {key: arguments[key] for key in sorted(reads)}
    return Provider(
        name,
        functools.partial(function, **chosen) if chosen else function,
        batched=bool(parameters) and parameters[0].name == BATCHED,
        is_async=inspect.iscoroutinefunction(function),
        reads=frozenset(reads),
    )


def checked(verdict: object, name: str) -> Score:
    """Return `verdict`, or raise `TypeError` if it is not a `Score`."""
    if isinstance(verdict, Score):
        return verdict
    raise TypeError(
        f"the reward function {name} returned {type(verdict).__name__}, expected"
        " tasks.rewards.reward.Score"
    )


def failure(error: Exception) -> Score:
    """Return the score of a response on which a reward function raised `error`."""
    return Score(None, "error", detail=f"{type(error).__name__}: {error}")


def _find(name: str) -> Callable[..., Any]:
    module, _, attribute = BUILT_IN.get(name, name).partition(":")
    remedy = f"expected {', '.join(BUILT_IN)} or package.module:function"
    if not module or not attribute:
        raise ValueError(f"reward.provider={name!r}: {remedy}")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward.provider={name!r}: {error}; {remedy}") from error
    if callable(function):
        return function
    raise ValueError(f"reward.provider={name!r}: {function!r} cannot be called; {remedy}")
