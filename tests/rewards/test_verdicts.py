"""Arguments, and sums of several rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.reward import Reward
from tasks.rewards.pool import close_resident_pool
from tasks.rewards.reward import Score
from tasks.rewards.score import score
from tasks.rewards.verdicts import weighted_sum
from tests.data.tables import rollouts

FUNCTIONS = "tests.rewards.functions"


def test_parts_are_summed_by_weight_and_kept_unweighted() -> None:
    table = rollouts(response_text=["#### 8", "#### 7", "8", "it is"], answer=["8"] * 4)
    parts = {"gsm8k": 1.0, "format": 0.5, "length": -0.25}
    reward = Reward(parts=parts, arguments={"full_characters": 5}, num_workers=1)
    result = score(table, reward)
    assert result.column("reward").to_pylist() == pytest.approx([1.25, 0.25, 0.95, -0.25])
    assert dict(result.column("reward_parts").to_pylist()[2]) == pytest.approx(
        {"gsm8k": 1.0, "format": 0.0, "length": 0.2}
    )
    statuses = ["ok", "ok", "wrong-format", "wrong-format"]
    assert result.column("reward_status").to_pylist() == statuses
    assert result.column("reward_detail").to_pylist()[:2] == ["gsm8k: 8", "gsm8k: 7"]
    close_resident_pool()


def test_a_part_that_fails_leaves_the_sum_unscored_and_the_other_parts_known() -> None:
    table = rollouts(response_text=["a", "exit", "sleep", "b"])
    reward = Reward(
        parts={"length": 1.0, f"{FUNCTIONS}:obeys": 1.0},
        timeout_s=0.8,
        num_workers=1,
        max_error_fraction=0.5,
    )
    result = score(table, reward)
    assert result.column("reward").to_pylist() == pytest.approx([1.001, None, None, 1.001])
    assert result.column("reward_status").to_pylist() == ["ok", "error", "timeout", "ok"]
    parts = [dict(row) for row in result.column("reward_parts").to_pylist()]
    assert parts[0] == pytest.approx({"length": 0.001, "obeys": 1.0})
    assert parts[1] == pytest.approx({"length": 0.004})
    close_resident_pool()


def test_more_failing_responses_than_allowed_stop_the_step_whichever_part_fails() -> None:
    table = rollouts(response_text=["a", "x", "b", "c"])
    parts = {"length": 1.0, f"{FUNCTIONS}:fails_on_x": 1.0}
    with pytest.raises(ValueError, match=r"1 of 4 .*max_error_fraction=0\.1; .*RuntimeError: no x"):
        score(table, Reward(parts=parts, num_workers=1))
    close_resident_pool()


def test_a_cut_response_is_no_answer_to_exact_match_but_other_parts_judge_it() -> None:
    table = rollouts(finish_reason=["length", "stop", "stop", "stop"])
    result = score(table, Reward(parts={"exact_match": 1.0, "length": 1.0}))
    assert result.column("reward").to_pylist() == pytest.approx([0.003, 1.003, 1.003, 1.003])


def test_arguments_reach_every_function_that_names_them() -> None:
    result = score(
        rollouts(),
        Reward(provider=f"{FUNCTIONS}:with_arguments", arguments={"bonus": 0.5}, num_workers=1),
    )
    assert result.column("reward").to_pylist() == [1.5] * 4
    again = score(rollouts(), Reward(provider=f"{FUNCTIONS}:with_arguments", num_workers=1))
    assert again.column("reward").to_pylist() == [1.0] * 4
    close_resident_pool()


@pytest.mark.parametrize("provider", ["length", f"{FUNCTIONS}:with_arguments"])
def test_an_argument_that_nothing_reads_is_refused(provider: str) -> None:
    arguments = {"typo": 1, "response_text": "no"}
    with pytest.raises(ValueError, match=r"arguments has \['response_text', 'typo'\]"):
        score(rollouts(), Reward(provider=provider, arguments=arguments, num_workers=1))
    close_resident_pool()


def test_two_parts_of_one_name_are_refused() -> None:
    parts = {"length": 1.0, f"{FUNCTIONS}:length": 1.0}
    with pytest.raises(ValueError, match="two functions of one name"):
        score(rollouts(), Reward(parts=parts))


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=5))
def test_a_sum_is_the_dot_product_of_values_and_weights(pairs: list[tuple[float, float]]) -> None:
    scores = {str(i): Score(value) for i, (value, _) in enumerate(pairs)}
    weights = {str(i): weight for i, (_, weight) in enumerate(pairs)}
    total = weighted_sum(scores, weights)
    assert total.value == pytest.approx(sum(value * weight for value, weight in pairs))
    assert total.parts == {name: score.value for name, score in scores.items()}


def test_a_config_with_parts_and_arguments_survives_a_round_trip() -> None:
    arguments = {"marker": "=>", "full_characters": 5, "marker_value": 1.0, "marked_only": True}
    reward = Reward(parts={"format": 1.0}, arguments=arguments)
    again = Reward.model_validate_json(reward.model_dump_json())
    assert again == reward
    assert {k: type(v) for k, v in again.arguments.items()} == {
        k: type(v) for k, v in arguments.items()
    }
