"""The docstrings under a section's fields.

Read from the source when a page is written, not by pydantic when a class is made: that asks every
loaded module for its file, which makes the lazy imports of other libraries real and doubles the
time that a workflow takes to import.
"""

import ast
import inspect
from itertools import pairwise
from typing import cast

from configs.base import Section


def field_docstrings(model: type[Section]) -> dict[str, str]:
    """Return `{field: docstring}` of a section, those that it inherits included."""
    found: dict[str, str] = {}
    for ancestor in reversed(model.__mro__):
        if issubclass(ancestor, Section) and ancestor is not Section:
            found |= _own(ancestor)
    return {name: found[name] for name in model.model_fields if name in found}


def _own(model: type[Section]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(model)).body
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(cast("ast.ClassDef", definition).body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
