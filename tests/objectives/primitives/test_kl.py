import math

import pytest
import torch
from torch.autograd import gradcheck

from objectives.primitives.kl import kl_penalty
from tests.objectives import oracle
from tests.objectives.builders import make_tokens

ESTIMATORS = ["k1", "k2", "k3"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_agree_with_the_oracle_and_ignore_masked_places(estimator: str) -> None:
    tokens = make_tokens(spread=2.0)
    value = kl_penalty(tokens.c, tokens.o, tokens.mask, estimator)
    expected = oracle.kl(
        tokens.c.detach().numpy(), tokens.o.numpy(), tokens.mask.numpy(), estimator
    )
    torch.testing.assert_close(value.detach(), torch.from_numpy(expected))
    value.sum().backward()
    assert tokens.c.grad is not None
    assert tokens.c.grad.isfinite().all()
    assert (tokens.c.grad[tokens.mask == 0] == 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_pass_gradcheck(estimator: str) -> None:
    tokens = make_tokens(1)
    clean = torch.where(tokens.mask != 0, tokens.c.detach(), 0.3).requires_grad_()
    assert gradcheck(lambda c: kl_penalty(c, tokens.o, tokens.mask, estimator), (clean,))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_policy_that_is_its_reference_pays_nothing(estimator: str) -> None:
    c = torch.tensor([[-0.3, -7.1]], requires_grad=True)
    value = kl_penalty(c, c.detach(), torch.ones(1, 2), estimator)
    assert value.tolist() == [[0.0, 0.0]]


def test_k3_by_hand() -> None:
    c = torch.tensor([[0.0]], dtype=torch.float64, requires_grad=True)
    value = kl_penalty(c, torch.tensor([[math.log(2)]]), torch.ones(1, 1), "k3")
    assert value.item() == pytest.approx(1 - math.log(2))
    value.backward()
    assert c.grad is not None
    assert c.grad.item() == pytest.approx(-1.0)


def test_k3_is_clamped_from_above_only_and_at_its_input() -> None:
    c = torch.tensor([[-100.0, 100.0]], requires_grad=True)
    value = kl_penalty(c, torch.zeros(1, 2), torch.ones(1, 2), "k3")
    assert value[0].tolist() == pytest.approx([math.exp(20) - 21, 99.0], rel=1e-6)
    value.sum().backward()
    assert c.grad is not None
    assert c.grad.tolist() == [[0.0, 1.0]]


def test_no_gradient_reaches_the_reference_and_unknown_estimators_are_refused() -> None:
    c, ref = torch.zeros(1, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)
    kl_penalty(c, ref, torch.ones(1, 1), "k2").sum().backward()
    assert ref.grad is None
    with pytest.raises(ValueError, match="kl estimator is 'k4'"):
        kl_penalty(c, ref, torch.ones(1, 1), "k4")
