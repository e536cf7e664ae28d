"""The policy adapter against full logits of every response alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from tasks.trainer.policy import PolicyModel
from tests.policy.adapters import adapted
from tests.trainer.builders import (
    adapter,
    batch_of,
    learned_positions,
    make_rows,
    reference,
    rotary,
)

MODELS = pytest.mark.parametrize("build", [rotary, learned_positions, adapted])
TINY_CONFIG = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
}


@MODELS
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_a_padded_batch_scores_every_response_as_it_is_scored_alone(
    build: Callable, temperature: float
) -> None:
    model, rows = build(), make_rows()
    scored = adapter(model).token_logprobs(
        batch_of(rows), temperature=temperature, with_entropy=True
    )
    assert scored.entropy is not None
    for row, response in enumerate(rows.responses):
        logprobs, entropy = reference(model, rows.prompts[row], response, temperature)
        mine = scored.logprobs[row].double()
        torch.testing.assert_close(mine[: len(response)], logprobs, rtol=0, atol=3e-6)
        torch.testing.assert_close(
            scored.entropy[row].double()[: len(response)], entropy, rtol=0, atol=3e-6
        )


@MODELS
def test_scores_are_zero_at_response_padding(build: Callable) -> None:
    batch = batch_of(make_rows())
    scored = adapter(build()).token_logprobs(batch, temperature=1.0, with_entropy=True)
    padding = batch.response_mask == 0
    assert padding.sum() == 4 * 5 - 13
    assert scored.logprobs[padding].abs().max() == 0
    assert scored.entropy is not None
    assert scored.entropy[padding].abs().max() == 0
    assert (scored.logprobs[~padding] < 0).all()


@MODELS
def test_entropy_is_absent_unless_asked_for(build: Callable) -> None:
    scored = adapter(build()).token_logprobs(batch_of(make_rows()), temperature=1.0)
    assert scored.entropy is None


@MODELS
def test_tokens_that_do_not_train_are_read_all_the_same(build: Callable) -> None:
    model = build()
    trained = adapter(model).token_logprobs(batch_of(make_rows()), temperature=1.0)
    masked = adapter(model).token_logprobs(batch_of(make_rows(masked=range(4))), temperature=1.0)
    assert torch.equal(trained.logprobs, masked.logprobs)


@MODELS
@pytest.mark.parametrize("special", [0, 1], ids=["pad", "eos"])
def test_a_special_token_inside_a_prompt_is_attended(build: Callable, special: int) -> None:
    model, rows = build(), make_rows(((4, 3), (6, 3)))
    prompts = [np.array([5, special, special, 9]), rows.prompts[1]]
    rows = replace(rows, prompts=prompts)
    scored = adapter(model).token_logprobs(batch_of(rows), temperature=1.0).logprobs
    expected, _ = reference(model, prompts[0], rows.responses[0])
    torch.testing.assert_close(scored[0].double(), expected, rtol=0, atol=3e-6)
    without, _ = reference(model, [5, 9], rows.responses[0])
    assert (expected - without).abs().max() > 1e-3


@MODELS
def test_what_stands_at_padding_changes_nothing(build: Callable) -> None:
    model, batch = build(), batch_of(make_rows())
    other = replace(
        batch,
        input_ids=torch.where(batch.attention_mask == 0, 19, batch.input_ids),
        response_tokens=torch.where(batch.response_mask == 0, 19, batch.response_tokens),
    )
    scores = [adapter(model).token_logprobs(b, temperature=1.0).logprobs for b in (batch, other)]
    assert torch.equal(*scores)


@MODELS
def test_the_gradient_equals_the_one_through_full_logits(build: Callable) -> None:
    model, rows = build(), make_rows()
    adapter(model).token_logprobs(batch_of(rows), temperature=0.7).logprobs.sum().backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    mine = {name: parameter.grad.clone() for name, parameter in trained.items()}
    model.zero_grad()
    for prompt, response in zip(rows.prompts, rows.responses, strict=True):
        reference(model, prompt, response, 0.7)[0].sum().backward()
    for name, parameter in trained.items():
        assert torch.isfinite(mine[name]).all(), name
        torch.testing.assert_close(mine[name], parameter.grad, rtol=2e-4, atol=2e-5, msg=name)
    assert max(gradient.abs().max() for gradient in mine.values()) > 1e-2


def test_bfloat16_models_are_scored_in_float32() -> None:
    rows = make_rows()
    wide = adapter(rotary()).token_logprobs(batch_of(rows), temperature=0.7).logprobs
    model = rotary().bfloat16()
    scored = adapter(model).token_logprobs(batch_of(rows), temperature=0.7, with_entropy=True)
    assert scored.entropy is not None
    assert scored.logprobs.dtype is scored.entropy.dtype is torch.float32
    torch.testing.assert_close(scored.logprobs, wide, rtol=0, atol=0.02)
    assert (scored.logprobs != scored.logprobs.bfloat16()).any()
    scored.logprobs.sum().backward()
    assert all(p.grad.dtype is torch.bfloat16 for p in model.parameters())


def test_float64_models_are_scored_in_float64() -> None:
    model, rows = learned_positions().double(), make_rows()
    scored = adapter(model).token_logprobs(batch_of(rows), temperature=1.0).logprobs
    expected, _ = reference(model, rows.prompts[1], rows.responses[1])
    torch.testing.assert_close(scored[1, :5], expected, rtol=0, atol=1e-12)


def test_a_model_with_capped_logits_is_refused_by_name() -> None:
    model = Gemma2ForCausalLM(
        Gemma2Config(**TINY_CONFIG, head_dim=8, final_logit_softcapping=1.0)
    ).eval()
    with pytest.raises(ValueError, match=r"Gemma2ForCausalLM changes its logits after"):
        PolicyModel(model)


def test_a_model_with_scaled_logits_is_refused_by_name() -> None:
    model = GraniteForCausalLM(GraniteConfig(**TINY_CONFIG, logits_scaling=4.0)).eval()
    with pytest.raises(ValueError, match=r"GraniteForCausalLM changes its logits after"):
        PolicyModel(model)
