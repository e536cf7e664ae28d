import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.reward import Reward
from tasks.data.schemas import ROLLOUTS, SCORED, read_stamp, stamp
from tasks.rewards.exact_match import exact_match
from tasks.rewards.overlong import overlong_penalties
from tasks.rewards.providers import load
from tasks.rewards.reward import Score
from tasks.rewards.score import score
from tests.data.tables import prompts, rollouts

FUNCTIONS = "tests.rewards.functions"


def column(table: pa.Table, name: str) -> list:
    return table.column(name).to_pylist()


@pytest.mark.parametrize(
    ("text", "value", "status"),
    [
        ("052", 1.0, "ok"),
        (" 052\n", 1.0, "ok"),
        ("053", 0.0, "ok"),
        ("52", 0.0, "ok"),
        ("0522", 0.0, "ok"),
        ("", 0.0, "wrong-format"),
        ("05+", 0.0, "wrong-format"),
        ("0 52", 0.0, "wrong-format"),
        ("-052", 0.0, "wrong-format"),
        ("\u0660\u0665\u0662", 0.0, "wrong-format"),
    ],
)
def test_exact_match_tells_right_wrong_and_malformed_apart(
    text: str, value: float | None, status: str
) -> None:
    verdict = exact_match(text, "052", "")
    assert (verdict.value, verdict.status) == (value, status)
    assert verdict.parts == {"exact_match": value}


def test_a_rollout_table_gains_the_scored_columns_and_keeps_the_others() -> None:
    table = rollouts(response_text=["052", "051", "a", "052"])
    result = score(table, Reward())
    assert result.schema == SCORED
    assert result.select(ROLLOUTS.names).equals(table)
    assert column(result, "reward") == [1.0, 0.0, 0.0, 1.0]
    assert column(result, "reward_status") == ["ok", "ok", "wrong-format", "ok"]
    assert column(result, "reward_parts")[0] == [("exact_match", 1.0)]
    assert column(result, "reward_detail") == [""] * 4


def test_an_answer_that_was_not_ended_is_malformed_even_if_its_digits_are_right() -> None:
    result = score(rollouts(finish_reason=["length", "stop", "stop", "stop"]), Reward())
    assert column(result, "reward") == [0.0, 1.0, 1.0, 1.0]
    assert column(result, "reward_status")[0] == "wrong-format"


def test_a_function_of_ones_own_judges_unfinished_responses_too() -> None:
    table = rollouts(finish_reason=["length"] * 4, response_text=["a", "ab", "abc", ""])
    result = score(table, Reward(provider=f"{FUNCTIONS}:length"))
    assert column(result, "reward") == [1.0, 2.0, 3.0, 0.0]
    assert column(result, "reward_parts")[2] == [("length", 3.0)]


def test_a_function_gets_text_answer_and_payload_in_this_order() -> None:
    table = rollouts(payload=["p"] * 4)
    result = score(table, Reward(provider=f"{FUNCTIONS}:echoes"))
    assert column(result, "reward_detail") == ["052|052|p"] * 4


def test_a_function_that_raises_leaves_the_reward_null_and_the_others_scored() -> None:
    table = rollouts(response_text=["a", "x", "b", "c"])
    reward = Reward(provider=f"{FUNCTIONS}:fails_on_x", max_error_fraction=0.25)
    result = score(table, reward)
    assert column(result, "reward") == [1.0, None, 1.0, 1.0]
    assert column(result, "reward_status") == ["ok", "error", "ok", "ok"]
    assert column(result, "reward_parts")[1] == []
    detail = column(result, "reward_detail")[1]
    assert detail.startswith("RuntimeError: no x!")
    assert len(detail) == 500


def test_more_failures_than_allowed_stop_the_step_and_show_the_first() -> None:
    table = rollouts(response_text=["a", "x", "b", "c"])
    reward = Reward(provider=f"{FUNCTIONS}:fails_on_x", max_error_fraction=0.24)
    with pytest.raises(ValueError, match=r"1 of 4 .*max_error_fraction=0\.24.*no x") as caught:
        score(table, reward)
    assert len(str(caught.value)) < 1000


def test_an_aborted_response_is_unscored_not_wrong() -> None:
    table = rollouts(finish_reason=["abort", "stop", "stop", "stop"])
    result = score(table, Reward(max_error_fraction=0.25))
    assert column(result, "reward") == [None, 1.0, 1.0, 1.0]
    assert column(result, "reward_status")[0] == "error"
    with pytest.raises(ValueError, match="the engine aborted the response"):
        score(table, Reward())


def test_a_reward_that_is_not_finite_is_an_error_not_a_reward() -> None:
    reward = Reward(provider=f"{FUNCTIONS}:not_finite", max_error_fraction=1.0)
    result = score(rollouts(), reward)
    assert column(result, "reward") == [None] * 4
    assert "finite" in column(result, "reward_detail")[0]


def test_a_function_that_returns_a_plain_number_is_named() -> None:
    with pytest.raises(TypeError, match=r"functions:plain_number returned float, expected .*Score"):
        score(rollouts(), Reward(provider=f"{FUNCTIONS}:plain_number"))


@pytest.mark.parametrize(
    "provider",
    ["exactmatch", "no.such.module:f", f"{FUNCTIONS}:absent", f"{FUNCTIONS}:NOT_A_FUNCTION", ":f"],
)
def test_a_provider_that_cannot_be_called_is_refused_by_name(provider: str) -> None:
    with pytest.raises(ValueError, match=rf"reward\.provider='{provider}'.*expected exact_match, "):
        load(provider, {})


def test_the_overlong_penalty_is_added_and_kept_as_a_part() -> None:
    tokens = [[1] * length for length in (2, 3, 4, 4)]
    logprobs = [[-1.0] * len(row) for row in tokens]
    table = rollouts(
        response_tokens=tokens, engine_logprobs=logprobs, finish_reason=["stop"] * 3 + ["abort"]
    )
    reward = Reward(overlong_buffer_tokens=2, overlong_penalty=0.5, max_error_fraction=0.25)
    result = score(table, reward, max_tokens=4)
    assert column(result, "reward") == [1.0, 0.75, 0.5, None]
    assert column(result, "reward_parts")[1] == [("exact_match", 1.0), ("overlong", -0.25)]


def test_an_overlong_buffer_needs_the_token_limit_and_fits_into_it() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        score(rollouts(), Reward(overlong_buffer_tokens=2))
    with pytest.raises(ValueError, match=r"overlong_buffer_tokens=5: expected 1 to 4"):
        score(rollouts(), Reward(overlong_buffer_tokens=5), max_tokens=4)


@given(st.lists(st.integers(0, 100)), st.integers(1, 60), st.floats(0, 5))
def test_the_overlong_penalty_follows_its_three_pieces(
    lengths: list[int], buffer_tokens: int, penalty: float
) -> None:
    got = overlong_penalties(
        np.array(lengths, dtype=np.int64),
        max_tokens=60,
        buffer_tokens=buffer_tokens,
        penalty=penalty,
    )
    for length, value in zip(lengths, got, strict=True):
        if length <= 60 - buffer_tokens:
            expected = 0.0
        elif length <= 60:
            expected = penalty * ((60 - buffer_tokens) - length) / buffer_tokens
        else:
            expected = -penalty
        assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "status"), [(None, "ok"), (1.0, "error"), (0.0, "timeout"), (1.0, "fine")]
)
def test_a_score_has_a_value_exactly_when_its_status_says_so(
    value: float | None, status: str
) -> None:
    with pytest.raises(ValueError, match=f"status '{status}'"):
        Score(value, status)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (None, "parts are None, expected numbers by name"),
        ({"x": None}, "the part 'x' of a score is None, expected a finite number"),
        ({"x": "1"}, "the part 'x' of a score is '1'"),
        ({"x": float("nan")}, "the part 'x' of a score is nan"),
        ({"x": 1e39}, r"the part 'x' of a score is 1e\+39"),
        ({"a:b": 1.0}, "a part named 'a:b', expected characters"),
        ({"\ud800": 1.0}, "a part named"),
        ({3: 1.0}, "a part named 3"),
    ],
)
def test_a_part_that_no_table_or_metric_holds_is_refused(parts: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Score(1.0, parts=parts)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e39])
def test_a_value_that_float32_does_not_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number that float32 holds"):
        Score(value)


def test_white_space_around_an_answer_does_not_count() -> None:
    assert exact_match("18", "18 \n", "").value == exact_match("18 ", "18", "").value == 1.0


def test_functions_and_scores_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(exact_match)) is exact_match
    assert pickle.loads(pickle.dumps(Score(None, "timeout"))) == Score(None, "timeout")


def test_the_stamp_travels_and_names_the_stage() -> None:
    table = stamp(rollouts(), run="r", step=4, stage="rollout")
    assert read_stamp(score(table, Reward())) == {"run": "r", "step": "4", "stage": "score"}


def test_scoring_chunks_and_no_rows() -> None:
    table = rollouts(response_text=["052", "051", "a", "052"])
    parts = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert score(parts, Reward()).equals(score(table, Reward()))
    assert score(table.slice(0, 0), Reward()).schema == SCORED


def test_a_table_without_responses_is_refused_by_the_stage_that_is_missing() -> None:
    with pytest.raises(TypeError, match=r"'response_text' \(added by rollout\)"):
        score(prompts(), Reward())
