import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from objectives.primitives.divergences import (
    forward_kl,
    generalized_jsd,
    reverse_kl,
    topk_divergence,
)
from tests.objectives import oracle

KINDS = ["forward_kl", "reverse_kl", "jsd"]


def _logits(seed: int = 0, vocabulary: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    student, teacher = (
        torch.randn(2, 3, vocabulary, generator=g, dtype=torch.float64) * 2 for _ in range(2)
    )
    return student.requires_grad_(), teacher


def _full(kind: str, student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    if kind == "jsd":
        return generalized_jsd(student, teacher, beta=beta)
    return {"forward_kl": forward_kl, "reverse_kl": reverse_kl}[kind](student, teacher)


@pytest.mark.parametrize("kind", KINDS)
def test_divergences_agree_with_the_oracle_and_pass_gradcheck(kind: str) -> None:
    student, teacher = _logits()
    value = _full(kind, student, teacher, 0.3)
    p_student, p_teacher = (oracle.softmax(x.detach().numpy()) for x in (student, teacher))
    expected = oracle.divergence(p_student, p_teacher, kind, 0.3)
    torch.testing.assert_close(value.detach(), torch.from_numpy(expected))
    assert gradcheck(lambda x: _full(kind, x, teacher, 0.3), (student,))


def test_directions_by_hand() -> None:
    student, teacher = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    assert reverse_kl(student, teacher).item() == pytest.approx(0.368064, abs=1e-6)
    assert forward_kl(student, teacher).item() == pytest.approx(0.510826, abs=1e-6)
    assert generalized_jsd(student, teacher, beta=0.0).item() == pytest.approx(0.510826, abs=1e-6)
    assert generalized_jsd(student, teacher, beta=1.0).item() == pytest.approx(0.368064, abs=1e-6)


def test_the_mixture_weighs_the_teacher_by_beta() -> None:
    student, teacher = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    # M = 0.8 student + 0.2 teacher = [0.82, 0.18]
    kl_teacher = 0.5 * np.log(0.5 / 0.82) + 0.5 * np.log(0.5 / 0.18)
    kl_student = 0.9 * np.log(0.9 / 0.82) + 0.1 * np.log(0.1 / 0.18)
    value = generalized_jsd(student, teacher, beta=0.2).item()
    assert value == pytest.approx(0.2 * kl_teacher + 0.8 * kl_student, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_reaches_the_teacher(kind: str) -> None:
    student, teacher = _logits()
    teacher.requires_grad_()
    _full(kind, student, teacher, 0.5).sum().backward()
    assert teacher.grad is None


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_that_both_sides_rule_out_cost_nothing(kind: str) -> None:
    student, teacher = _logits()
    plain = _full(kind, student, teacher, 0.4)
    pad = torch.full((2, 3, 2), -torch.inf, dtype=torch.float64)
    wide = torch.cat([student.detach(), pad], -1).requires_grad_()
    value = _full(kind, wide, torch.cat([teacher, pad], -1), 0.4)
    torch.testing.assert_close(value, plain)
    value.sum().backward()
    assert wide.grad is not None
    assert wide.grad.isfinite().all()


@given(seed=st.integers(0, 10_000), k=st.integers(1, 6), kind=st.sampled_from(KINDS))
@settings(max_examples=60, deadline=None)
def test_topk_is_a_lower_bound_of_the_full_value(seed: int, k: int, kind: str) -> None:
    student, teacher = _logits(seed)
    logprobs, ids = teacher.log_softmax(-1).topk(k)
    bound = topk_divergence(student, ids, logprobs, kind=kind, beta=0.3)
    full = _full(kind, student, teacher, 0.3)
    assert (bound <= full + 1e-9).all()
    assert (bound >= -1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
def test_topk_merges_the_rest_into_one_bucket_on_both_sides(kind: str) -> None:
    student, teacher = _logits(3)
    logprobs, ids = teacher.log_softmax(-1).topk(2)
    value = topk_divergence(student, ids, logprobs, kind=kind, beta=0.3)
    merged = []
    for logits in (student.detach(), teacher):
        p = np.take_along_axis(oracle.softmax(logits.numpy()), ids.numpy(), -1)
        merged.append(np.concatenate([p, 1 - p.sum(-1, keepdims=True)], -1))
    torch.testing.assert_close(
        value.detach(), torch.from_numpy(oracle.divergence(*merged, kind, 0.3))
    )
    assert gradcheck(lambda x: topk_divergence(x, ids, logprobs, kind=kind, beta=0.3), (student,))


@pytest.mark.parametrize("kind", KINDS)
def test_topk_of_the_whole_vocabulary_is_the_full_value(kind: str) -> None:
    student, teacher = _logits(4)
    logprobs, ids = teacher.log_softmax(-1).topk(7)
    value = topk_divergence(student, ids, logprobs, kind=kind, beta=0.3)
    torch.testing.assert_close(value, _full(kind, student, teacher, 0.3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_teacher_without_rest_mass_keeps_the_value_finite(kind: str) -> None:
    student, _ = _logits()
    ids = torch.zeros(2, 3, 1, dtype=torch.long)
    value = topk_divergence(student, ids, torch.zeros(2, 3, 1), kind=kind)
    assert value.isfinite().all()


def test_bfloat16_logits_are_compared_in_float32() -> None:
    student, teacher = (x.detach().bfloat16() for x in _logits())
    value = forward_kl(student, teacher)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, forward_kl(student.float(), teacher.float()))


def test_unknown_kinds_shapes_and_betas_are_refused() -> None:
    student, teacher = _logits()
    with pytest.raises(ValueError, match=r"beta is 1\.5"):
        generalized_jsd(student, teacher, beta=1.5)
    with pytest.raises(ValueError, match="teacher_logits has shape"):
        forward_kl(student, teacher[..., :-1])
    ids = torch.zeros(2, 3, 1, dtype=torch.long)
    with pytest.raises(ValueError, match="divergence kind is 'kl'"):
        topk_divergence(student, ids, torch.zeros(2, 3, 1), kind="kl")
    with pytest.raises(ValueError, match="topk_logprobs has shape"):
        topk_divergence(student, ids, torch.zeros(2, 3, 2), kind="jsd")
