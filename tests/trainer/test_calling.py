"""What an objective of the user's returns, and what is said of anything else."""

from types import SimpleNamespace

import pytest
import torch

from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric
from objectives.objective import Term
from tasks.trainer.calling import returned_by
from tasks.trainer.step import divide_gradients
from tests.trainer.losses import custom

LOSS = torch.ones((), requires_grad=True) * 2
WEIGHT = {OBJECTIVE_WEIGHT_SUM: Metric.sum(torch.tensor(3.0))}
TERM = Term(LOSS, torch.tensor(3.0))


@pytest.mark.parametrize("returned", [(LOSS, WEIGHT), ((TERM, TERM), WEIGHT), [LOSS, WEIGHT]])
def test_a_loss_and_its_metrics_are_returned(returned: object) -> None:
    assert returned_by(custom(lambda *_: returned), None, None) == tuple(returned)


@pytest.mark.parametrize("returned", [None, 1.0, LOSS, (LOSS,), (LOSS, WEIGHT, 1), (TERM, TERM)])
def test_anything_else_is_shown_with_what_was_expected(returned: object) -> None:
    with pytest.raises(TypeError, match=r"expected \(loss, metrics\).*rl\.builder") as raised:
        returned_by(custom(lambda *_: returned), None, None)
    assert repr(returned)[:20] in str(raised.value)


@pytest.mark.parametrize("loss", [None, 1.0, "loss"])
def test_a_loss_that_is_no_tensor_is_shown(loss: object) -> None:
    with pytest.raises(TypeError, match=f"loss is {loss!r}, expected a scalar tensor"):
        returned_by(custom(lambda *_: (loss, WEIGHT)), None, None)


@pytest.mark.parametrize("loss", [LOSS.detach(), (TERM, Term(LOSS.detach(), TERM.weight))])
def test_a_loss_without_a_gradient_is_refused(loss: object) -> None:
    with pytest.raises(ValueError, match="has no gradient: compute it from what the model returns"):
        returned_by(custom(lambda *_: (loss, WEIGHT)), None, None)


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_a_weight_that_counts_nothing_is_refused(weight: float) -> None:
    alone = SimpleNamespace(reduce=lambda value, reduction: value, num_processes=1)
    with pytest.raises(ValueError, match=rf"weight over the mini-batch is {weight:g}, expected"):
        divide_gradients([], torch.tensor(weight), alone)
