"""From a recipe and overrides to a checked `RunConfig`.

A recipe is YAML that holds only what differs; `base` names the recipes or fragments that it is
merged over, in order.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from configs.base import Section
from configs.dpo import DpoConfig
from configs.dpo_preflight import check_dpo
from configs.messages import explain
from configs.preflight import check
from configs.run import RunConfig

RECIPES = Path(__file__).parent / "recipes"

Kind = TypeVar("Kind", bound=Section)


def resolve(recipe: str, overrides: str | Sequence[str] = "") -> RunConfig:
    """Return the validated config of a recipe with overrides applied.

    Args:
        recipe: path of a YAML file, or a name under `configs/recipes` without its suffix.
        overrides: `section.field=value` words, as one shell-quoted string or as a list.

    Raises:
        ValueError: naming every unknown key, wrong value or contradictory setting, with a remedy.
    """
    config = validate(read(recipe, overrides))
    check(config)
    return config


def resolve_dpo(recipe: str, overrides: str | Sequence[str] = "") -> DpoConfig:
    """Return the same of a recipe for preference pairs."""
    config = validate_as(DpoConfig, read(recipe, overrides))
    check_dpo(config)
    return config


def resolve_any(recipe: str, overrides: str | Sequence[str] = "") -> RunConfig | DpoConfig:
    """Return the same of any recipe; one with a `dpo` section is for preference pairs."""
    kind = resolve_dpo if "dpo" in load_recipe(recipe) else resolve
    return kind(recipe, overrides)


def read(recipe: str, overrides: str | Sequence[str] = "") -> dict[str, object]:
    """Return the plain nested values of a recipe with overrides applied."""
    words = _split(overrides) if isinstance(overrides, str) else list(overrides)
    return _merge(load_recipe(recipe), [_override(word) for word in words])


def validate(values: Mapping[str, object]) -> RunConfig:
    """Return the typed config of plain nested values, or raise naming each bad key."""
    return validate_as(RunConfig, values)


def validate_as(kind: type[Kind], values: Mapping[str, object]) -> Kind:
    """Return the typed config of one kind of run, or raise naming each bad key."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, kind)) from None


def load_recipe(recipe: str, seen: tuple[Path, ...] = ()) -> DictConfig:
    """Return a recipe merged over its bases."""
    path = find_recipe(recipe, seen[-1].parent if seen else Path.cwd())
    if path in seen:
        chain = " -> ".join(p.stem for p in (*seen, path))
        raise ValueError(f"recipe {path.stem!r} is its own base ({chain}); remove one `base` entry")
    body = _read(path)
    names = _bases(body.pop("base", []), path)
    merged = OmegaConf.merge(*(load_recipe(name, (*seen, path)) for name in names), body)
    return cast("DictConfig", merged)


def _bases(value: object, path: Path) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, ListConfig):
        return [str(name) for name in cast("list[object]", value)]
    if value == []:
        return []
    raise ValueError(f"recipe {path}: base is {value!r}, expected a recipe or a list of recipes")


def find_recipe(recipe: str, beside: Path) -> Path:
    """Return the path of a recipe given as a path or as a bare name.

    A relative path is taken from the recipe that names it, or from the current directory.
    """
    suffixed = recipe if recipe.endswith((".yaml", ".yml")) else f"{recipe}.yaml"
    for candidate in (beside / recipe, beside / suffixed, RECIPES / suffixed):
        if candidate.is_file():
            return candidate.resolve()
    known = ", ".join(sorted(path.stem for path in RECIPES.glob("*.yaml")))
    raise ValueError(
        f"recipe {recipe!r} was not found, neither as a file nor under configs/recipes; "
        f"known recipes: {known}"
    )


def _merge(recipe: DictConfig, overrides: Sequence[DictConfig]) -> dict[str, object]:
    try:
        merged = OmegaConf.merge(recipe, *overrides)
        return cast("dict[str, object]", OmegaConf.to_container(merged, resolve=True))
    except OmegaConfBaseException as error:
        raise ValueError(f"the recipe and its overrides cannot be merged: {error}") from None


def _split(overrides: str) -> list[str]:
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ValueError(
            f"overrides {overrides!r} cannot be split into words: {error}; "
            "close every quote, or escape it with a backslash"
        ) from None


def _read(path: Path) -> DictConfig:
    try:
        body = OmegaConf.load(path)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {path} is not valid YAML: {error}") from None
    if not isinstance(body, DictConfig):
        raise ValueError(  # noqa: TRY004
            f"recipe {path} must be a mapping of sections, got a list; see the README"
        )
    return body


def _override(word: str) -> DictConfig:
    if not re.fullmatch(r"\w+(\.\w+)*=.*", word, re.DOTALL) or word.endswith("=???"):
        raise ValueError(
            f"override {word!r} is not of the form section.field=value, "
            "such as rl.max_steps=1; quote a value that contains spaces"
        )
    if re.fullmatch(r".*=[+-]?0[0-9]+", word):
        raise ValueError(
            f"override {word!r}: YAML reads a number that begins with 0 as octal; leave the 0 out"
        )
    try:
        return OmegaConf.from_dotlist([word])
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ValueError(f"override {word!r} cannot be read: {error}") from None
