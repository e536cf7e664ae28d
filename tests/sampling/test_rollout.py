"""PROMPTS to ROLLOUTS with a policy from disk."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from transformers import AutoTokenizer

from configs.run import RunConfig
from tasks.data.arithmetic import VOCABULARY
from tasks.data.schemas import ROLLOUTS, read_stamp, stamp
from tasks.policy import resident
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.sampling.rollout import evaluation_rollout, rollout
from tests.policy.builders import copied_policy, open_policy, problems, run_config
from tests.trainer.builders import reference

KINDS = ("policy", "tokenizer")


@pytest.fixture(autouse=True)
def _nothing_live() -> None:
    for kind in KINDS:
        resident.drop(kind)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def policy(root: Path) -> PolicyFiles:
    return replace(open_policy(run_config(root)), version=3)


def sampled(policy: PolicyFiles, config: RunConfig, count: int = 4, *, step: int = 0) -> pa.Table:
    return rollout(config, step, problems(count), policy)


def test_every_prompt_has_its_group_of_responses_in_order(policy: PolicyFiles, root: Path) -> None:
    table = sampled(policy, run_config(root))
    assert table.schema == ROLLOUTS
    assert table["group_id"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert table["sample_index"].to_pylist() == [0, 1] * 4
    assert len(set(table["sample_id"].to_pylist())) == 8
    assert table["prompt_text"].to_pylist()[2:4] == ["0+1="] * 2


def test_rows_say_which_policy_sampled_them(policy: PolicyFiles, root: Path) -> None:
    table = sampled(policy, run_config(root))
    assert set(table["policy_version"].to_pylist()) == {3}
    assert set(table["policy_digest"].to_pylist()) == {policy.digest}


def test_a_stamp_is_carried_on_with_the_engine_and_the_seed_that_it_drew_from(
    policy: PolicyFiles, root: Path
) -> None:
    config = run_config(root, job={"seed": 7})
    prompts = stamp(problems(4), run="tiny", step=0, stage="select_prompts")
    found = read_stamp(rollout(config, 0, prompts, policy))
    assert found == {
        "run": "tiny",
        "step": "0",
        "stage": "rollout",
        "engine": "transformers",
        "engine_version": transformers.__version__,
        "sampling_seed": "7",
    }


def test_one_policy_answers_by_the_seed_of_the_run_and_by_the_step(
    policy: PolicyFiles, root: Path
) -> None:
    seeds = [sampled(policy, run_config(root, job={"seed": seed})) for seed in (0, 0, 1)]
    first, same, other_seed = (table["response_tokens"].to_pylist() for table in seeds)
    other_step = sampled(policy, run_config(root), step=1)["response_tokens"].to_pylist()
    assert first == same
    assert first not in (other_seed, other_step)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_engine_log_probabilities_are_those_at_the_sampling_temperature(
    policy: PolicyFiles, root: Path, temperature: float
) -> None:
    table = sampled(policy, run_config(root, rollout={"temperature": temperature}))
    model = load_model(policy.weights, dtype="float32")
    for row in table.to_pylist():
        expected, _ = reference(model, row["prompt_tokens"], row["response_tokens"], temperature)
        assert row["engine_logprobs"] == pytest.approx(expected.tolist(), abs=1e-5)


def test_texts_are_the_decoded_tokens_without_special_ones(policy: PolicyFiles, root: Path) -> None:
    table = sampled(policy, run_config(root, rollout={"group_size": 16}))
    special = {0, 1, 2}
    for row in table.to_pylist():
        symbols = [VOCABULARY[token] for token in row["response_tokens"] if token not in special]
        assert row["response_text"] == "".join(symbols)


def test_finish_reasons_tell_ended_responses_from_cut_ones(policy: PolicyFiles, root: Path) -> None:
    table = sampled(policy, run_config(root, rollout={"group_size": 64}))
    reasons = set()
    for row in table.to_pylist():
        ended = row["response_tokens"][-1] == VOCABULARY.index("<eos>")
        assert row["finish_reason"] == ("stop" if ended else "length")
        assert ended or len(row["response_tokens"]) == 5
        reasons.add(row["finish_reason"])
    assert reasons == {"stop", "length"}


def test_stop_tokens_of_the_config_end_a_response(policy: PolicyFiles, root: Path) -> None:
    stops = [VOCABULARY.index(digit) for digit in "0123456789"]
    table = sampled(policy, run_config(root, rollout={"stop_token_ids": stops}))
    ends = {*stops, VOCABULARY.index("<eos>")}
    for row in table.to_pylist():
        assert not ends & set(row["response_tokens"][:-1])
        assert (row["finish_reason"] == "stop") == (row["response_tokens"][-1] in ends)
    assert "stop" in table["finish_reason"].to_pylist()


def test_all_end_tokens_of_the_generation_config_end_a_response(
    policy: PolicyFiles, root: Path, tmp_path: Path
) -> None:
    declared = [VOCABULARY.index("<eos>"), *[VOCABULARY.index(digit) for digit in "0123456789"]]
    other = copied_policy(policy, tmp_path, generation={"eos_token_id": declared})
    table = sampled(other, run_config(root))
    expected = sampled(policy, run_config(root, rollout={"stop_token_ids": declared}))
    assert table["response_tokens"].equals(expected["response_tokens"])
    assert table["finish_reason"].equals(expected["finish_reason"])


def test_sampling_defaults_shipped_with_a_model_change_nothing(
    policy: PolicyFiles, root: Path, tmp_path: Path
) -> None:
    defaults = {
        "temperature": 0.1,
        "top_p": 0.5,
        "top_k": 2,
        "repetition_penalty": 1.3,
        "do_sample": True,
        "max_new_tokens": 1,
    }
    other = copied_policy(policy, tmp_path, generation=defaults)
    written = json.loads((other.weights / "generation_config.json").read_text())
    assert written["repetition_penalty"] == 1.3
    assert sampled(other, run_config(root)).equals(sampled(policy, run_config(root)))


def test_a_prompt_met_again_at_another_step_is_answered_anew(
    policy: PolicyFiles, root: Path
) -> None:
    first, again, later = (sampled(policy, run_config(root), step=step) for step in (0, 0, 1))
    assert first.equals(again)
    assert not first["response_tokens"].equals(later["response_tokens"])


def test_another_run_seed_gives_other_responses(policy: PolicyFiles, root: Path) -> None:
    first = sampled(policy, run_config(root))
    other = sampled(policy, run_config(root, job={"seed": 1}))
    assert not first["response_tokens"].equals(other["response_tokens"])


def test_a_part_of_the_prompts_is_answered_as_within_the_whole(
    policy: PolicyFiles, root: Path
) -> None:
    config = run_config(root)
    whole = rollout(config, 0, problems(6), policy)
    part = rollout(config, 0, problems(2, first=3), policy)
    assert part["response_tokens"].to_pylist() == whole["response_tokens"].to_pylist()[6:10]


def test_prompts_beyond_the_bound_are_named(policy: PolicyFiles, root: Path) -> None:
    config = run_config(root, rollout={"max_prompt_tokens": 3})
    message = r"4 prompts exceed rollout\.max_prompt_tokens=3: 0\+0=, 0\+1=, 0\+2=, 0\+3=; raise it"
    with pytest.raises(ValueError, match=message):
        sampled(policy, config)


def test_prompts_at_the_bound_are_answered(policy: PolicyFiles, root: Path) -> None:
    assert len(sampled(policy, run_config(root, rollout={"max_prompt_tokens": 4}))) == 8


def test_the_random_state_of_the_process_is_untouched(policy: PolicyFiles, root: Path) -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    sampled(policy, run_config(root))
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()


def test_evaluation_samples_as_its_own_section_says(policy: PolicyFiles, root: Path) -> None:
    config = run_config(root, rollout={"group_size": 7}, evaluation={"num_samples": 1})
    table = evaluation_rollout(config, problems(3), policy)
    assert len(table) == 3
    greedy = rollout(
        run_config(root, rollout={"group_size": 1, "temperature": 0.0}), 9, problems(3), policy
    )
    assert table["response_tokens"].equals(greedy["response_tokens"])


def test_the_tokenizer_of_the_policy_pads_on_the_left(policy: PolicyFiles) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy.weights)
    batch = tokenizer(["1", "12+3="], padding=True)
    assert batch["attention_mask"][0] == [0, 0, 0, 0, 1]
