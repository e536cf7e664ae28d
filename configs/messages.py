"""Turns a validation error into sentences for the person who wrote the setting."""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import cast

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from configs.run import RunConfig

MOVED = {
    "rl.objective": "rl.grpo_surrogate (`degenerate` is now `legacy_pg`) or rl.builder",
    "rl.objective_mode": "rl.distillation_mode",
}
"""Keys of the system that this one descends from, and where their meaning lives now."""

KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list, such as [1,2]",
    "dict_type": "a mapping of names to values",
    "model_type": "a section of settings",
}
"""What a setting must be, by pydantic's name for the error."""

LEAST_LIKENESS = 0.75
"""Keys less like the one written, by `difflib`'s ratio, are not suggested."""

HERE = 0.1
"""What being in the section that was written adds to the likeness of a key."""


def explain(error: ValidationError, root: type[BaseModel] = RunConfig) -> str:
    """Return a line for each problem: the key, what it got, what was expected, the remedy."""
    lines = (_line(detail, root) for detail in error.errors())
    return "\n".join(dict.fromkeys(lines))


def _line(detail: ErrorDetails, root: type[BaseModel]) -> str:
    key, field = _key(detail["loc"], root)
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key (got {value!r}); {_remedy(key, root)}"
        case "missing":
            return f"{key}: required, but the recipe does not set it; add {key} to it"
        case _:
            return f"{key}={value!r}: expected {_expected(detail)}{_got(value)}{_default(field)}"


def _key(
    location: tuple[int | str, ...], root: type[BaseModel] = RunConfig
) -> tuple[str, FieldInfo | None]:
    """Return the dotted key of an error and its field, without pydantic's names of union members.

    >>> _key(("rl", "max_steps"))[0], _key(("rl", "builder_arguments", "gain", "bool"))[0]
    ('rl.max_steps', 'rl.builder_arguments.gain')
    """
    model: type[BaseModel] | None = root
    field: FieldInfo | None = None
    parts: list[str] = []
    for part in map(str, location):
        field = model.model_fields.get(part) if model else field
        model = _section(field) if field else None
        parts.append(part)
    tagged = field is not None and parts[-1] in {"bool", "int", "float", "str"}
    return ".".join(parts[:-1] if tagged else parts), field


def _expected(detail: ErrorDetails) -> str:
    if "builder_arguments" in detail["loc"]:
        return "a number, true, false or text"
    told = re.sub(r"^Input should be ", "", detail["msg"])
    told = re.sub(r"^(greater|less) ", r"a value \1 ", told)
    told = re.sub(r"^String should match pattern ", "text that matches ", told)
    return KINDS.get(detail["type"], told)


def _got(value: object) -> str:
    return ", got null" if value is None else f", got {type(value).__name__}"


def _default(field: FieldInfo | None) -> str:
    if field is None or field.is_required() or _section(field):
        return ""
    return f"; the default is {field.default!r}"


def _remedy(key: str, root: type[BaseModel]) -> str:
    if key in MOVED:
        return f"it was renamed: use {MOVED[key]}"
    section, _, name = key.rpartition(".")
    close = _closest(section, name, root)
    if close:
        return f"did you mean {' or '.join(close)}?"
    fields = ", ".join(sorted(_model(section, root).model_fields))
    return f"known keys{f' of {section}' if section else ''}: {fields}"


def _closest(section: str, name: str, root: type[BaseModel] = RunConfig) -> list[str]:
    """Return the keys whose last word is likest to `name`; the same section wins a tie.

    >>> _closest("rl", "grup_size"), _closest("rl", "kl_bta"), _closest("rl", "max_tokens")
    (['rollout.group_size'], ['rl.kl_beta'], ['rollout.max_tokens'])
    """
    scores = {key: _likeness(name, key, section) for key in _keys(root)}
    best = max(scores.values())
    return [key for key, score in scores.items() if score == best and best >= LEAST_LIKENESS]


def _likeness(name: str, key: str, section: str) -> float:
    place, _, leaf = key.rpartition(".")
    bonus = HERE if place == section else 0.0
    return SequenceMatcher(None, name, leaf).ratio() + bonus


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        section = _section(field)
        if section:
            yield from _keys(section, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _model(section: str, root: type[BaseModel]) -> type[BaseModel]:
    model = root
    for part in filter(None, section.split(".")):
        model = cast("type[BaseModel]", model.model_fields[part].annotation)
    return model
