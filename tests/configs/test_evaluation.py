import pytest

from configs.evaluation import WHOLE_REWARD, Evaluation, correct_parts
from configs.resolve import resolve
from configs.reward import Reward


@pytest.mark.parametrize(
    ("num_samples", "pass_at", "ks"),
    [(1, [], []), (1, [1], [1]), (2, [], [1, 2]), (6, [], [1, 2, 4]), (8, [], [1, 2, 4, 8])],
)
def test_k_is_every_power_of_two_or_what_is_asked_for(
    num_samples: int, pass_at: list[int], ks: list[int]
) -> None:
    assert Evaluation(num_samples=num_samples, pass_at=pass_at).ks == ks


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({}, [WHOLE_REWARD]),
        ({"here:mine": 1.0}, ["mine"]),
        ({"gsm8k": 1.0, "format": 0.1}, ["gsm8k"]),
        ({"length": -0.1, "exact_match": 1.0, "here:mine": 1.0}, ["exact_match"]),
        ({"gsm8k": 1.0, "exact_match": 1.0}, ["gsm8k", "exact_match"]),
        ({"here:mine": 1.0, "format": 0.1}, []),
    ],
)
def test_the_part_that_decides_is_the_one_that_says_right_or_wrong(
    parts: dict[str, float], found: list[str]
) -> None:
    assert correct_parts(Evaluation(), Reward(parts=parts)) == found
    assert correct_parts(Evaluation(correct_part="x"), Reward(parts=parts)) == ["x"]


@pytest.mark.parametrize(
    "parts", ["reward.parts.gsm8k=1 reward.parts.exact_match=1", "reward.parts.format=1"]
)
def test_a_vague_reward_is_settled_by_naming_a_part(parts: str) -> None:
    vague = f"{parts} reward.parts.length=1"
    with pytest.raises(ValueError, match=r"evaluation\.correct_part=''"):
        resolve("grpo_arithmetic", vague)
    config = resolve("grpo_arithmetic", f"{vague} evaluation.correct_part=length")
    assert correct_parts(config.evaluation, config.reward) == ["length"]


def test_a_part_that_a_function_of_ones_own_returns_may_be_named() -> None:
    resolve("grpo_arithmetic", "reward.provider=here:mine evaluation.correct_part=anything")


@pytest.mark.parametrize("value", ["[0]", "[-1]", "[true]", "[1.5]", "3"])
def test_k_is_a_list_of_whole_numbers_from_1_on(value: str) -> None:
    with pytest.raises(ValueError, match=r"evaluation\.pass_at"):
        resolve("grpo_arithmetic", f"evaluation.pass_at={value}")
