import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from objectives.primitives.preferences import preference_loss, sequence_logprobs
from tests.objectives import oracle

KINDS = [("sigmoid", 0.0), ("sigmoid", 0.2), ("robust", 0.2), ("ipo", 0.0), ("hinge", 0.0)]


def _sides(seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(6, generator=g, dtype=torch.float64) * 4).requires_grad_() for _ in range(4)
    ]


@pytest.mark.parametrize(("kind", "smoothing"), KINDS)
def test_losses_agree_with_the_oracle(kind: str, smoothing: float) -> None:
    sides = _sides()
    loss = preference_loss(*sides, beta=0.3, kind=kind, label_smoothing=smoothing)
    pc, pr, rc, rr = (side.detach().numpy() for side in sides)
    expected = oracle.preference((pc - pr) - (rc - rr), beta=0.3, kind=kind, smoothing=smoothing)
    torch.testing.assert_close(loss.detach(), torch.from_numpy(np.asarray(expected)))


@pytest.mark.parametrize(("kind", "smoothing"), KINDS)
def test_losses_pass_gradcheck_and_leave_the_reference_alone(kind: str, smoothing: float) -> None:
    chosen, rejected, *reference = _sides(1)
    fixed = [side.detach() for side in reference]
    assert gradcheck(
        lambda c, r: preference_loss(c, r, *fixed, beta=0.3, kind=kind, label_smoothing=smoothing),
        (chosen, rejected),
    )
    preference_loss(chosen, rejected, *reference, beta=0.3, kind=kind).sum().backward()
    assert all(side.grad is None for side in reference)


def test_a_policy_that_is_its_reference_pays_ln_2_and_pulls_at_half_beta() -> None:
    chosen = torch.tensor([-3.0], requires_grad=True)
    rejected = torch.tensor([-5.0], requires_grad=True)
    loss = preference_loss(
        chosen, rejected, chosen.detach(), rejected.detach(), beta=0.1, kind="sigmoid"
    )
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert (chosen.grad.item(), rejected.grad.item()) == pytest.approx((-0.05, 0.05))


def test_far_off_margins_stay_finite() -> None:
    far = torch.tensor([-1e4], requires_grad=True)
    zero = torch.zeros(1)
    loss = preference_loss(far, zero, zero, zero, beta=1.0, kind="sigmoid")
    assert loss.item() == 1e4
    loss.backward()
    assert far.grad is not None
    assert far.grad.item() == -1.0


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"kind": "kto"}, "preference kind is 'kto'"),
        ({"beta": 0.0}, "beta is 0.0"),
        ({"label_smoothing": 0.5}, "label_smoothing is 0.5"),
        ({"label_smoothing": -0.1}, "label_smoothing is -0.1"),
        ({"kind": "ipo", "label_smoothing": 0.1}, "'ipo' never reads it"),
        ({"kind": "hinge", "label_smoothing": 0.1}, "'hinge' never reads it"),
    ],
)
def test_knobs_out_of_range_or_unread_are_refused(knobs: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        preference_loss(*_sides(), **{"beta": 0.1, "kind": "sigmoid", **knobs})


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="reference_rejected has shape"):
        preference_loss(*_sides()[:3], torch.zeros(1), beta=0.1, kind="sigmoid")


def test_a_sequence_is_the_sum_of_its_kept_tokens_and_the_gradient_reaches_them_alone() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, torch.nan], [-4.0, torch.inf, 0.0]], requires_grad=True)
    sums = sequence_logprobs(logprobs, torch.tensor([[1, 1, 0], [1, 0, 0]]))
    assert sums.tolist() == [-3.0, -4.0]
    sums.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="mask has shape"):
        sequence_logprobs(torch.zeros(2, 3), torch.ones(2, 2))
