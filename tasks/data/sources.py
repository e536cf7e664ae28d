"""Which problems a configuration names."""

import importlib

from configs.data import Data
from tasks.data.arithmetic import arithmetic_problems
from tasks.data.files import file_problems
from tasks.data.problems import Problems


def load_problems(data: Data) -> Problems:
    """Return the problems of the source that the `data` section names.

    Raises:
        ValueError: the section's settings leave nothing to train on or to evaluate on.
        TypeError: a provider returned something else than `Problems`.
    """
    match data.source:
        case "arithmetic":
            return arithmetic_problems(
                digits=data.digits, seed=data.seed, num_held_out=data.num_held_out
            )
        case "file":
            return file_problems(data)
        case "provider":
            return _provided(data)


def _provided(data: Data) -> Problems:
    module, _, name = data.provider.partition(":")
    try:
        provider = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"data.provider={data.provider!r}: {error}; expected package.module:function, with the "
            "module's directory on PYTHONPATH"
        ) from error
    problems = provider(data)
    if not isinstance(problems, Problems) or not problems.train or not problems.held_out:
        raise TypeError(
            f"data.provider={data.provider!r} returned {type(problems).__name__}, expected "
            "tasks.data.problems.Problems with both parts filled"
        )
    return problems
