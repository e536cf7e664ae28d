"""The experts that a model chooses: recorded, and replayed."""

import pytest
import torch
from transformers import PreTrainedModel

from tasks.policy.routing import FREE, recording, replaying, routers_of
from tests.policy.adapters import qwen
from tests.policy.experts import FAMILIES, NUM_EXPERTS, NUM_LAYERS, TOP_K, mixtral

TOKENS = torch.tensor([[3, 4, 5, 6, 7], [9, 8, 7, 6, 2]])
NUM_CHOICES = NUM_LAYERS * TOP_K

FAMILY = pytest.mark.parametrize("name", FAMILIES)


def recorded(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad(), recording(routers_of(model)) as choices:
        model(TOKENS, use_cache=False)
    return choices()


@FAMILY
def test_routers_are_found_and_counted(name: str) -> None:
    assert routers_of(FAMILIES[name]()) == (NUM_EXPERTS, TOP_K, NUM_LAYERS)


def test_a_dense_model_has_none() -> None:
    assert routers_of(qwen()) is None


@FAMILY
def test_replaying_what_was_recorded_changes_no_bit(name: str) -> None:
    model = FAMILIES[name]()
    choices = recorded(model)
    assert choices.shape == (TOKENS.numel(), NUM_CHOICES)
    assert len(choices.unique()) == NUM_EXPERTS
    expected = model(TOKENS, use_cache=False).logits
    with replaying(routers_of(model), choices):
        found = model(TOKENS, use_cache=False).logits
    assert torch.equal(found, expected)


@FAMILY
def test_other_choices_are_made_exactly_where_they_are_given(name: str) -> None:
    model, routers = FAMILIES[name](), routers_of(FAMILIES[name]())
    choices = recorded(model)
    choices[3] = torch.tensor([2, 3, 0, 1])
    choices[7, :TOP_K] = FREE
    with torch.no_grad(), replaying(routers, choices), recording(routers) as made:
        changed = model(TOKENS, use_cache=False).logits
    assert torch.equal(made(), choices.where(choices != FREE, recorded(model)))
    plain = model(TOKENS, use_cache=False).logits
    torch.testing.assert_close(changed[0, :3], plain[0, :3])
    assert not torch.allclose(changed[0, 3], plain[0, 3])


def test_a_router_trains_by_the_weights_of_the_choices_replayed() -> None:
    """Mixtral's weights are the softmax over the experts that were chosen."""
    model = mixtral()
    router = model.model.layers[0].mlp.gate
    hidden = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    choices = torch.tensor([[0, 1, 0, 0], [3, 2, 0, 0], [1, 3, 0, 0]])
    with replaying(routers_of(model), choices):
        logits, scores, chosen = router(hidden)
    assert torch.equal(chosen, choices[:, :TOP_K])
    expected = logits.gather(1, chosen).softmax(-1)
    torch.testing.assert_close(scores, expected)
    scores[:, 0].sum().backward()
    assert router.weight.grad.abs().sum() > 0


def test_choices_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match="6 choices per token, expected 4: the model has 2 layers"):
        replaying(routers_of(mixtral()), torch.zeros(3, 6))


def test_selections_outside_of_a_router_are_left_alone() -> None:
    scores = torch.arange(5.0)[None]
    with replaying(routers_of(mixtral()), torch.zeros(1, NUM_CHOICES)):
        assert scores.topk(TOP_K).indices.tolist() == [[4, 3]]
