"""Turns a validation error into sentences for the person who wrote the setting."""

from difflib import get_close_matches
from typing import cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from configs.run import RunConfig

MOVED = {
    "rl.objective": "rl.grpo_surrogate (`degenerate` is now `legacy_pg`) or rl.builder",
    "rl.objective_mode": "rl.distillation_mode",
}
"""Keys of the system that this one descends from, and where their meaning lives now."""


def explain(error: ValidationError) -> str:
    """Return a line for each problem: the key, what it got, what was expected, the remedy."""
    return "\n".join(_line(detail) for detail in error.errors())


def _line(detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "extra_forbidden":
            return f"{key}: unknown key (got {detail['input']!r}); {_remedy(key)}"
        case "missing":
            return f"{key}: required, but the recipe does not set it"
        case _:
            return f"{key}={detail['input']!r}: {detail['msg']}{_range(detail)}"


def _range(detail: ErrorDetails) -> str:
    value = detail["input"]
    if detail["type"] == "int_type":
        return f"; expected a whole number, got {type(value).__name__}"
    return f", got {type(value).__name__}" if detail["type"].endswith("_type") else ""


def _remedy(key: str) -> str:
    if key in MOVED:
        return f"it was renamed: use {MOVED[key]}"
    section, _, name = key.rpartition(".")
    fields = _fields(section)
    close = get_close_matches(name, fields, n=1)
    if close:
        return f"did you mean {'.'.join(filter(None, (section, close[0])))}?"
    return f"known keys{f' of {section}' if section else ''}: {', '.join(sorted(fields))}"


def _fields(section: str) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in filter(None, section.split(".")):
        model = cast("type[BaseModel]", model.model_fields[part].annotation)
    return list(model.model_fields)
