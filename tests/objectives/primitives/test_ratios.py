import math

import pytest
import torch

from objectives.primitives.ratios import sequence_log_ratio, sequence_mean, token_log_ratio
from tests.objectives import oracle
from tests.objectives.builders import make_tokens


def _leaf(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_token_log_ratio_agrees_with_the_oracle_and_reads_no_masked_place() -> None:
    tokens = make_tokens(spread=60.0)
    value = token_log_ratio(tokens.c, tokens.o, tokens.mask)
    expected = oracle.token_log_ratio(
        tokens.c.detach().numpy(), tokens.o.numpy(), tokens.mask.numpy()
    )
    torch.testing.assert_close(value.detach(), torch.from_numpy(expected))
    assert expected.min() == -20
    assert expected.max() == 20
    value.sum().backward()
    inside = (tokens.mask != 0) & (value.detach().abs() < 20)
    assert tokens.c.grad is not None
    torch.testing.assert_close(tokens.c.grad, inside.double())


def test_no_gradient_reaches_the_behaviour_policy() -> None:
    c, o = _leaf([[-1.0]]), _leaf([[-2.0]])
    (token_log_ratio(c, o, torch.ones(1, 1)).sum()).backward()
    assert o.grad is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masks_may_be_of_any_number_type(dtype: torch.dtype) -> None:
    c, o = torch.tensor([[1.0, 5.0]]), torch.tensor([[0.5, 0.0]])
    mask = torch.tensor([[1, 0]]).to(dtype)
    assert token_log_ratio(c, o, mask).tolist() == [[0.5, 0.0]]
    assert sequence_log_ratio(c, o, mask, torch.tensor([1])).tolist() == [[0.5, 0.0]]


def test_a_sequence_shares_its_geometric_mean_ratio() -> None:
    o = torch.full((1, 4), -1.0, dtype=torch.float64)
    c = _leaf([[-0.7, -1.1, -0.9, 7.0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    ratio = sequence_log_ratio(c, o, mask, torch.tensor([3])).exp()
    assert ratio[0, :3].tolist() == pytest.approx([1.105171] * 3, abs=1e-6)
    ratio[0, 1].backward()
    assert c.grad is not None
    assert c.grad[0].tolist() == pytest.approx([0.0, 1.105171, 0.0, 0.0], abs=1e-6)


def test_the_sequence_log_ratio_is_capped_above_and_free_below() -> None:
    o = torch.zeros(2, 2, dtype=torch.float64)
    c = _leaf([[40.0, 60.0], [-40.0, -60.0]])
    value = sequence_log_ratio(c, o, torch.ones(2, 2), torch.tensor([2, 2]))
    assert value.tolist() == [[10.0, 10.0], [-50.0, -50.0]]
    value.sum().backward()
    assert c.grad is not None
    assert c.grad.tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_sequence_log_ratio_agrees_with_the_oracle() -> None:
    tokens = make_tokens(3)
    value = sequence_log_ratio(tokens.c, tokens.o, tokens.mask, tokens.mask.sum(1))
    expected = oracle.sequence_log_ratio(
        tokens.c.detach().numpy(), tokens.o.numpy(), tokens.mask.numpy()
    )
    torch.testing.assert_close(value.detach(), torch.from_numpy(expected))
    value.sum().backward()
    assert tokens.c.grad is not None
    torch.testing.assert_close(tokens.c.grad, tokens.mask.double())


def test_a_row_without_tokens_has_ratio_one() -> None:
    nan = torch.full((1, 2), math.nan)
    value = sequence_log_ratio(nan, nan, torch.zeros(1, 2), torch.tensor([0]))
    assert value.tolist() == [[0.0, 0.0]]
    assert sequence_mean(nan, torch.zeros(1, 2)).tolist() == [0.0]


def test_shapes_that_disagree_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"old_logprobs has shape \[2, 3\], expected \[2, 2\]"):
        token_log_ratio(torch.ones(2, 2), torch.ones(2, 3), torch.ones(2, 2))
    with pytest.raises(ValueError, match="token_counts"):
        sequence_log_ratio(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2), torch.ones(3))
