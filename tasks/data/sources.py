"""Which problems a configuration names."""

import importlib
from typing import TypeVar

from configs.data import Data, PromptSource
from tasks.data.arithmetic import arithmetic_problems
from tasks.data.files import file_problems
from tasks.data.gsm8k import gsm8k_problems
from tasks.data.problems import Problems

Parts = TypeVar("Parts")


def load_problems(data: Data) -> Problems:
    """Return the problems of the source that the `data` section names.

    Raises:
        ValueError: the section's settings leave nothing to train on or to evaluate on.
        TypeError: a provider returned something else than `Problems`.
    """
    train, held_out = _all_problems(data)
    return Problems(train[: data.num_train or None], held_out)


def _all_problems(data: Data) -> Problems:
    match data.source:
        case "arithmetic":
            return arithmetic_problems(
                digits=data.digits, seed=data.seed, num_held_out=data.num_held_out
            )
        case "gsm8k":
            return gsm8k_problems(num_held_out=data.num_held_out)
        case "file":
            return file_problems(data)
        case "provider":
            return provided(data, Problems)


def provided(data: PromptSource, kind: type[Parts]) -> Parts:
    """Return what the provider that `data` names makes of it.

    Raises:
        ValueError: it cannot be imported.
        TypeError: it returned something else than a `kind` with both parts filled.
    """
    module, _, name = data.provider.partition(":")
    try:
        provider = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"data.provider={data.provider!r}: {error}; expected package.module:function, with the "
            "module's directory on PYTHONPATH"
        ) from error
    parts = provider(data)
    if not isinstance(parts, kind) or not parts.train or not parts.held_out:
        raise TypeError(
            f"data.provider={data.provider!r} returned {type(parts).__name__}, expected "
            f"{kind.__module__}.{kind.__name__} with both parts filled"
        )
    return parts
