"""Responses come and go while others are being written, and none of them can tell."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import Lfm2Config, MistralConfig, MistralForCausalLM, PreTrainedModel

from tasks.sampling import hf, row_cache
from tasks.sampling.row_cache import check_cache
from tests.sampling.builders import END, assert_same_samples, flat, params, sampler
from tests.trainer.builders import learned_positions, reference, rotary

PROMPTS = [[5, 9, 3], [7], [4, 4, 8, 2, 11, 6], [2, 12]]
IDS = [70, 71, 72, 73]
STOPS = (END, 3)
SKEWED = {"max_tokens": 16, "num_samples": 10}


def sliding(seed: int = 0) -> PreTrainedModel:
    """A model that sees three tokens back, of which most responses have several times as many."""
    config = MistralConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MistralForCausalLM(config).eval()


@dataclass(frozen=True)
class Call:
    """One call of the model: is it of prompts, its rows, its columns, the longest text in it."""

    is_of_prompts: bool
    rows: int
    columns: int
    longest: int


def calls_of(model: PreTrainedModel, **changes: object) -> list[Call]:
    """Sample, and return what the model was called with."""
    calls: list[Call] = []

    def note(_: torch.nn.Module, __: tuple, given: dict) -> None:
        rows, columns = given["attention_mask"].shape
        is_of_prompts = given["cache"].get_seq_length() == 0
        calls.append(Call(is_of_prompts, rows, columns, int(given["position_ids"].max()) + 1))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    sampler(model, stops=STOPS).sample(PROMPTS, IDS, params(**{**SKEWED, **changes}))
    hook.remove()
    return calls


def steps(calls: list[Call]) -> list[Call]:
    return [call for call in calls if not call.is_of_prompts]


@pytest.mark.parametrize("build", [rotary, learned_positions, sliding])
@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_what_is_written_does_not_depend_on_who_was_there_before(
    build: Callable, batch_size: int
) -> None:
    engine = sampler(build(), stops=STOPS)
    expected = engine.sample(PROMPTS, IDS, params(**SKEWED))
    lengths = [len(completion.tokens) for completion in flat(expected)]
    assert min(lengths) == 1
    assert max(lengths) == 16
    got = engine.sample(PROMPTS, IDS, params(**SKEWED, batch_size=batch_size))
    assert_same_samples(got, expected)


@pytest.mark.parametrize("build", [rotary, learned_positions, sliding])
def test_log_probabilities_are_those_of_the_whole_text(build: Callable) -> None:
    model = build()
    groups = sampler(model, stops=STOPS).sample(PROMPTS, IDS, params(**SKEWED, batch_size=5))
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            expected, _ = reference(model, prompt, completion.tokens.tolist())
            np.testing.assert_allclose(
                completion.logprobs, expected.detach().numpy(), rtol=0, atol=1e-5
            )


@pytest.mark.parametrize("spare", [1, 4])
def test_the_room_in_the_cache_changes_nothing(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sampler(rotary(), stops=STOPS)
    expected = engine.sample(PROMPTS, IDS, params(**SKEWED))
    monkeypatch.setattr(row_cache, "SPARE_COLUMNS", spare)
    assert_same_samples(engine.sample(PROMPTS, IDS, params(**SKEWED, batch_size=7)), expected)


def test_responses_of_one_token_need_no_step() -> None:
    calls = calls_of(rotary(), max_tokens=1, batch_size=7)
    assert not steps(calls)


def test_refilling_takes_fewer_steps_than_waiting_for_the_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = rotary()
    refilled = steps(calls_of(model, batch_size=8))
    monkeypatch.setattr(hf, "REFILL_SHARE", 1.0)
    waited = steps(calls_of(model, batch_size=8))
    assert len(refilled) < 0.8 * len(waited)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 64])
def test_a_prompt_is_computed_once_and_the_batch_is_bounded(batch_size: int) -> None:
    calls = calls_of(rotary(), batch_size=batch_size)
    assert sum(call.rows for call in calls if call.is_of_prompts) == len(PROMPTS)
    assert max(call.rows for call in steps(calls)) == min(batch_size, 10 * len(PROMPTS))


def test_the_batch_is_full_after_every_refill_while_others_wait() -> None:
    rows = [call.rows for call in steps(calls_of(rotary(), batch_size=7))]
    assert rows[: len(rows) // 2] == [7] * (len(rows) // 2)
    assert rows == sorted(rows, reverse=True)


def test_the_cache_is_no_wider_than_the_longest_text_in_it_and_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_cache, "SPARE_COLUMNS", 4)
    calls = steps(calls_of(rotary(), batch_size=7, num_samples=20))
    assert len(calls) > 40
    assert all(call.longest <= call.columns <= call.longest + 4 for call in calls)


def test_a_model_whose_layers_keep_a_state_is_refused_with_the_remedy() -> None:
    config = Lfm2Config(num_hidden_layers=2, full_attn_idxs=[1])
    with pytest.raises(ValueError, match=r"has LinearAttentionLayer.*set rollout\.engine=vllm"):
        check_cache(config)
