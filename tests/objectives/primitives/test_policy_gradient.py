import math

import pytest
import torch
from torch.autograd import gradcheck

from objectives.primitives.policy_gradient import (
    cispo_loss,
    clipped_policy_gradient_loss,
    gmpo_loss,
    policy_gradient_loss,
    sapo_loss,
)
from objectives.primitives.reductions import LOSS_TYPES, reduce_policy_gradient_loss
from tests.objectives import oracle
from tests.objectives.builders import Tokens, make_tokens, spoil

CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.3}
SAPO = {"temperature_positive": 1.0, "temperature_negative": 1.5}
SURROGATES = {
    "clipped": lambda *x: clipped_policy_gradient_loss(*x, **CLIP),
    "dual": lambda *x: clipped_policy_gradient_loss(*x, **CLIP, lower_bound_ratio=1.4),
    "sequence": lambda *x: clipped_policy_gradient_loss(
        *x, **CLIP, importance_sampling_level="sequence"
    ),
    "cispo": lambda *x: cispo_loss(*x, **CLIP),
    "sapo": lambda *x: sapo_loss(*x, **SAPO),
    "gmpo": lambda *x: gmpo_loss(*x, **CLIP),
}
ORACLES = {
    "clipped": lambda *x: oracle.clipped(*x, low=0.2, high=0.3, dual=0, level="token"),
    "dual": lambda *x: oracle.clipped(*x, low=0.2, high=0.3, dual=1.4, level="token"),
    "sequence": lambda *x: oracle.clipped(*x, low=0.2, high=0.3, dual=0, level="sequence"),
    "cispo": lambda *x: oracle.cispo(*x, low=0.2, high=0.3),
    "sapo": lambda *x: oracle.sapo(*x, positive=1.0, negative=1.5),
    "gmpo": lambda *x: oracle.gmpo(*x, low=0.2, high=0.3),
}


def _one(log_ratio: float, advantage: float, **knobs: object) -> tuple[float, float]:
    """Return the clipped loss of one token and its gradient in the log-probability."""
    c = torch.tensor([[log_ratio]], dtype=torch.float64, requires_grad=True)
    loss, _ = clipped_policy_gradient_loss(
        c, torch.zeros_like(c), torch.tensor([advantage]), torch.ones(1, 1), **CLIP, **knobs
    )
    loss.sum().backward()
    assert c.grad is not None
    return loss.item(), c.grad.item()


def _numpy(tokens: Tokens) -> list[object]:
    return [tensor.detach().numpy() for tensor in tokens]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_agree_with_the_oracle(name: str, seed: int) -> None:
    tokens = make_tokens(seed)
    loss, _ = SURROGATES[name](*tokens)
    torch.testing.assert_close(loss.detach(), torch.from_numpy(ORACLES[name](*_numpy(tokens))))


@pytest.mark.parametrize("name", [n for n in SURROGATES if n != "sequence"])
def test_surrogates_take_an_advantage_per_token(name: str) -> None:
    tokens = make_tokens(7)
    g = torch.Generator().manual_seed(0)
    advantages = torch.randn(tokens.mask.shape, generator=g, dtype=torch.float64)
    tokens = tokens._replace(advantages=spoil(advantages, tokens.mask))
    loss, _ = SURROGATES[name](*tokens)
    torch.testing.assert_close(loss.detach(), torch.from_numpy(ORACLES[name](*_numpy(tokens))))


# CISPO and the sequence level hold back part of the gradient on purpose.
@pytest.mark.parametrize("name", ["clipped", "dual", "sapo", "gmpo"])
def test_surrogates_pass_gradcheck(name: str) -> None:
    tokens = make_tokens(11)
    clean = torch.where(tokens.mask != 0, tokens.c.detach(), 0.3).requires_grad_()
    assert gradcheck(lambda c: SURROGATES[name](c, *tokens[1:])[0], (clean,))


@pytest.mark.parametrize("name", SURROGATES)
def test_garbage_in_masked_places_reaches_neither_loss_nor_gradient(name: str) -> None:
    tokens = make_tokens(2)
    loss, diagnostics = SURROGATES[name](*tokens)
    loss.sum().backward()
    masked = tokens.mask == 0
    assert (loss[masked] == 0).all()
    assert tokens.c.grad is not None
    assert tokens.c.grad.isfinite().all()
    assert (tokens.c.grad[masked] == 0).all()
    assert all((value[masked] == 0).all() for value in diagnostics.values())
    assert not any(value.requires_grad for value in diagnostics.values())


@pytest.mark.parametrize("name", SURROGATES)
def test_on_policy_every_surrogate_has_the_plain_gradient(name: str) -> None:
    tokens = make_tokens(4)
    on_policy = tokens._replace(o=tokens.c.detach())
    loss, _ = SURROGATES[name](*on_policy)
    reduce_policy_gradient_loss(loss, tokens.mask, "seq-mean-token-mean")[0].backward()
    assert tokens.c.grad is not None
    counts = tokens.mask.sum(1, keepdim=True).clamp(min=1)
    expected = -tokens.advantages[:, None] * tokens.mask / counts / 3
    torch.testing.assert_close(tokens.c.grad, expected, rtol=1e-12, atol=0)


def test_the_plain_loss_is_minus_advantage_times_logprob() -> None:
    tokens = make_tokens()
    loss = policy_gradient_loss(tokens.c, tokens.advantages, tokens.mask)
    expected = oracle.plain(*[x.detach().numpy() for x in (tokens.c, *tokens[2:])])
    torch.testing.assert_close(loss.detach(), torch.from_numpy(expected))
    loss.sum().backward()
    assert tokens.c.grad is not None
    torch.testing.assert_close(tokens.c.grad, -tokens.advantages[:, None] * tokens.mask)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 2.0, -2.5, -2.5),
        (1.5, 2.0, -2.6, 0.0),
        (0.5, 2.0, -1.0, -1.0),
        (0.9, -1.0, 0.9, 0.9),
        (0.5, -1.0, 0.8, 0.0),
        (2.0, -1.0, 2.0, 2.0),
        (2.0, 0.0, 0.0, 0.0),
    ],
)
def test_clipping_by_hand(ratio: float, advantage: float, value: float, gradient: float) -> None:
    assert _one(math.log(ratio), advantage) == pytest.approx((value, gradient), abs=1e-6)


def test_the_dual_clip_bounds_the_loss_of_bad_tokens_only() -> None:
    knobs = {"lower_bound_ratio": 3.0}
    assert _one(math.log(5.0), -1.0, **knobs) == pytest.approx((3.0, 0.0))
    assert _one(math.log(2.5), -1.0, **knobs) == pytest.approx((2.5, 2.5))
    assert _one(math.log(0.5), 1.0, **knobs) == pytest.approx((-0.5, -0.5))


def test_a_far_off_sequence_with_a_negative_advantage_stays_finite() -> None:
    c = torch.full((1, 2), 50.0, requires_grad=True)
    loss, diagnostics = clipped_policy_gradient_loss(
        c,
        torch.zeros(1, 2),
        torch.tensor([-1.0]),
        torch.ones(1, 2),
        epsilon_low=3e-4,
        epsilon_high=4e-4,
        importance_sampling_level="sequence",
        token_counts=torch.tensor([2]),
    )
    assert loss[0].tolist() == pytest.approx([math.exp(10)] * 2)
    assert diagnostics["log_ratio"].tolist() == [[10.0, 10.0]]
    loss.sum().backward()
    assert c.grad is not None
    assert c.grad.isfinite().all()


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_on_policy_token_and_sequence_level_agree_exactly(loss_type: str) -> None:
    results = []
    for level in ("token", "sequence"):
        tokens = make_tokens(6)
        loss, _ = clipped_policy_gradient_loss(
            tokens.c,
            tokens.c.detach(),
            tokens.advantages,
            tokens.mask,
            **CLIP,
            importance_sampling_level=level,
        )
        value, _ = reduce_policy_gradient_loss(loss, tokens.mask, loss_type, max_response_length=9)
        value.backward()
        results.append((value.detach(), tokens.c.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_the_sequence_gradient_is_the_papers() -> None:
    """Differentiate exp of the mean log-ratio itself, which stop-gradients do not touch."""
    tokens = make_tokens(8, spread=0.05)
    loss, _ = SURROGATES["sequence"](*tokens)
    ours, _ = reduce_policy_gradient_loss(loss, tokens.mask, "seq-mean-token-mean")
    (gradient,) = torch.autograd.grad(ours, tokens.c)
    kept = tokens.mask != 0
    log_ratio = torch.where(kept, tokens.c - tokens.o, 0).sum(1) / kept.sum(1).clamp(min=1)
    theirs = -(log_ratio.exp() * tokens.advantages)[kept.any(1)].mean()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs, tokens.c)[0])


def test_diagnostics_count_where_a_bound_binds() -> None:
    log = torch.tensor([[0.5, 0.5, -0.5, -0.5, 2.0, 0.1]])
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0, -1.0, 1.0]])
    _, seen = clipped_policy_gradient_loss(
        log, torch.zeros_like(log), advantages, torch.ones(1, 6), **CLIP, lower_bound_ratio=3.0
    )
    assert seen["clipped_high"].tolist() == [[1, 0, 0, 0, 0, 0]]
    assert seen["clipped_low"].tolist() == [[0, 0, 0, 1, 0, 0]]
    assert seen["dual_clipped"].tolist() == [[0, 0, 0, 0, 1, 0]]
    torch.testing.assert_close(seen["log_ratio"], log)


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"lower_bound_ratio": 1.0}, "lower_bound_ratio is 1.0"),
        ({"lower_bound_ratio": -2.0}, "lower_bound_ratio is -2.0"),
        ({"epsilon_low": 1.5}, "epsilon_low is 1.5"),
        ({"epsilon_high": -0.1}, "epsilon_high is -0.1"),
        ({"importance_sampling_level": "row"}, "importance_sampling_level is 'row'"),
        ({"importance_sampling_level": "sequence", "lower_bound_ratio": 3.0}, "no dual clip"),
    ],
)
def test_knobs_out_of_range_are_refused(knobs: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        clipped_policy_gradient_loss(*make_tokens(), **{**CLIP, **knobs})


def test_the_sequence_level_refuses_advantages_per_token() -> None:
    tokens = make_tokens()
    with pytest.raises(ValueError, match=r"advantages have shape \[4, 5\]"):
        SURROGATES["sequence"](tokens.c, tokens.o, torch.zeros(4, 5), tokens.mask)


def test_cispo_keeps_the_gradient_of_capped_tokens() -> None:
    o = torch.tensor([[-3.0, -1.0]], dtype=torch.float64)
    c = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    loss, seen = cispo_loss(
        c, o, torch.tensor([2.0]), torch.ones(1, 2), epsilon_low=0.2, epsilon_high=4.0
    )
    assert loss[0].tolist() == pytest.approx([5.0 * 2 * 1, 0.8 * 2 * 2])
    loss.sum().backward()
    assert c.grad is not None
    assert c.grad[0].tolist() == pytest.approx([-10.0, -1.6])
    assert seen["clipped_high"].tolist() == [[1, 0]]
    assert seen["clipped_low"].tolist() == [[0, 1]]


def test_sapos_gate_has_a_temperature_for_each_sign() -> None:
    c = torch.tensor([[math.log(3.0)], [math.log(3.0)]], requires_grad=True)
    loss, _ = sapo_loss(
        c,
        torch.zeros(2, 1),
        torch.tensor([1.0, -1.0]),
        torch.ones(2, 1),
        temperature_positive=1.0,
        temperature_negative=2.0,
    )
    # 4 sigmoid(2) and 2 sigmoid(4)
    assert loss[:, 0].tolist() == pytest.approx([-3.523188, 1.964028], abs=1e-5)
    loss.sum().backward()
    assert c.grad is not None
    # r 4 s (1 - s) at s = sigmoid(2) and sigmoid(4)
    assert c.grad[:, 0].tolist() == pytest.approx([-1.259923, 0.211953], abs=1e-5)
    with pytest.raises(ValueError, match="temperatures"):
        sapo_loss(*make_tokens(), temperature_positive=0.0, temperature_negative=1.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gmpo_clips_on_the_side_the_advantage_pushes_to(sign: float) -> None:
    c = torch.tensor([[0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    loss, seen = gmpo_loss(
        c,
        torch.zeros(1, 2),
        torch.tensor([sign]),
        torch.ones(1, 2),
        epsilon_low=0.1,
        epsilon_high=0.3,
    )
    log_mean = (0.3 - 0.5) / 2 if sign > 0 else (0.5 - 0.1) / 2
    assert loss[0].tolist() == pytest.approx([-sign * math.exp(log_mean)] * 2)
    loss[0, 0].backward()
    assert c.grad is not None
    slope = -sign * math.exp(log_mean) / 2
    assert c.grad[0].tolist() == pytest.approx([0, slope] if sign > 0 else [slope, 0])
    assert seen["clipped_high"].tolist() == [[sign > 0, 0]]
    assert seen["clipped_low"].tolist() == [[0, sign < 0]]
