"""From the import path that a configuration names to an `Objective`."""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType

from configs.rl import Rl
from objectives.batch import ReferenceScorer, TeacherScorer
from objectives.objective import Objective

BUILDER_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

Primitive = bool | int | float | str

Builder = Callable[..., object]
"""`build_objective(rl, model_context) -> Objective`, with its configured arguments bound."""


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """What the trainer tells a builder about the policy.

    Attributes:
        name_or_path: identity of the policy's initial weights.
        max_response_length: tokens, the bound that responses are sampled under
            (`rollout.max_tokens`).
        tokenizer_digest: identity of the tokenizer; empty if the builder is only checked.
    """

    name_or_path: str
    max_response_length: int
    tokenizer_digest: str = ""


def load_builder(path: str, arguments: Mapping[str, Primitive] | None = None) -> Builder:
    """Import a builder and bind its keyword arguments.

    Args:
        path: `package.module:function`; the function stands at the top level of its module.
        arguments: keyword arguments by name; strings, numbers and booleans.

    Raises:
        ValueError: naming `rl.builder` or `rl.builder_arguments`, if the path is malformed, the
            module or the name does not exist, it is no importable function, or it does not take
            the arguments.

    >>> load_builder("objectives.grpo:build_objective").func.__name__
    'build_objective'
    """
    if not BUILDER_PATH.fullmatch(path):
        raise ValueError(f"rl.builder is {path!r}, expected 'package.module:function'")
    module_name, name = path.split(":")
    function: object = getattr(_import(module_name, path), name, None)
    if function is None:
        raise ValueError(f"rl.builder is {path!r}, but {module_name} has no {name!r}")
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        raise ValueError(
            f"rl.builder is {path!r}, which is {function!r}; expected a function defined with def "
            "at the top level of its module: lambdas and nested functions cannot be sent to workers"
        )
    bound = dict(arguments or {})
    _check_arguments(path, function, bound)
    return partial(function, **bound)


def _import(module_name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"rl.builder is {path!r}, but module {error.name!r} cannot be found; put the directory "
            "that holds it on PYTHONPATH or install it"
        ) from error


def _check_arguments(path: str, function: Builder, arguments: Mapping[str, object]) -> None:
    wrong = {key: value for key, value in arguments.items() if not isinstance(value, Primitive)}
    if wrong:
        raise ValueError(
            f"rl.builder_arguments holds {wrong} for rl.builder {path!r}, expected strings, "
            "numbers and booleans only"
        )
    try:
        inspect.signature(function).bind("rl", "model_context", **arguments)
    except TypeError as error:
        raise ValueError(
            f"rl.builder {path!r} cannot be called as (rl, model_context) with "
            f"rl.builder_arguments {sorted(arguments)}: {error}"
        ) from error


def build(
    builder: Builder,
    rl: Rl,
    model_context: ModelContext,
    *,
    reference_scorer: ReferenceScorer | None = None,
    teacher_scorer: TeacherScorer | None = None,
    staleness: int = 0,
) -> Objective:
    """Call a builder and check what it returns.

    The keyword arguments below reach the builder only when they are not the default, so a builder
    that needs none does not have to take them.

    Args:
        builder: from `load_builder`.
        rl: the resolved `rl` section.
        model_context: what the trainer knows about the policy.
        reference_scorer: scorer of the frozen reference, if the run has one.
        teacher_scorer: gives the logits of the teacher, if the run needs them.
        staleness: most policy versions between sampling and training.

    Raises:
        ValueError: naming `rl.builder`, if the builder returns something else than an `Objective`
            or does not take a keyword that this run needs.
    """
    extra = {
        "reference_scorer": reference_scorer,
        "teacher_scorer": teacher_scorer,
        "staleness": staleness,
    }
    given = {name: value for name, value in extra.items() if value}
    try:
        inspect.signature(builder).bind(rl, model_context, **given)
    except TypeError as error:
        raise ValueError(
            f"rl.builder {rl.builder!r} must take the keywords {sorted(given)} in this run: {error}"
        ) from error
    objective = builder(rl, model_context, **given)
    if isinstance(objective, Objective):
        return objective
    raise ValueError(
        f"rl.builder {rl.builder!r} returned a {type(objective).__name__}, expected an Objective"
    )
