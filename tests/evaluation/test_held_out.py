import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from configs.reward import Reward
from tasks.data.arithmetic import VOCABULARY
from tasks.evaluation.estimators import wilson_interval
from tasks.evaluation.held_out import evaluate, sample_held_out
from tasks.policy import resident
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tests.policy.builders import open_policy, problems, run_config


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def policy(root: Path) -> PolicyFiles:
    return open_policy(run_config(root))


def first_greedy_texts(policy: PolicyFiles, count: int) -> list[str]:
    model = load_model(policy.weights, dtype="float32")
    likeliest = [
        int(model(torch.tensor([prompt])).logits[0, -1].argmax())
        for prompt in problems(count)["prompt_tokens"].to_pylist()
    ]
    return [VOCABULARY[token].strip() if token > 2 else "" for token in likeliest]


def answered(answers: list[str]) -> pa.Table:
    table = problems(len(answers))
    index = table.schema.get_field_index("answer")
    return table.set_column(index, table.schema.field("answer"), [answers])


@pytest.mark.parametrize("num_right", [0, 3, 4])
def test_accuracy_is_the_share_of_greedy_answers_that_are_exact(
    policy: PolicyFiles, root: Path, num_right: int
) -> None:
    # Every token ends a response, so that all are one token long and their texts known.
    stops = {"stop_token_ids": list(range(len(VOCABULARY)))}
    texts = first_greedy_texts(policy, 4)
    held_out = answered([text if row < num_right else "none" for row, text in enumerate(texts)])
    config = run_config(root, rollout=stops, evaluation={"num_prompts": 4})
    metrics = evaluate(config, policy, held_out)
    assert metrics["val/accuracy"] == metrics["val/reward_mean"] == num_right / 4
    assert metrics["val/num_responses"] == 4
    assert metrics["val/num_unscored"] == 0
    interval = metrics["val/accuracy_low"], metrics["val/accuracy_high"]
    assert interval == wilson_interval(num_right, 4)


def test_a_length_penalty_does_not_touch_accuracy(policy: PolicyFiles, root: Path) -> None:
    stops = {"stop_token_ids": list(range(len(VOCABULARY)))}
    held_out = answered(first_greedy_texts(policy, 4))
    config = run_config(root, rollout=stops, evaluation={"num_prompts": 4})
    penalised = config.model_copy(
        update={"reward": config.reward.model_copy(update={"overlong_buffer_tokens": 5})}
    )
    assert evaluate(penalised, policy, held_out) == evaluate(config, policy, held_out)


def test_a_weight_does_not_decide_what_is_right(policy: PolicyFiles, root: Path) -> None:
    stops = {"stop_token_ids": list(range(len(VOCABULARY)))}
    held_out = answered(first_greedy_texts(policy, 4))
    config = run_config(root, rollout=stops, evaluation={"num_prompts": 4})
    parts = {"exact_match": 0.5, "length": -3.0}
    summed = config.model_copy(update={"reward": Reward(parts=parts)})
    metrics = evaluate(summed, policy, held_out)
    assert metrics["val/accuracy"] == 1
    assert metrics["val/reward_mean"] < 0.5


def test_several_samples_give_pass_at_k(policy: PolicyFiles, root: Path) -> None:
    config = run_config(root, evaluation={"num_samples": 6, "temperature": 1.0, "pass_at": [1, 5]})
    metrics = evaluate(config, policy, problems(20))
    assert {name for name in metrics if "pass" in name} == {
        f"val/pass_at{end}/{k}" for end in ("", "_low", "_high") for k in (1, 5)
    }
    assert metrics["val/pass_at/1"] == pytest.approx(metrics["val/accuracy"])
    assert metrics["val/pass_at/1"] <= metrics["val/pass_at/5"]


def test_what_is_drawn_does_not_depend_on_the_name_of_the_policy(
    policy: PolicyFiles, root: Path
) -> None:
    config = run_config(root, evaluation={"temperature": 1.0})
    later = replace(policy, version=7)
    drawn = [sample_held_out(config, files, problems(20)) for files in (policy, later)]
    assert drawn[0]["response_tokens"].equals(drawn[1]["response_tokens"])


def test_evaluation_is_the_same_twice_and_touches_no_random_state(
    policy: PolicyFiles, root: Path
) -> None:
    config = run_config(root, evaluation={"temperature": 1.0, "num_samples": 2})
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first, second = (evaluate(config, policy, problems(20)) for _ in range(2))
    assert first == second
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()


def test_evaluation_leaves_the_policy_as_it_was(policy: PolicyFiles, root: Path) -> None:
    resident.drop("policy")
    evaluate(run_config(root), policy, problems(20))
    live = resident.borrow("policy", policy.digest, lambda: None)
    loaded = load_model(policy.weights, dtype="float32")
    for name, value in loaded.state_dict().items():
        assert torch.equal(live.state_dict()[name], value)
    assert not live.training


def test_only_the_first_prompts_are_evaluated(policy: PolicyFiles, root: Path) -> None:
    config = run_config(root, evaluation={"num_prompts": 3, "num_samples": 2, "temperature": 1.0})
    assert evaluate(config, policy, problems(20))["val/num_responses"] == 6
