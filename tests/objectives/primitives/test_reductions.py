import itertools

import pytest
import torch
from torch.autograd import gradcheck

from objectives.primitives.reductions import (
    LOSS_TYPES,
    reduce_policy_gradient_loss,
    require_response_length,
)
from tests.objectives import oracle
from tests.objectives.builders import make_mask, spoil

EXAMPLE = {
    "token-mean": 1.9,
    "seq-mean-token-mean": 1.5,
    "seq-mean-token-sum": 9.5,
    "seq-mean-token-sum-fixed": 0.7916667,
}


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    mask = make_mask((1, 9))
    return spoil(torch.tensor([[1.0], [2.0]]).expand(2, 9).double(), mask), mask


def _losses(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    mask = make_mask()
    g = torch.Generator().manual_seed(seed)
    losses = torch.randn(mask.shape, generator=g, dtype=torch.float64)
    return spoil(losses, mask).requires_grad_(), mask


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_worked_example_whole_and_in_parts(loss_type: str) -> None:
    losses, mask = _example()
    whole, _ = reduce_policy_gradient_loss(losses, mask, loss_type, max_response_length=12)
    parts = [
        reduce_policy_gradient_loss(
            losses[i : i + 1], mask[i : i + 1], loss_type, max_response_length=12
        )
        for i in range(2)
    ]
    numerator = sum(loss * weight for loss, weight in parts)
    assert whole.item() == pytest.approx(EXAMPLE[loss_type], abs=1e-6)
    assert (numerator / sum(weight for _, weight in parts)).item() == pytest.approx(whole.item())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_reductions_agree_with_the_oracle(loss_type: str) -> None:
    losses, mask = _losses()
    loss, weight = reduce_policy_gradient_loss(losses, mask, loss_type, max_response_length=7)
    numerator, count = oracle.reduce(losses.detach().numpy(), mask.numpy(), loss_type, 7)
    assert weight.item() == count
    assert loss.item() == pytest.approx(numerator / count, rel=1e-12)
    assert not weight.requires_grad


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_reductions_pass_gradcheck_and_ignore_masked_places(loss_type: str) -> None:
    losses, mask = _losses()
    clean = torch.where(mask != 0, losses.detach(), 0).requires_grad_()
    assert gradcheck(
        lambda x: reduce_policy_gradient_loss(x, mask, loss_type, max_response_length=7)[0],
        (clean,),
    )
    reduce_policy_gradient_loss(losses, mask, loss_type, max_response_length=7)[0].backward()
    assert losses.grad is not None
    assert (losses.grad[mask == 0] == 0).all()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_rows_without_tokens_change_nothing(loss_type: str) -> None:
    losses, mask = _losses()
    more = torch.cat([losses, torch.full((3, 5), torch.nan)])
    more_mask = torch.cat([mask, torch.zeros(3, 5, dtype=torch.long)])
    plain = reduce_policy_gradient_loss(losses, mask, loss_type, max_response_length=7)
    padded = reduce_policy_gradient_loss(more, more_mask, loss_type, max_response_length=7)
    torch.testing.assert_close(plain, padded)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_weight_zero_gives_a_zero_on_the_graph(loss_type: str) -> None:
    losses = torch.full((2, 3), torch.nan, requires_grad=True)
    loss, weight = reduce_policy_gradient_loss(
        losses, torch.zeros(2, 3), loss_type, max_response_length=7
    )
    assert (loss.item(), weight.item()) == (0.0, 0.0)
    loss.backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [[0.0] * 3] * 2


def test_the_fixed_length_is_neither_the_width_nor_the_longest_response() -> None:
    losses, mask = _example()
    values = {
        length: reduce_policy_gradient_loss(
            losses, mask, "seq-mean-token-sum-fixed", max_response_length=length
        )[0].item()
        for length in (12, 24)
    }
    assert values[12] == pytest.approx(2 * values[24])
    wide = torch.nn.functional.pad(losses, (0, 5)), torch.nn.functional.pad(mask, (0, 5))
    value, _ = reduce_policy_gradient_loss(
        *wide, "seq-mean-token-sum-fixed", max_response_length=12
    )
    assert value.item() == pytest.approx(values[12])


@pytest.mark.parametrize("bad", [True, False, 7.5, 8.0, 0, -1, None, "8"])
def test_a_response_length_must_be_a_positive_whole_number(bad: object) -> None:
    with pytest.raises(ValueError, match="expected a positive whole number"):
        require_response_length(bad)
    losses, mask = _losses()
    with pytest.raises(ValueError, match="max_response_length"):
        reduce_policy_gradient_loss(
            losses, mask, "seq-mean-token-sum-fixed", max_response_length=bad
        )


def test_unknown_loss_types_and_wrong_shapes_are_refused() -> None:
    losses, mask = _losses()
    with pytest.raises(ValueError, match="loss_type is 'mean'"):
        reduce_policy_gradient_loss(losses, mask, "mean")
    for loss_type, shape in itertools.product(LOSS_TYPES, [(4,), (4, 6), (3, 5)]):
        with pytest.raises(ValueError, match="mask has shape"):
            reduce_policy_gradient_loss(losses, torch.ones(shape), loss_type)
