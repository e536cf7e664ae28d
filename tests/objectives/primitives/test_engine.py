import math

import pytest
import torch

from objectives.primitives.policy_gradient import engine_weights
from tests.objectives import oracle
from tests.objectives.builders import make_tokens

CORRECTIONS = ["none", "truncate", "mask", "sequence-mask"]
LN = [math.log(x) for x in (4.0, 1.5, 0.25)]


def _weights(correction: str, log_weights: list[list[float]]) -> list[list[float]]:
    logs = torch.tensor(log_weights)
    return engine_weights(
        logs,
        torch.zeros_like(logs),
        torch.ones_like(logs),
        correction=correction,
        low=0.5,
        high=2.0,
    ).tolist()


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_weights_agree_with_the_oracle(correction: str) -> None:
    tokens = make_tokens(5)
    mu = tokens.c.detach().clone()
    mu[0, 2] = torch.nan
    knobs = {"correction": correction, "low": 0.8, "high": 1.3}
    weights = engine_weights(tokens.o, mu, tokens.mask, **knobs)
    expected = oracle.engine(tokens.o.numpy(), mu.numpy(), tokens.mask.numpy(), **knobs)
    torch.testing.assert_close(weights, torch.from_numpy(expected))
    assert (weights[tokens.mask == 0] == 0).all()


def test_corrections_by_hand() -> None:
    assert _weights("none", [LN]) == [[1.0, 1.0, 1.0]]
    assert _weights("truncate", [LN])[0] == pytest.approx([2.0, 1.5, 0.25])
    assert _weights("mask", [LN])[0] == pytest.approx([0.0, 1.5, 0.0])


def test_the_geometric_mean_decides_over_a_whole_sequence() -> None:
    close = [math.log(4.0), math.log(0.3)]
    far = [math.log(4.0), math.log(1.5)]
    weights = _weights("sequence-mask", [close, far])
    assert weights[0] == pytest.approx([4.0, 0.3])
    assert weights[1] == [0.0, 0.0]


def test_an_unknown_engine_logprob_counts_as_ratio_one() -> None:
    mu = torch.tensor([[float("nan"), -1.0]])
    for correction in CORRECTIONS:
        weights = engine_weights(
            torch.full((1, 2), -1.0), mu, torch.ones(1, 2), correction=correction, low=0.9, high=1.1
        )
        assert weights.tolist() == [[1.0, 1.0]]


def test_weights_carry_no_gradient_and_stay_finite() -> None:
    o = torch.zeros(1, 1, requires_grad=True)
    weights = engine_weights(
        o, torch.full((1, 1), -500.0), torch.ones(1, 1), correction="mask", low=0.5, high=math.inf
    )
    assert weights.item() == pytest.approx(math.exp(20))
    assert not weights.requires_grad


def test_an_unknown_correction_is_refused() -> None:
    with pytest.raises(ValueError, match="engine correction is 'tis'"):
        _weights("tis", [LN])
