"""A kill before any file operation leaves a checkpoint that verifies: the newest or the last."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.policy.checkpoints import newest, paths, prune, read
from tests.policy.published import make_policy, newest_step, put, steps


class Killed(BaseException):
    """Stands for a kill: no handler of the code under test runs."""


def kill_at(number: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process die before its file operation of this number."""
    count = itertools.count()

    def fatal(operation: Callable) -> Callable:
        def called(*args: object, **kwargs: object) -> object:
            if next(count) == number:
                raise Killed
            return operation(*args, **kwargs)

        return called

    for owner, name in [
        (os, "fsync"),
        (Path, "rename"),
        (Path, "mkdir"),
        (Path, "open"),
        (shutil, "rmtree"),
        (shutil, "copyfileobj"),
    ]:
        patch.setattr(owner, name, fatal(getattr(owner, name)))


def kill_points(act: Callable[[], object], check: Callable[[], None]) -> int:
    """Kill `act` before each of its file operations in turn; return how many there are."""
    for number in range(200):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(number, patch)
            try:
                act()
            except Killed:
                survived = False
            else:
                survived = True
        check()
        if survived:
            return number
    raise AssertionError("more than 200 file operations")


def test_a_kill_while_a_step_is_published_leaves_the_step_before(tmp_path: Path) -> None:
    root, two = tmp_path / "checkpoints", make_policy(tmp_path, "two")
    put(root, make_policy(tmp_path, "one"), 1)

    def check() -> None:
        found = newest(root)
        assert found is not None
        assert found.policy.digest in ("one-digest", "two-digest")
        assert (found.policy.weights / "model.safetensors").read_text()[:3] in ("one", "two")

    assert kill_points(lambda: put(root, two, 2), check) > 15
    assert newest_step(root) == 2


def test_a_kill_while_a_step_is_replaced_leaves_it_or_the_step_before(tmp_path: Path) -> None:
    root, three = tmp_path / "checkpoints", make_policy(tmp_path, "three")
    put(root, make_policy(tmp_path, "one"), 1)
    two = make_policy(tmp_path, "two")

    def act() -> None:
        put(root, three, 2)

    def check() -> None:
        found = newest(root)
        assert found is not None
        assert found.policy.digest in ("one-digest", "two-digest", "three-digest")

    put(root, two, 2)
    assert kill_points(act, check) > 15
    assert newest(root).policy.digest == "three-digest"


def test_a_kill_while_old_steps_are_deleted_leaves_the_newest(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in range(1, 5):
        put(root, make_policy(tmp_path, f"at {step}"), step)

    def check() -> None:
        assert newest_step(root) == 4
        assert all(read(path) is not None for path in paths(root))

    assert kill_points(lambda: prune(root, keep_last=1, keep_every=0), check) > 2
    assert steps(root) == [4]


def test_what_a_kill_has_left_is_swept_by_the_next_publication(tmp_path: Path) -> None:
    root, one = tmp_path / "checkpoints", make_policy(tmp_path, "one")
    with pytest.MonkeyPatch.context() as patch:
        kill_at(8, patch)
        with pytest.raises(Killed):
            put(root, one, 1)
    assert [path.name for path in root.iterdir()] == [".unfinished-step-000001"]
    put(root, make_policy(tmp_path, "two"), 2)
    assert [path.name for path in root.iterdir()] == ["step-000002"]
