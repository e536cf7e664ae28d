"""Layers that are computed again in the backward pass, in evaluation mode."""

from collections.abc import Callable

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.recomputing import recompute_layers, recomputing
from tests.policy.adapters import adapted, qwen
from tests.trainer.builders import adapter, batch_of, make_rows, rotary


def dropping() -> PreTrainedModel:
    """A model with dropout everywhere, by modules of its layers."""
    config = GPT2Config(
        vocab_size=20, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3
    )
    assert config.resid_pdrop == config.attn_pdrop == 0.1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config).eval()


MODELS = pytest.mark.parametrize(
    "build", [qwen, dropping, adapted], ids=["whole", "with dropout", "lora"]
)


def saved_and_gradients(policy: PolicyAdapter) -> tuple[int, dict[str, torch.Tensor]]:
    """Return how many numbers a pass saved for its backward pass, and the gradients."""
    saved = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    policy.module.zero_grad(set_to_none=True)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        total = policy.token_logprobs(batch_of(make_rows()), temperature=0.7).logprobs.sum()
    total.backward()
    gradients = {n: p.grad.clone() for n, p in policy.module.named_parameters() if p.requires_grad}
    return saved, gradients


@MODELS
def test_less_is_kept_and_the_gradient_has_the_same_bits(
    build: Callable[[], PreTrainedModel],
) -> None:
    model = build()
    kept, expected = saved_and_gradients(adapter(model))
    recompute_layers(model)
    recomputed, found = saved_and_gradients(adapter(model))
    assert recomputed < 0.5 * kept
    assert found.keys() == expected.keys()
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-2
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


def test_the_model_stays_in_evaluation_mode() -> None:
    model = dropping()
    recompute_layers(model)
    adapter(model).token_logprobs(batch_of(make_rows()), temperature=1.0).logprobs.sum().backward()
    assert not any(module.training for module in model.modules())


def test_it_still_recomputes_after_the_model_has_sampled() -> None:
    model = qwen()
    kept, _ = saved_and_gradients(adapter(model))
    recompute_layers(model)
    model.eval()
    model.train(mode=False)
    assert saved_and_gradients(adapter(model))[0] < 0.5 * kept


def test_without_gradients_nothing_is_recomputed_and_the_cache_is_used() -> None:
    model = rotary()
    ids = torch.tensor([[4, 7, 9]])
    expected = model(ids, use_cache=True)
    recompute_layers(model)
    with torch.no_grad(), recomputing(model):
        found = model(ids, use_cache=True)
    assert torch.equal(found.logits, expected.logits)
    assert found.past_key_values.get_seq_length() == 3


def test_asking_twice_is_the_same_as_once() -> None:
    model = qwen()
    recompute_layers(model)
    hooks = len(model.get_input_embeddings()._forward_hooks)
    recompute_layers(model)
    assert len(model.get_input_embeddings()._forward_hooks) == hooks


def test_layers_that_drop_out_by_themselves_are_refused() -> None:
    config = OPTConfig(
        vocab_size=20,
        hidden_size=16,
        ffn_dim=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        word_embed_proj_dim=16,
        max_position_embeddings=32,
        dropout=0.5,
    )
    with pytest.raises(ValueError, match="layers of OPTForCausalLM turn dropout on"):
        recompute_layers(OPTForCausalLM(config).eval())


def test_a_model_that_cannot_recompute_is_refused() -> None:
    model = qwen()
    model.supports_gradient_checkpointing = False
    with pytest.raises(ValueError, match=r"trainer\.gradient_checkpointing=true: Qwen2ForCausalLM"):
        recompute_layers(model)


def test_a_model_that_was_not_asked_keeps_everything() -> None:
    model = qwen()
    first, _ = saved_and_gradients(PolicyAdapter(PolicyModel(model)))
    with recomputing(model):
        second, _ = saved_and_gradients(PolicyAdapter(PolicyModel(model)))
    assert first == second
