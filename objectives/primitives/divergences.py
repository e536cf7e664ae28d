"""Divergences between a student's and a teacher's next-token distributions, in nats.

Logits are [..., V]; every function reduces the last axis. The teacher carries no gradient.
Arithmetic is float32, or float64 for float64 input.
"""

import math

import torch
from torch import Tensor

from objectives.primitives.shapes import require_shape

KINDS = ("forward_kl", "reverse_kl", "jsd")
"""What `topk_divergence` computes."""


def forward_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return KL(teacher, student) = sum_v p_T (log p_T - log p_S) at each position, [...].

    Raises:
        ValueError: if shapes disagree.

    >>> student, teacher = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    >>> round(forward_kl(student, teacher).item(), 6)
    0.510826
    """
    student, teacher = _log_probabilities(student_logits, teacher_logits)
    return _kl(teacher, student)


def reverse_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return KL(student, teacher) = sum_v p_S (log p_S - log p_T) at each position, [...].

    Raises:
        ValueError: if shapes disagree.

    >>> student, teacher = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    >>> round(reverse_kl(student, teacher).item(), 6)
    0.368064
    """
    student, teacher = _log_probabilities(student_logits, teacher_logits)
    return _kl(student, teacher)


def generalized_jsd(student_logits: Tensor, teacher_logits: Tensor, *, beta: float) -> Tensor:
    """Return beta KL(teacher, M) + (1 - beta) KL(student, M), M = (1-beta) student + beta teacher.

    The generalized Jensen-Shannon divergence of GKD (arXiv:2306.13649). The ends are set apart: 0
    is the forward and 1 the reverse KL, while the formula itself vanishes at both.

    Args:
        student_logits: [..., V]; carries gradient.
        teacher_logits: [..., V].
        beta: in [0, 1].

    Raises:
        ValueError: if shapes disagree or beta is out of range.

    >>> student, teacher = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    >>> round(generalized_jsd(student, teacher, beta=0.0).item(), 6)
    0.510826
    """
    student, teacher = _log_probabilities(student_logits, teacher_logits)
    return _jsd(student, teacher, beta)


def topk_divergence(
    student_logits: Tensor,
    topk_ids: Tensor,
    topk_logprobs: Tensor,
    *,
    kind: str,
    beta: float = 0.5,
) -> Tensor:
    """Return the divergence over the teacher's top-k tokens and one bucket for all others, [...].

    Both sides put the mass of every other token into the bucket, so that student mass outside the
    top-k costs something. Merging tokens never increases a divergence: this is a lower bound of
    the value over the full vocabulary, and equal to it when K = V.

    Args:
        student_logits: [..., V]; carries gradient.
        topk_ids: [..., K] int64, distinct within a position.
        topk_logprobs: [..., K] the teacher's log-probabilities of these, normalised over V.
        kind: `forward_kl`, `reverse_kl` or `jsd`.
        beta: read by `jsd`, in [0, 1].

    Raises:
        ValueError: for another kind, disagreeing shapes or beta out of range.

    >>> teacher = torch.tensor([0.5, 0.3, 0.2]).log()
    >>> student = torch.tensor([0.2, 0.3, 0.5]).log()
    >>> value = topk_divergence(student, torch.tensor([0]), teacher[:1], kind="forward_kl")
    >>> value.item() < forward_kl(student, teacher).item()
    True
    """
    require_shape("topk_logprobs", topk_logprobs, tuple(topk_ids.shape))
    require_shape("topk_ids", topk_ids, (*student_logits.shape[:-1], None))
    student = _log_softmax(student_logits)
    student_k = student.gather(-1, topk_ids)
    teacher_k = topk_logprobs.detach().to(student.dtype)
    if topk_ids.shape[-1] < student.shape[-1]:
        rest = student.scatter(-1, topk_ids, -torch.inf).logsumexp(-1, keepdim=True)
        student_k = torch.cat([student_k, rest], -1)
        teacher_k = torch.cat([teacher_k, _log_rest(teacher_k)], -1)
    if kind == "forward_kl":
        return _kl(teacher_k, student_k)
    if kind == "reverse_kl":
        return _kl(student_k, teacher_k)
    if kind == "jsd":
        return _jsd(student_k, teacher_k, beta)
    raise ValueError(f"divergence kind is {kind!r}, expected one of {', '.join(KINDS)}")


def _log_rest(logprobs: Tensor) -> Tensor:
    # Rounding can leave a mass of 0 or less; the smallest resolvable one keeps its log finite.
    rest = 1 - logprobs.exp().sum(-1, keepdim=True)
    return rest.clamp(min=torch.finfo(logprobs.dtype).eps).log()


def _log_softmax(logits: Tensor) -> Tensor:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits, -1, dtype=dtype)


def _log_probabilities(student_logits: Tensor, teacher_logits: Tensor) -> tuple[Tensor, Tensor]:
    require_shape("teacher_logits", teacher_logits, tuple(student_logits.shape))
    student = _log_softmax(student_logits)
    return student, _log_softmax(teacher_logits.detach()).to(student.dtype)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    # A token that p rules out contributes 0, also where q rules it out too.
    possible = log_p > -torch.inf
    difference = torch.where(possible, log_p, 0) - torch.where(possible, log_q, 0)
    return (log_p.exp() * difference).sum(-1)


def _jsd(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    if not 0 <= beta <= 1:
        raise ValueError(f"beta is {beta}, expected a number between 0 and 1")
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    either = (student > -torch.inf) | (teacher > -torch.inf)
    weighted = (student + math.log(1 - beta), teacher + math.log(beta))
    mixture = torch.logaddexp(*(torch.where(either, part, 0) for part in weighted))
    return beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)
