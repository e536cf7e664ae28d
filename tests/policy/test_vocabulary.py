import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.policy.files import PolicyFiles
from tasks.policy.vocabulary import require_same_tokens, token_ids, vocabulary_size
from tests.policy.builders import open_policy, run_config


@pytest.fixture
def policy(tmp_path: Path) -> PolicyFiles:
    return open_policy(run_config(tmp_path))


def altered(policy: PolicyFiles, to: Path, name: str, change: dict[str, object]) -> PolicyFiles:
    shutil.copytree(policy.weights, to)
    path = to / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    return replace(policy, weights=to)


def check(student: PolicyFiles, teacher: PolicyFiles) -> None:
    require_same_tokens(student, teacher, student_name="small", teacher_name="large")


def test_a_copy_shares_the_tokens(policy: PolicyFiles) -> None:
    assert vocabulary_size(policy) == 20
    check(policy, policy)


def test_a_wider_head_is_accepted_and_a_narrower_one_is_not(
    policy: PolicyFiles, tmp_path: Path
) -> None:
    check(policy, altered(policy, tmp_path / "wide", "config.json", {"vocab_size": 32}))
    narrow = altered(policy, tmp_path / "narrow", "config.json", {"vocab_size": 19})
    with pytest.raises(ValueError, match=r"'large' has 19 rows.*'small' uses ids up to 19"):
        check(policy, narrow)


def test_two_tokens_that_have_changed_places_are_refused_by_name(
    policy: PolicyFiles, tmp_path: Path
) -> None:
    stored = json.loads((policy.weights / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    seven, eight = vocabulary["7"], vocabulary["8"]
    vocabulary["7"], vocabulary["8"] = eight, seven
    other = altered(policy, tmp_path / "other", "tokenizer.json", {"model": stored["model"]})
    assert token_ids(other).keys() == token_ids(policy).keys()
    with pytest.raises(ValueError, match="do not share a map") as raised:
        check(policy, other)
    told = str(raised.value)
    assert "teacher 'large'" in told
    assert "student 'small'" in told
    assert f"'7' is {eight} there and {seven} here" in told
    assert "2 tokens differ" in told
