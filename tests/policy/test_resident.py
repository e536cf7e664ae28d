from collections.abc import Iterator

import pytest

from tasks.policy import resident
from tasks.policy.resident import borrow, checkout, drop, publish


@pytest.fixture(autouse=True)
def _nothing_live() -> Iterator[None]:
    drop("thing")
    drop("other")
    yield
    drop("thing")
    drop("other")


def loaded(name: str = "loaded") -> list[str]:
    return [name]


def unreachable() -> list[str]:
    raise AssertionError("loaded although it is live")


def test_what_is_borrowed_stays_live() -> None:
    first = borrow("thing", "a", loaded)
    assert borrow("thing", "a", unreachable) is first


def test_another_digest_is_loaded_and_replaces_the_live_object() -> None:
    first = borrow("thing", "a", loaded)
    second = borrow("thing", "b", loaded)
    assert second is not first
    assert borrow("thing", "a", loaded) is not first


def test_a_load_that_fails_leaves_nothing_live() -> None:
    borrow("thing", "a", loaded)
    with pytest.raises(AssertionError):
        borrow("thing", "b", unreachable)
    with pytest.raises(AssertionError):
        borrow("thing", "a", unreachable)


def test_the_live_object_is_let_go_before_another_is_loaded() -> None:
    borrow("thing", "a", loaded)

    def load() -> list[str]:
        with pytest.raises(AssertionError):
            borrow("thing", "a", unreachable)
        return ["b"]

    assert borrow("thing", "b", load) == ["b"]


def test_what_is_checked_out_is_no_longer_live() -> None:
    first = borrow("thing", "a", loaded)
    assert checkout("thing", "a", unreachable) is first
    with pytest.raises(AssertionError):
        checkout("thing", "a", unreachable)


def test_what_is_checked_out_and_not_live_is_loaded() -> None:
    assert checkout("thing", "a", lambda: loaded("fresh")) == ["fresh"]


def test_what_is_published_is_live_under_its_new_digest_alone() -> None:
    value = checkout("thing", "a", loaded)
    publish("thing", "b", value)
    assert borrow("thing", "b", unreachable) is value
    with pytest.raises(AssertionError):
        borrow("thing", "a", unreachable)


def test_kinds_do_not_disturb_each_other() -> None:
    first = borrow("thing", "a", loaded)
    borrow("other", "a", lambda: loaded("other"))
    drop("other")
    assert borrow("thing", "a", unreachable) is first


def test_dropping_what_is_not_live_is_no_error() -> None:
    drop("thing")
    resident.drop("thing")
    assert borrow("thing", "a", loaded) == ["loaded"]
