import json
from pathlib import Path

import numpy as np
import pytest

from tasks.data.arrow import read_table, write_table
from tasks.evaluation.__main__ import main
from tasks.evaluation.comparing import compare
from tasks.evaluation.estimators import Z_95
from tasks.evaluation.paired import mcnemar, sign_flip
from tasks.evaluation.record import OUTCOMES_FILE, RECORD_FILE, read_evaluation
from tests.evaluation.builders import RECORD, kept, outcome_rows


def single(correct: list[int], **columns: list):
    return outcome_rows(num_correct=correct, mean_reward=[float(c) for c in correct], **columns)


def test_single_samples_are_compared_by_mcnemar(tmp_path: Path) -> None:
    first = kept(tmp_path / "a", single([1, 0, 0, 0, 0, 0, 1, 0]))
    second = kept(tmp_path / "b", single([0, 1, 1, 1, 1, 1, 1, 0]))
    accuracy, reward = compare(first, second)
    assert (accuracy.measure, reward.measure) == ("accuracy", "reward")
    assert (accuracy.first, accuracy.second, accuracy.num_prompts) == (0.25, 0.75, 8)
    assert accuracy.p_value == mcnemar(1, 5)
    assert accuracy.test == "McNemar, 1 against 5"
    differences = np.array([-1, 1, 1, 1, 1, 1, 0, 0])
    half = Z_95 * differences.std(ddof=1) / np.sqrt(8)
    assert (accuracy.low, accuracy.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_prompts_are_joined_by_name_and_not_by_place(tmp_path: Path) -> None:
    table = single([1, 0, 1, 1, 0])
    first = kept(tmp_path / "a", table)
    second = kept(tmp_path / "b", table.take([4, 2, 0, 3, 1]))
    accuracy, _ = compare(first, second)
    assert (accuracy.low, accuracy.high, accuracy.p_value) == (0, 0, 1)


def test_several_samples_are_compared_by_sign_flips_and_at_every_common_k(tmp_path: Path) -> None:
    def several(right: list[int], ks: list[int], folder: str):
        table = outcome_rows(
            num_samples=[4] * 3,
            num_correct=right,
            mean_reward=[r / 4 for r in right],
            pass_at=[[(k, min(1.0, r * k / 4)) for k in ks] for r in right],
        )
        return kept(tmp_path / folder, table, pass_at=ks)

    first, second = several([0, 1, 2], [1, 2, 4], "a"), several([1, 3, 4], [1, 2], "b")
    accuracy, pass_at_2, _ = compare(first, second)
    assert accuracy.test == pass_at_2.test == "sign flips"
    assert pass_at_2.measure == "pass@2"
    assert accuracy.p_value == sign_flip(np.array([0.25, 0.5, 0.5])) == 0.25
    assert (pass_at_2.first, pass_at_2.second) == (0.5, pytest.approx(2.5 / 3))


def test_a_prompt_that_one_of_the_two_did_not_judge_does_not_count(tmp_path: Path) -> None:
    first = kept(tmp_path / "a", single([1, 0, 1]))
    second = kept(tmp_path / "b", single([1, 1, 0], num_judged=[1, 1, 0]))
    accuracy, _ = compare(first, second)
    assert (accuracy.num_prompts, accuracy.first, accuracy.second) == (2, 0.5, 1.0)


@pytest.mark.parametrize(
    ("columns", "fields", "words"),
    [
        ({"prompt_id": ["p0", "p7"]}, {}, ["lacks 1 prompts, such as 'p7'", "such as 'p1'"]),
        ({"prompt_id": ["p0", "p0"]}, {}, ["has 1 prompt ids twice"]),
        ({"answer": ["1", "3"]}, {}, ["1 prompts are not the same, such as 'p1' in its answer"]),
        ({}, {"prompts": "e" * 64}, ["eeeeeeeeeeee: their payloads differ"]),
        (
            {},
            {"reward": {"provider": "gsm8k", "correct_part": "exact_match"}},
            ["reward: provider is 'exact_match' and 'gsm8k'"],
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(
    tmp_path: Path, columns: dict, fields: dict, words: list[str]
) -> None:
    first = kept(tmp_path / "a", outcome_rows(num_samples=[1, 1]))
    second = kept(tmp_path / "b", outcome_rows(num_samples=[1, 1], **columns), **fields)
    with pytest.raises(ValueError, match="cannot be compared") as raised:
        compare(first, second)
    assert all(word in str(raised.value) for word in words)
    assert str(tmp_path / "b") in str(raised.value)


def test_no_prompt_in_common_is_no_comparison(tmp_path: Path) -> None:
    first = kept(tmp_path / "a", single([1, 0], num_judged=[1, 0]))
    second = kept(tmp_path / "b", single([0, 1], num_judged=[0, 1]))
    with pytest.raises(ValueError, match="no prompt has a value of accuracy"):
        compare(first, second)


def test_the_command_prints_a_row_per_measure_and_what_was_sampled_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path / "a", single([1, 0]))
    sampling = {**RECORD.sampling, "temperature": 0.5}
    kept(tmp_path / "b", single([1, 1]), sampling=sampling, origin="owner/name")
    words = ["compare", str(tmp_path / "a"), str(tmp_path / "b" / RECORD_FILE)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("second: owner/name, ")
    assert lines[2] == "sampled apart: temperature is 0.0 and 0.5"
    assert lines[4].split()[:4] == ["accuracy", "0.5000", "1.0000", "+0.5000"]


def test_another_table_in_its_place_is_refused_by_name(tmp_path: Path) -> None:
    kept(tmp_path / "a", single([1, 0]))
    table = read_table(tmp_path / "a" / OUTCOMES_FILE)
    write_table(tmp_path / "a" / OUTCOMES_FILE, table.drop_columns(table.column_names[:1]))
    with pytest.raises(ValueError, match=r"no evaluation .*workflows/evaluate\.py"):
        read_evaluation(tmp_path / "a")


@pytest.mark.parametrize("missing", [RECORD_FILE, OUTCOMES_FILE, ""])
def test_a_directory_without_an_evaluation_is_refused_by_name(
    tmp_path: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path / "a", single([1, 0]))
    if missing:
        (tmp_path / "a" / missing).unlink()
    else:
        (tmp_path / "a" / RECORD_FILE).write_text(json.dumps({"origin": "x"}))
    with pytest.raises(ValueError, match=r"no evaluation .*workflows/evaluate\.py"):
        read_evaluation(tmp_path / "a")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 2
    assert "no evaluation" in capsys.readouterr().err
