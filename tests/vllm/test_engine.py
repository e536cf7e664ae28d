"""The resident vLLM engine against transformers: numbers, weights, seeds, ends."""

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` runs these")

from vllm import SamplingParams as Fields

from tasks.policy import resident
from tasks.policy.declared import declared
from tasks.policy.files import PolicyFiles
from tasks.sampling import vllm_engine
from tasks.sampling.requests import NEUTRAL
from tasks.sampling.sampler import Completion
from tasks.sampling.vllm import KIND, VllmSampler, engine_key
from tests.vllm.builders import (
    END,
    IDS,
    MAX_PROMPT,
    MAX_TOKENS,
    PROMPTS,
    TOLERANCE,
    assert_same,
    distances,
    flat,
    model,
    params,
    perturbed,
    sampler,
    settings,
    tokens,
    untied,
    written,
)

WEIGHTS = [name.removesuffix(".weight") for name, _ in model().named_parameters()]

ELSEWHERE = {"temperature", "seed", "max_tokens", "stop_token_ids", "ignore_eos", "detokenize"}
"""Fields that every request sets beside the neutral ones."""

HARMLESS = {
    "flat_logprobs",
    "include_stop_str_in_output",
    "logprob_token_ids",
    "output_kind",
    "output_text_buffer_length",
    "prompt_logprob_start",
    "prompt_logprob_token_ids",
    "prompt_logprobs",
    "routed_experts_prompt_start",
    "skip_clone",
    "skip_reading_prefix_cache",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stream_interval",
}
"""Fields about what is returned and how."""

OFF = {
    "extra_args",
    "repetition_detection",
    "structured_outputs",
    "thinking_token_budget",
    "trace_decode_token_ids",
}
"""Fields whose default, None, is off, and which no generation config fills."""


def key_of(sampler: VllmSampler) -> str:
    return engine_key(sampler.files, sampler.arguments())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policies")


@pytest.fixture(scope="module")
def policy(root: Path) -> PolicyFiles:
    return written(model(), root / "plain")


@pytest.fixture(scope="module")
def plain(policy: PolicyFiles) -> list[list[Completion]]:
    """What the policy answers, sampled once; the order of tests keeps engine starts few."""
    return sampler(policy).sample(PROMPTS, IDS, params())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_log_probabilities_are_those_of_transformers_at_the_sampling_temperature(
    policy: PolicyFiles, temperature: float
) -> None:
    groups = sampler(policy).sample(PROMPTS, IDS, params(temperature=temperature))
    found = distances(model(), groups, temperature)
    assert found.max() < TOLERANCE
    assert found.mean() < TOLERANCE / 4
    other = distances(model(), groups, temperature + 0.1)
    assert other.mean() > 100 * TOLERANCE


def test_greedy_takes_the_likeliest_token_with_its_log_probability_at_temperature_one(
    policy: PolicyFiles,
) -> None:
    groups = sampler(policy).sample(PROMPTS, IDS, params(temperature=0.0, num_samples=2))
    assert distances(model(), groups).max() < TOLERANCE
    for prompt, (first, second) in zip(PROMPTS, groups, strict=True):
        assert first.tokens.tolist() == second.tokens.tolist()
        for position, token in enumerate(first.tokens.tolist()):
            ids = torch.tensor([[*prompt, *first.tokens.tolist()[:position]]])
            assert int(model()(ids).logits[0, -1].argmax()) == token


def test_tokens_are_drawn_from_the_whole_softmax(policy: PolicyFiles) -> None:
    many = params(temperature=2.0, num_samples=4096, max_tokens=1)
    (group,) = sampler(policy).sample([PROMPTS[0]], [1], many)
    counts = np.bincount([int(sample.tokens[0]) for sample in group], minlength=20)
    logits = model()(torch.tensor([PROMPTS[0]])).logits[0, -1] / 2.0
    expected = logits.softmax(-1).detach().numpy() * 4096
    assert (expected > 5).all()
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < 43.8  # 99.9 % quantile of chi-square with 19 degrees of freedom


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_weight_of_a_new_policy_is_sampled_from(
    policy: PolicyFiles, tmp_path: Path, name: str
) -> None:
    sampler(policy).sample(PROMPTS, IDS, params())
    changed = perturbed(model(), name)
    groups = sampler(written(changed, tmp_path)).sample(PROMPTS, IDS, params())
    assert distances(changed, groups).max() < TOLERANCE
    assert distances(model(), groups).mean() > 10 * TOLERANCE


def test_a_reloaded_engine_samples_as_one_that_started_on_the_new_weights(
    policy: PolicyFiles, tmp_path: Path
) -> None:
    sampler(policy).sample(PROMPTS, IDS, params())
    held = resident.borrow(KIND, key_of(sampler(policy)), lambda: None)
    new = sampler(written(perturbed(model()), tmp_path))
    reloaded = new.sample(PROMPTS, IDS, params())
    assert resident.borrow(KIND, key_of(new), lambda: None) is held
    resident.drop(KIND)
    assert_same(new.sample(PROMPTS, IDS, params()), reloaded)


def test_going_back_to_a_policy_gives_its_samples_again(
    policy: PolicyFiles, tmp_path: Path
) -> None:
    first = sampler(policy).sample(PROMPTS, IDS, params())
    other = sampler(written(perturbed(model()), tmp_path)).sample(PROMPTS, IDS, params())
    assert tokens(other) != tokens(first)
    assert_same(sampler(policy).sample(PROMPTS, IDS, params()), first)


def test_equal_seeds_give_equal_samples_and_any_other_number_gives_others(
    policy: PolicyFiles, plain: list[list[Completion]]
) -> None:
    engine = sampler(policy)
    assert_same(engine.sample(PROMPTS, IDS, params()), plain)
    for changed in (params(seed=4), params(step=3)):
        assert tokens(engine.sample(PROMPTS, IDS, changed)) != tokens(plain)
    assert tokens(engine.sample(PROMPTS, [12, 3, 71, 6], params())) != tokens(plain)


def test_the_samples_of_a_group_differ_and_so_do_groups_of_one_prompt(policy: PolicyFiles) -> None:
    groups = sampler(policy).sample([PROMPTS[0]] * 3, [1, 2, 3], params(temperature=1.5))
    assert len({tuple(row) for row in tokens(groups)}) > 20


def test_a_group_is_answered_alone_as_among_others(policy: PolicyFiles) -> None:
    whole = sampler(policy).sample(PROMPTS, IDS, params())
    for place in (0, 2):
        alone = sampler(policy).sample([PROMPTS[place]], [IDS[place]], params())
        assert_same(alone, [whole[place]])


def test_more_samples_leave_the_first_ones_as_they_are(policy: PolicyFiles) -> None:
    few = sampler(policy).sample(PROMPTS, IDS, params(num_samples=3))
    many = sampler(policy).sample(PROMPTS, IDS, params(num_samples=8))
    assert_same([group[:3] for group in many], few)


def test_the_end_token_is_part_of_a_response_and_the_earliest_of_several_ends_it(
    policy: PolicyFiles,
) -> None:
    hot = params(temperature=1.5, num_samples=32)
    free = flat(sampler(policy, stops=()).sample(PROMPTS, IDS, hot))
    assert {len(sample.tokens) for sample in free} == {12}
    assert {sample.finish_reason for sample in free} == {"length"}
    assert any(END in sample.tokens for sample in free)
    ends = {END, 7, 9, 4}
    ended = sampler(policy, stops=(END, 7)).sample(
        PROMPTS, IDS, replace(hot, stop_token_ids=(9, 4))
    )
    met = set()
    for whole, cut in zip(free, flat(ended), strict=True):
        places = [i for i, token in enumerate(whole.tokens.tolist()) if token in ends]
        length = places[0] + 1 if places else 12
        assert cut.tokens.tolist() == whole.tokens.tolist()[:length]
        assert cut.finish_reason == ("stop" if places else "length")
        np.testing.assert_allclose(cut.logprobs, whole.logprobs[:length], rtol=0, atol=2e-5)
        met |= ends & set(cut.tokens.tolist())
    assert met == ends


def test_an_end_token_at_the_last_position_is_a_stop(policy: PolicyFiles) -> None:
    (free,) = flat(sampler(policy, stops=()).sample([PROMPTS[0]], [1], params(num_samples=1)))
    row = free.tokens.tolist()
    length = next(i for i in range(1, len(row)) if row[i] not in row[:i]) + 1
    (cut,) = flat(
        sampler(policy, stops=(row[length - 1],)).sample(
            [PROMPTS[0]], [1], params(num_samples=1, max_tokens=length)
        )
    )
    assert cut.tokens.tolist() == row[:length]
    assert cut.finish_reason == "stop"


def test_no_field_of_a_request_is_left_to_vllm() -> None:
    public = {name for name in Fields.__struct_fields__ if not name.startswith("_")}
    assert public == NEUTRAL.keys() | ELSEWHERE | HARMLESS | OFF
    assert all(getattr(Fields(), name) is None for name in OFF)


def test_a_prompt_at_the_bound_is_answered_at_full_length(policy: PolicyFiles) -> None:
    (group,) = sampler(policy, stops=()).sample(
        [[4] * MAX_PROMPT], [1], params(max_tokens=MAX_TOKENS, num_samples=2)
    )
    assert [len(sample.tokens) for sample in group] == [MAX_TOKENS] * 2


def test_an_empty_prompt_is_refused_by_its_place(policy: PolicyFiles) -> None:
    with pytest.raises(ValueError, match=r"prompt 1 has no token; every prompt needs one"):
        sampler(policy).sample([[4], [], [5]], [1, 2, 3], params())


def test_no_prompts_give_no_responses(policy: PolicyFiles) -> None:
    assert sampler(policy).sample([], [], params()) == []


def test_without_the_renewal_the_tied_output_layer_is_stale(
    policy: PolicyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, vLLM has mended it: `pack_heads` can go."""
    monkeypatch.setattr(vllm_engine, "pack_heads", lambda model: None)
    sampler(policy).sample(PROMPTS, IDS, params())
    changed = perturbed(model(), "embed_tokens")
    groups = sampler(written(changed, tmp_path)).sample(PROMPTS, IDS, params())
    resident.drop(KIND)
    assert distances(changed, groups).max() > 100 * TOLERANCE


def test_the_process_is_as_it_was_after_an_engine_has_started(policy: PolicyFiles) -> None:
    resident.drop(KIND)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    around = (torch.get_num_threads(), os.sched_getaffinity(0), torch.get_default_dtype())
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    sampler(policy).sample(PROMPTS, IDS, params())
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()
    assert around == (
        torch.get_num_threads(),
        os.sched_getaffinity(0),
        torch.get_default_dtype(),
    )
    assert environment == {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}


def test_an_untried_version_is_not_reloaded_on_a_cpu(
    policy: PolicyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler(policy).sample(PROMPTS, IDS, params())
    monkeypatch.setattr("vllm.__version__", "0.99.1")
    with pytest.raises(RuntimeError, match=r"vLLM 0\.99\.1 is not known to reload"):
        sampler(written(perturbed(model()), tmp_path)).sample(PROMPTS, IDS, params())
    with pytest.raises(LookupError):
        resident.borrow(KIND, key_of(sampler(policy)), _refuse)


def _refuse() -> None:
    raise LookupError("no engine is held")


def test_sampling_defaults_that_a_model_ships_change_nothing(
    policy: PolicyFiles, plain: list[list[Completion]], tmp_path: Path
) -> None:
    shutil.copytree(policy.weights, tmp_path / "shipped")
    shipped = {
        "temperature": 0.1,
        "top_p": 0.5,
        "top_k": 2,
        "repetition_penalty": 1.3,
        "do_sample": True,
        "max_new_tokens": 1,
        "eos_token_id": [END, 4, 5, 6, 7, 8],
    }
    (tmp_path / "shipped" / "generation_config.json").write_text(json.dumps(shipped))
    other = replace(policy, weights=tmp_path / "shipped")
    assert declared(other).stop_token_ids == {END, 4, 5, 6, 7, 8}
    resident.drop(KIND)
    assert_same(sampler(other, stops=(END,)).sample(PROMPTS, IDS, params()), plain)


def test_an_output_layer_of_its_own_is_renewed_too(tmp_path: Path) -> None:
    first = written(untied(), tmp_path / "first")
    assert not declared(first).tied
    assert distances(untied(), sampler(first).sample(PROMPTS, IDS, params())).max() < TOLERANCE
    for name in ("embed_tokens", "lm_head"):
        changed = perturbed(untied(), name)
        groups = sampler(written(changed, tmp_path / name)).sample(PROMPTS, IDS, params())
        assert distances(changed, groups).max() < TOLERANCE


def test_sleep_is_refused_on_a_cpu(policy: PolicyFiles, tmp_path: Path) -> None:
    engine = VllmSampler(
        config=settings(tmp_path, vllm={"sleep": True}), files=policy, stop_token_ids=frozenset()
    )
    with pytest.raises(
        ValueError, match=r"rollout\.vllm\.sleep=true: vLLM has no sleep mode on cpu"
    ):
        engine.sample(PROMPTS, IDS, params())
