"""What is sampled depends on weights, prompt, group, seed and step, and on nothing else."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tasks.sampling import hf
from tasks.sampling.sampler import Completion
from tests.sampling.builders import (
    END,
    assert_same_samples,
    flat,
    params,
    sampler,
    token_lists,
)
from tests.trainer.builders import learned_positions, reference, rotary

PROMPTS = [[5, 9, 3], [7], [4, 4, 8, 2, 11, 6]]
IDS = [70, 71, 72]
MODELS = pytest.mark.parametrize("build", [rotary, learned_positions])


def inverse_cdf(model: PreTrainedModel, prompt: list[int], uniforms: np.ndarray) -> list[int]:
    """One response at temperature 1, token by token from the whole text, without a cache."""
    written: list[int] = []
    for uniform in uniforms:
        ids = torch.tensor([[*prompt, *written]])
        with torch.no_grad():
            probabilities = model(ids, use_cache=False).logits[0, -1].double().softmax(-1)
        cumulative = probabilities.cumsum(-1).numpy()
        written.append(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")))
        if written[-1] == END:
            break
    return written


@MODELS
def test_responses_are_the_inverse_of_the_models_own_distribution(build: Callable) -> None:
    model = build()
    groups = sampler(model).sample(PROMPTS, IDS, params())
    for prompt, group_id, group in zip(PROMPTS, IDS, groups, strict=True):
        uniforms = hf.group_uniforms(group_id, params())
        for completion, row in zip(group, uniforms, strict=True):
            assert completion.tokens.tolist() == inverse_cdf(model, prompt, row)


@MODELS
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_log_probabilities_are_those_of_the_trainer(build: Callable, temperature: float) -> None:
    model = build()
    groups = sampler(model).sample(PROMPTS, IDS, params(temperature=temperature))
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            expected, _ = reference(model, prompt, completion.tokens.tolist(), temperature)
            np.testing.assert_allclose(
                completion.logprobs, expected.detach().numpy(), rtol=0, atol=1e-5
            )


@MODELS
def test_a_prompt_is_answered_alike_alone_and_beside_longer_ones(build: Callable) -> None:
    model = build()
    together = sampler(model).sample(PROMPTS, IDS, params())
    alone = [
        sampler(model).sample([p], [i], params())[0] for p, i in zip(PROMPTS, IDS, strict=True)
    ]
    assert_same_samples(alone, together)


@MODELS
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5, 9])
def test_the_batch_size_changes_nothing(build: Callable, batch_size: int) -> None:
    model = build()
    whole = sampler(model).sample(PROMPTS, IDS, params())
    assert_same_samples(sampler(model).sample(PROMPTS, IDS, params(batch_size=batch_size)), whole)


def test_the_order_of_groups_changes_nothing() -> None:
    model, order = rotary(), [2, 0, 1]
    expected = sampler(model).sample(PROMPTS, IDS, params())
    got = sampler(model).sample([PROMPTS[i] for i in order], [IDS[i] for i in order], params())
    assert_same_samples(got, [expected[i] for i in order])


def test_samples_of_a_group_differ() -> None:
    (group,) = sampler(rotary()).sample([PROMPTS[0]], [1], params(num_samples=8))
    assert len({tuple(completion.tokens) for completion in group}) >= 7


def test_equal_prompts_of_two_groups_are_answered_differently() -> None:
    first, second = sampler(rotary()).sample([PROMPTS[0]] * 2, [1, 2], params())
    assert token_lists([first]) != token_lists([second])


def test_the_same_seed_gives_the_same_samples() -> None:
    first, second = (sampler(rotary()).sample(PROMPTS, IDS, params()) for _ in range(2))
    assert_same_samples(first, second)


@pytest.mark.parametrize("change", [{"seed": 8}, {"step": 9}])
def test_another_seed_or_step_gives_other_samples(change: dict) -> None:
    model = rotary()
    first = sampler(model).sample(PROMPTS, IDS, params())
    second = sampler(model).sample(PROMPTS, IDS, params(**change))
    assert all(a != b for a, b in zip(token_lists(first), token_lists(second), strict=True))


def test_temperature_0_is_greedy_for_every_sample() -> None:
    model = learned_positions()
    (group,) = sampler(model, stops=()).sample([PROMPTS[0]], [1], params(temperature=0.0))
    written: list[int] = []
    for _ in range(6):
        logits = model(torch.tensor([PROMPTS[0] + written])).logits[0, -1]
        written.append(int(logits.argmax()))
    assert token_lists([group]) == [[written] * 4]


def ending(stops: tuple[int, ...], *, extra: tuple[int, ...] = ()) -> list[Completion]:
    """Thirty-two responses of at most twelve tokens over a vocabulary of twenty."""
    changes = {"num_samples": 32, "max_tokens": 12, "stop_token_ids": extra}
    return sampler(rotary(), stops=stops).sample([PROMPTS[0]], [1], params(**changes))[0]


@pytest.mark.parametrize(
    ("stops", "extra", "ends"),
    [((END,), (), {END}), ((END, 9), (), {END, 9}), ((END,), (7, 12), {END, 7, 12})],
)
def test_a_response_ends_with_the_first_end_token(
    stops: tuple[int, ...], extra: tuple[int, ...], ends: set[int]
) -> None:
    responses = ending(stops, extra=extra)
    met = set()
    for response in responses:
        tokens = response.tokens.tolist()
        assert not ends & set(tokens[:-1])
        assert response.finish_reason == ("stop" if tokens[-1] in ends else "length")
        assert len(tokens) == 12 or tokens[-1] in ends
        assert len(response.logprobs) == len(tokens)
        met |= ends & set(tokens)
    assert met == ends


def test_an_earlier_end_cuts_a_response_and_changes_nothing_before_it() -> None:
    free, ended = ending(()), ending((END, 9, 4))
    for whole, cut in zip(free, ended, strict=True):
        assert whole.finish_reason == "length"
        assert cut.tokens.tolist() == whole.tokens.tolist()[: len(cut.tokens)]
        np.testing.assert_allclose(
            cut.logprobs, whole.logprobs[: len(cut.logprobs)], rtol=0, atol=1e-5
        )


def test_an_end_at_the_last_position_is_a_stop() -> None:
    free = ending(())[0].tokens.tolist()
    length = next(i for i, token in enumerate(free) if token not in free[:i] and i > 0)
    (group,) = sampler(rotary(), stops=(free[length],)).sample(
        [PROMPTS[0]], [1], params(num_samples=1, max_tokens=length + 1)
    )
    assert group[0].tokens.tolist() == free[: length + 1]
    assert group[0].finish_reason == "stop"


@pytest.mark.parametrize("threshold", [1.0, 1e-9], ids=["all together", "at once"])
def test_finished_rows_may_leave_the_batch_at_any_time(
    threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sampler(learned_positions(), stops=(END, 3, 8))
    long = params(max_tokens=20, num_samples=8)
    expected = engine.sample(PROMPTS, IDS, long)
    assert len({len(completion.tokens) for completion in flat(expected)}) > 4
    monkeypatch.setattr(hf, "REFILL_SHARE", threshold)
    assert_same_samples(engine.sample(PROMPTS, IDS, long), expected)


@MODELS
def test_the_padding_token_may_be_the_end_token_or_one_of_a_prompt(build: Callable) -> None:
    model = build()
    expected = sampler(model, pad=0).sample(PROMPTS, IDS, params())
    for pad in (END, 9, 4):
        assert_same_samples(sampler(model, pad=pad).sample(PROMPTS, IDS, params()), expected)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_restored(*, training: bool) -> None:
    model = rotary().train(training)
    sampler(model).sample(PROMPTS, IDS, params())
    assert model.training is training


def test_the_mode_of_the_model_is_restored_after_an_error() -> None:
    model = rotary().train()
    with pytest.raises(IndexError):
        sampler(model).sample([[999]], [1], params())
    assert model.training


def test_dropout_is_off_while_sampling() -> None:
    model = learned_positions()
    expected = sampler(model).sample(PROMPTS, IDS, params())
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    assert_same_samples(sampler(model.train()).sample(PROMPTS, IDS, params()), expected)


def test_no_graph_is_built() -> None:
    model = rotary()
    sampler(model).sample(PROMPTS, IDS, params())
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_random_state_of_the_caller_is_untouched() -> None:
    model = rotary()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    sampler(model).sample(PROMPTS, IDS, params())
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    assert states[2] == random.getstate()


def test_an_empty_prompt_is_refused_by_its_place() -> None:
    with pytest.raises(ValueError, match=r"prompt 1 has no token; every prompt needs one"):
        sampler(rotary()).sample([[4], [], [5]], [1, 2, 3], params())


def test_no_prompts_give_no_responses() -> None:
    assert sampler(rotary()).sample([], [], params()) == []
