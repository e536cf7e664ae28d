import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.policy.checkpoints import (
    difference,
    newest,
    prune,
    read,
    recover,
    require_lineage,
    sweep,
)
from tests.policy.published import LINEAGE, make_policy, newest_step, put, steps


def test_a_published_checkpoint_is_read_back_as_it_was(tmp_path: Path) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path, version=4)
    done = put(root, policy, 12)
    assert done == read(root / "step-000012") == newest(root)
    assert (done.step, done.mlflow_run_id, done.lineage) == (12, "run-7", LINEAGE)
    expected = replace(
        policy,
        weights=root / "step-000012" / "weights",
        trainer_state=root / "step-000012" / "trainer_state",
    )
    assert done.policy == expected


def test_every_file_is_copied_and_the_original_stays(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)
    done = put(tmp_path / "checkpoints", policy, 1).policy
    assert (done.weights / "model.safetensors").read_text() == "one weights"
    assert (done.weights / "sub" / "extra.json").read_text() == "{}"
    assert (done.trainer_state / "optimizer.safetensors").read_text() == "one moments"
    assert (policy.weights / "model.safetensors").exists()


def test_the_newest_is_that_of_the_latest_step(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (9, 100, 20):
        put(root, make_policy(tmp_path, f"at {step}"), step)
    assert newest_step(root) == 100
    assert steps(root) == [9, 20, 100]


def test_nothing_is_the_newest_of_nothing(tmp_path: Path) -> None:
    assert newest(tmp_path / "absent") is None
    assert newest(tmp_path) is None


def test_an_equal_checkpoint_is_kept_untouched(tmp_path: Path) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path)
    first = put(root, policy, 1)
    before = os.stat(first.path / "manifest.json")
    assert put(root, policy, 1) == first
    after = os.stat(first.path / "manifest.json")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_another_policy_of_the_same_step_takes_its_place(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    put(root, make_policy(tmp_path, "one"), 1)
    put(root, make_policy(tmp_path, "two"), 1)
    assert newest(root).policy.digest == "two-digest"
    assert sorted(path.name for path in root.iterdir()) == ["step-000001"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [truncate, flip, Path.unlink])
@pytest.mark.parametrize(
    "name", ["weights/model.safetensors", "trainer_state/optimizer.safetensors", "manifest.json"]
)
def test_a_harmed_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, name: str, harm: Callable
) -> None:
    root = tmp_path / "checkpoints"
    put(root, make_policy(tmp_path, "one"), 1)
    second = put(root, make_policy(tmp_path, "two"), 2)
    harm(second.path / name)
    assert read(second.path) is None
    assert newest_step(root) == 1


@pytest.mark.parametrize("body", ["", "[]", "{}", "null", '{"files": {}}', '{"files": []}'])
def test_a_manifest_that_is_none_gives_way_to_the_one_before(tmp_path: Path, body: str) -> None:
    root = tmp_path / "checkpoints"
    put(root, make_policy(tmp_path, "one"), 1)
    second = put(root, make_policy(tmp_path, "two"), 2)
    (second.path / "manifest.json").write_text(body)
    assert newest_step(root) == 1


@pytest.mark.parametrize("key", ["step", "version", "digest", "state_digest", "lineage"])
def test_an_altered_manifest_gives_way_to_the_one_before(tmp_path: Path, key: str) -> None:
    root = tmp_path / "checkpoints"
    put(root, make_policy(tmp_path, "one"), 1)
    manifest = put(root, make_policy(tmp_path, "two"), 2).path / "manifest.json"
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**body, key: 9}))
    assert newest_step(root) == 1


def test_a_harmed_checkpoint_is_written_anew(tmp_path: Path) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path)
    truncate(put(root, policy, 1).policy.weights / "model.safetensors")
    assert put(root, policy, 1).policy.digest == "one-digest"
    assert newest_step(root) == 1


def test_a_sweep_leaves_checkpoints_alone(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    put(root, make_policy(tmp_path), 1)
    (root / ".unfinished-step-000002" / "weights").mkdir(parents=True)
    sweep(root)
    assert [path.name for path in root.iterdir()] == ["step-000001"]


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "kept"),
    [(1, 0, [60]), (2, 0, [50, 60]), (1, 20, [20, 40, 60]), (9, 0, [10, 20, 30, 40, 50, 60])],
)
def test_the_last_and_every_so_many_are_kept(
    tmp_path: Path, keep_last: int, keep_every: int, kept: list[int]
) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path)
    for step in range(10, 70, 10):
        put(root, policy, step)
    prune(root, keep_last=keep_last, keep_every=keep_every)
    assert sorted(path.name for path in root.iterdir()) == [f"step-{step:06d}" for step in kept]


def test_checkpoints_are_in_the_order_of_their_numbers_and_other_directories_stay(
    tmp_path: Path,
) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path)
    for name in ("step-by-hand", "step-000001.bak", "step-best"):
        (root / name).mkdir(parents=True)
    for step in (999_999, 1_000_000):
        put(root, policy, step)
    assert newest_step(root) == 1_000_000
    prune(root, keep_last=1, keep_every=0)
    assert {path.name for path in root.iterdir()} == {
        "step-by-hand",
        "step-000001.bak",
        "step-best",
        "step-1000000",
    }


def test_damaged_checkpoints_are_set_aside_and_take_no_place(tmp_path: Path) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path)
    for step in (2, 4, 6):
        put(root, policy, step)
    for step in (4, 6):
        (root / f"step-{step:06d}" / "manifest.json").write_text("garbage")
    found, damaged = recover(root)
    assert found == newest(root)
    assert found.step == 2
    assert [path.name for path in damaged] == ["damaged-step-000006.1", "damaged-step-000004.1"]
    put(root, policy, 3)
    prune(root, keep_last=1, keep_every=0)
    assert {path.name for path in root.iterdir()} == {
        "step-000003",
        *(path.name for path in damaged),
    }


def test_a_copy_under_the_number_of_another_step_is_no_checkpoint(tmp_path: Path) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path)
    for step in (1, 3):
        put(root, policy, step)
    for name in ("step-000007", "step-9"):
        shutil.copytree(root / "step-000001", root / name)
    assert newest_step(root) == 3
    found, damaged = recover(root)
    assert found.step == 3
    assert {path.name for path in damaged} == {"damaged-step-000007.1", "damaged-step-9.1"}
    elsewhere = shutil.copytree(root / "step-000001", tmp_path / "best")
    assert read(elsewhere).step == 1


def test_a_manifest_of_endless_brackets_is_damaged(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    put(root, make_policy(tmp_path), 1)
    (root / "step-000001" / "manifest.json").write_text("[" * 100_000)
    assert read(root / "step-000001") is None


def test_what_is_damaged_again_lies_beside_what_was_before(tmp_path: Path) -> None:
    root, policy = tmp_path / "checkpoints", make_policy(tmp_path)
    for number in (1, 2):
        put(root, policy, 5)
        (root / "step-000005" / "manifest.json").unlink()
        assert recover(root) == (None, [root / f"damaged-step-000005.{number}"])
    assert recover(tmp_path / "nowhere") == (None, [])


def test_equal_lineages_do_not_differ() -> None:
    assert difference(LINEAGE, dict(LINEAGE)) == []


def test_every_difference_of_two_lineages_is_a_line() -> None:
    assert difference({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "d": None, "e": 4}) == [
        "b: the checkpoint has 2, this run has 5",
        "c: the checkpoint has 3, this run has None",
        "e: the checkpoint has None, this run has 4",
    ]


def test_a_run_of_another_kind_is_not_continued(tmp_path: Path) -> None:
    done = put(tmp_path / "checkpoints", make_policy(tmp_path), 1)
    require_lineage(done, LINEAGE)
    lines = (
        "  objective: the checkpoint has 'abc', this run has 'xyz'\n  seed: the checkpoint has 3"
    )
    with pytest.raises(ValueError, match=re.escape(lines)):
        require_lineage(done, {"objective": "xyz", "seed": 4, "nested": None})
