"""Keeps live what a process has just used, so that its next task need not load it again.

A task never depends on it: what is not here is loaded from disk, with the same bits. An object is
keyed by the digest of what it equals on disk; it is taken out before it is changed and put back
under its new digest only after the change has been written.
"""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_live: dict[str, tuple[str, Any]] = {}


def borrow(kind: str, digest: str, load: Callable[[], T]) -> T:
    """Return the live object of a kind if it equals `digest`, else load it and keep it."""
    held = _live.get(kind)
    if held is not None and held[0] == digest:
        return held[1]
    _live.pop(kind, None)
    value = load()
    _live[kind] = (digest, value)
    return value


def checkout(kind: str, digest: str, load: Callable[[], T]) -> T:
    """Return the same as `borrow`, but hold it no longer: the caller is about to change it."""
    value = borrow(kind, digest, load)
    del _live[kind]
    return value


def publish(kind: str, digest: str, value: object) -> None:
    """Hold `value`, which equals `digest` on disk, as the one live object of its kind."""
    _live[kind] = (digest, value)


def drop(kind: str) -> None:
    """Forget the live object of a kind, if there is one."""
    _live.pop(kind, None)
