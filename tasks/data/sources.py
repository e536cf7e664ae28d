"""Which problems a configuration names."""

import importlib
import json
from collections.abc import Sequence
from typing import TypeVar

from configs.data import Data, PromptSource
from tasks.data.arithmetic import arithmetic_problems
from tasks.data.files import file_problems
from tasks.data.gsm8k import gsm8k_problems
from tasks.data.problems import Problem, Problems

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
            return provided(data, Problems, Problem)


def provided(data: PromptSource, kind: type[Parts], item: type[tuple]) -> Parts:
    """Return what the provider that `data` names makes of it.

    Args:
        data: the section.
        kind: what it is to return, a pair of lists.
        item: what the lists hold.

    Raises:
        ValueError: it cannot be imported, or a text holds what UTF-8 cannot.
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
    if not isinstance(parts, kind) or not all(isinstance(p, Sequence) and p for p in parts):
        raise TypeError(
            f"data.provider={data.provider!r} returned {type(parts).__name__}, expected "
            f"{kind.__module__}.{kind.__name__} with two lists that are not empty"
        )
    for name, part in zip(("train", "held_out"), parts, strict=True):
        for number, given in enumerate(part):
            _check_item(given, item, f"data.provider={data.provider!r}: {name}[{number}]")
    return parts


def _check_item(given: object, item: type[tuple], where: str) -> None:
    if not isinstance(given, item):
        raise TypeError(f"{where} is {given!r:.80}, expected {item.__module__}.{item.__name__}")
    for field, value in given._asdict().items():
        if not isinstance(value, str | list):
            raise TypeError(f"{where}.{field} is {value!r:.80}, expected text")
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}.{field} is no text that UTF-8 can hold ({error})") from error
