from typing import Any

import pyarrow as pa
import pytest

from configs.evaluation import WHOLE_REWARD
from tasks.data.schemas import JUDGED, OUTCOMES
from tasks.evaluation.judging import judge, outcomes
from tests.data.tables import scored

PARTS = [[("gsm8k", 1.0), ("format", 0.0)], [("gsm8k", 0.0), ("format", 1.0)]]


def verdicts(table: pa.Table) -> list[bool | None]:
    return table["correct"].to_pylist()


def judged(part: str = WHOLE_REWARD, num_rows: int = 8, **columns: Any) -> pa.Table:
    return judge(scored(num_rows, group_size=4, **columns), part)


def test_the_named_part_decides_whatever_the_sum_is() -> None:
    table = scored(2, reward=[0.2, 5.0], reward_parts=PARTS)
    assert verdicts(judge(table, "gsm8k")) == [True, False]
    assert verdicts(judge(table, "format")) == [False, True]


def test_without_a_part_the_reward_itself_decides_from_1_on() -> None:
    table = judge(scored(4, reward=[1.0, 0.999, 1.5, 0.0]), WHOLE_REWARD)
    assert verdicts(table) == [True, False, True, False]
    assert table.schema.equals(JUDGED)


def test_an_unscored_response_is_neither_right_nor_wrong() -> None:
    table = scored(
        2, reward=[None, 1.0], reward_parts=[[], [("a", 1.0)]], reward_status=["timeout", "ok"]
    )
    assert verdicts(judge(table, "a")) == verdicts(judge(table, WHOLE_REWARD)) == [None, True]


def test_a_response_is_judged_though_another_part_failed() -> None:
    table = scored(2, reward=[None, 1.0], reward_parts=PARTS, reward_status=["error", "ok"])
    assert verdicts(judge(table, "gsm8k")) == [True, False]


def test_a_score_without_the_deciding_part_is_refused_by_name() -> None:
    table = scored(2, reward_parts=[[("gsm8k", 1.0)], [("format", 0.0)]])
    with pytest.raises(ValueError, match=r"'gsm8k': 1 of 2 .*\['format', 'gsm8k'\]"):
        judge(table, "gsm8k")


def test_a_prompt_is_summed_up_in_one_row() -> None:
    table = judged(
        reward=[1, 0, None, None, 0, 0, 1, 1],
        reward_status=["ok", "wrong-format", "timeout", "error", *["ok"] * 4],
        finish_reason=["length", "stop", "stop", "abort", *["stop"] * 4],
        response_tokens=[[1], [1, 2], [1], [1], *[[1]] * 4],
        engine_logprobs=[[0.0], [0.0, 0.0], [0.0], [0.0], *[[0.0]] * 4],
    )
    first, second = outcomes(table, [1, 2, 4]).to_pylist()
    assert first == {
        "group_id": 0,
        "prompt_id": "p0",
        "source": "arithmetic",
        "prompt_text": "07+45=",
        "answer": "052",
        "num_samples": 4,
        "num_judged": 2,
        "num_correct": 1,
        "num_error": 1,
        "num_timeout": 1,
        "num_truncated": 1,
        "num_tokens": 5,
        "mean_reward": 0.5,
        "pass_at": [(1, 0.5), (2, 1.0)],
    }
    # Two right of four: one of six pairs has none.
    assert dict(second["pass_at"]) == pytest.approx({1: 0.5, 2: 5 / 6, 4: 1.0})


def test_a_prompt_of_which_nothing_was_scored_has_no_reward() -> None:
    table = judged(reward=[None] * 4 + [1.0] * 4, reward_status=["error"] * 4 + ["ok"] * 4)
    found = outcomes(table, [1])
    assert found["mean_reward"].to_pylist() == [None, 1.0]
    assert found["pass_at"].to_pylist() == [[], [(1, 1.0)]]


def test_the_responses_of_a_prompt_may_lie_apart() -> None:
    table = judged(reward=[1.0, 0, 0, 0, 1, 1, 1, 0])
    mixed = table.take([4, 0, 5, 1, 6, 2, 7, 3])
    whole, apart = outcomes(table, [2]), outcomes(mixed, [2])
    assert whole.schema.equals(OUTCOMES)
    assert apart["prompt_id"].to_pylist() == ["p1", "p0"]
    assert apart.take([1, 0]).to_pylist() == whole.to_pylist()
