"""Distillation by hand-computed numbers, through the objective and its contract."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from configs.rl import Rl
from objectives.batch import TokenLogprobs, TrajectoryBatch
from objectives.build import ModelContext
from objectives.grpo import build_objective as build_grpo
from objectives.objective import Objective, identity_difference
from objectives.opd import build_objective
from tests.objectives.builders import BigramPolicy, freeze, make_batch, step_gradient

CONTEXT = ModelContext(name_or_path="bigram", max_response_length=8)
REVERSE, FORWARD = 0.368064, 0.510826
JSD_HALF = 0.5 * (
    0.5 * math.log(0.5 / 0.7)
    + 0.5 * math.log(0.5 / 0.3)
    + 0.9 * math.log(0.9 / 0.7)
    + 0.1 * math.log(0.1 / 0.3)
)


class Student(BigramPolicy):
    """The bigram policy with the full logits of its response tokens."""

    def map_logits(
        self, batch: TrajectoryBatch, per_token: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        tokens = batch.response_mask.bool()
        width = tokens.shape[1]
        logits = self.theta[batch.input_ids[:, -width - 1 : -1]][tokens]
        values = per_token(logits, torch.arange(len(logits)))
        empty = torch.zeros(*tokens.shape, values.shape[1], dtype=values.dtype)
        return empty.masked_scatter(tokens[..., None].expand_as(empty), values)


class Teacher:
    """Another bigram policy, whose head may have rows of padding."""

    def __init__(self, padding: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self.theta = BigramPolicy(seed=5, dtype=dtype).theta.detach()
        self.padding = padding

    def logits(self, batch: TrajectoryBatch) -> Tensor:
        width = batch.response_tokens.shape[1]
        return self.theta[batch.input_ids[:, -width - 1 : -1]]

    def teacher_logits(self, batch: TrajectoryBatch) -> Callable[[Tensor], Tensor]:
        logits = self.logits(batch)[batch.response_mask.bool()]
        wide = torch.nn.functional.pad(logits, (0, self.padding), value=7.0)
        return lambda positions: wide[positions]

    def annotate(self, batch: TrajectoryBatch, topk: int = 0) -> TrajectoryBatch:
        logprobs = self.logits(batch).log_softmax(-1)
        chosen = logprobs.gather(-1, batch.response_tokens[..., None])[..., 0]
        garbage = torch.where(batch.loss_mask != 0, chosen, torch.nan)
        likeliest = logprobs.topk(topk, -1) if topk else None
        return replace(
            batch,
            teacher_logprobs=garbage,
            teacher_topk_ids=likeliest.indices if likeliest else None,
            teacher_topk_logprobs=likeliest.values if likeliest else None,
        )


class TwoSymbols:
    """A student that says 0 with probability 0.9, and a teacher that says either as often."""

    def __init__(self) -> None:
        self.theta = torch.tensor([0.9, 0.1], dtype=torch.float64).log().requires_grad_()

    def token_logprobs(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        return TokenLogprobs(self.theta.log_softmax(-1)[batch.response_tokens])

    def map_logits(
        self, batch: TrajectoryBatch, per_token: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        rows, width = batch.response_tokens.shape
        logits = self.theta.expand(rows * width, 2)
        return per_token(logits, torch.arange(rows * width)).reshape(rows, width, -1)

    def teacher_logits(self, batch: TrajectoryBatch) -> Callable[[Tensor], Tensor]:
        return lambda positions: torch.zeros(len(positions), 2, dtype=torch.float64)


def two_symbols(tokens: list[list[int]], **more: Tensor) -> TrajectoryBatch:
    response = torch.tensor(tokens)
    ones = torch.ones_like(response)
    return TrajectoryBatch(
        row_ids=torch.arange(len(tokens)),
        input_ids=torch.cat([ones[:, :1], response], 1),
        attention_mask=torch.cat([ones[:, :1], ones], 1),
        response_tokens=response,
        loss_mask=ones,
        token_counts=ones.sum(1),
        advantages=torch.zeros(len(tokens), dtype=torch.float64),
        **more,
    )


def rl(**knobs: object) -> Rl:
    return Rl(**{"lower_bound_ratio": 3.0, **knobs})


def direct(**knobs: object) -> Rl:
    return rl(distillation_mode="direct", **knobs)


def build(section: Rl, teacher: Teacher | TwoSymbols | None = None) -> Objective:
    return build_objective(section, CONTEXT, teacher_scorer=teacher)


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({"divergence": "reverse_kl"}, REVERSE),
        ({"divergence": "forward_kl"}, FORWARD),
        ({"divergence": "jsd", "jsd_beta": 0.5}, JSD_HALF),
        ({"divergence": "jsd", "jsd_beta": 0.0}, FORWARD),
        ({"divergence": "jsd", "jsd_beta": 1.0}, REVERSE),
    ],
)
def test_direct_over_two_symbols_is_the_value_by_hand(
    knobs: dict[str, object], expected: float
) -> None:
    model = TwoSymbols()
    loss, metrics = build(direct(**knobs), model).fn(model, two_symbols([[0, 1], [1, 1]]))
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metrics["teacher_divergence"].value == pytest.approx(expected, abs=1e-6)
    assert metrics["teacher_kl"].value == pytest.approx(REVERSE, abs=1e-6)


def test_direct_reverse_kl_has_the_gradient_by_hand() -> None:
    model = TwoSymbols()
    loss, _ = build(direct(), model).fn(model, two_symbols([[0, 1]]))
    # d/dlogit_i of KL(p, q) is p_i (log p_i/q_i - KL).
    expected = [p * (math.log(p / 0.5) - REVERSE) for p in (0.9, 0.1)]
    (gradient,) = torch.autograd.grad(loss, model.theta)
    assert gradient.tolist() == pytest.approx(expected, abs=1e-6)


def test_advantages_of_two_symbols_are_the_log_ratios_by_hand() -> None:
    model = TwoSymbols()
    half = torch.full((1, 2), math.log(0.5), dtype=torch.float64)
    batch = replace(
        two_symbols([[0, 1]], teacher_logprobs=half), advantages=torch.tensor([2.0]).double()
    )
    section = rl(kl_coef=0.5, task_advantage_weight=0.25)
    loss, metrics = build(section).fn(model, batch)
    gaps = [math.log(0.5 / 0.9), math.log(0.5 / 0.1)]
    advantages = [0.5 * gap + 0.25 * 2.0 for gap in gaps]
    assert loss.item() == pytest.approx(-sum(advantages) / 2)
    assert metrics["teacher_kl"].value == pytest.approx(-sum(gaps) / 2)
    (gradient,) = torch.autograd.grad(loss, model.theta)
    scores = [[0.1, -0.1], [-0.9, 0.9]]
    expected = [-sum(a * s[i] for a, s in zip(advantages, scores, strict=True)) / 2 for i in (0, 1)]
    assert gradient.tolist() == pytest.approx(expected)


def test_the_mean_of_the_advantages_is_minus_the_reverse_kl() -> None:
    model = TwoSymbols()
    tokens = [[0] * 9 + [1]]
    half = torch.full((1, 10), math.log(0.5), dtype=torch.float64)
    _, metrics = build(rl()).fn(model, two_symbols(tokens, teacher_logprobs=half))
    assert metrics["teacher_kl"].value == pytest.approx(REVERSE, abs=1e-6)
    assert metrics["advantage_mean"].value == pytest.approx(-REVERSE, abs=1e-6)


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_advantage_mode_is_the_clipped_surrogate_with_those_advantages(mini_batches: int) -> None:
    section = rl(kl_advantage_bound=0.8, task_advantage_weight=0.3, mini_batches=mini_batches)
    batch, student, old = Teacher().annotate(make_batch()), Student(), Student(seed=3)
    behaviour = (old if mini_batches > 1 else student).token_logprobs(batch, temperature=1.0)
    gap = batch.teacher_logprobs - behaviour.logprobs.detach()
    assert (gap.abs() > 0.8).any()
    advantages = gap.clamp(-0.8, 0.8) + 0.3 * batch.advantages[:, None]
    ours, theirs = build(section), build_grpo(Rl(mini_batches=mini_batches), CONTEXT)
    if mini_batches > 1:
        freeze(ours, batch, old)
        freeze(theirs, batch, old)
    found, metrics = step_gradient(ours, student, [batch])
    expected, _ = step_gradient(theirs, student, [replace(batch, advantages=advantages)])
    assert expected.abs().sum() > 0
    torch.testing.assert_close(found, expected)
    kept = batch.loss_mask != 0
    share = (gap[kept].abs() > 0.8).double().mean().item()
    assert metrics["train/teacher/bounded_fraction"].value == pytest.approx(share)
    assert metrics["train/teacher/kl"].value == pytest.approx(-gap[kept].mean().item())


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
@pytest.mark.parametrize("topk", [0, 2])
def test_direct_mode_is_the_same_however_rows_are_cut(kind: str, topk: int) -> None:
    teacher = Teacher()
    batch, student = teacher.annotate(make_batch(), topk or 1), Student()
    objective = build(direct(divergence=kind, teacher_topk=topk), teacher)
    whole, metrics = step_gradient(objective, student, [batch])
    parts = [batch.take(torch.tensor(rows)) for rows in ([2, 0], [3], [1])]
    split, merged = step_gradient(objective, student, parts)
    torch.testing.assert_close(split, whole)
    assert whole.abs().sum() > 0
    assert {k: m.value for k, m in merged.items()} == pytest.approx(
        {k: m.value for k, m in metrics.items()}
    )


def test_advantage_mode_is_the_same_however_rows_are_cut() -> None:
    batch, student = Teacher().annotate(make_batch()), Student()
    objective = build(rl(kl_advantage_bound=1.0))
    whole, _ = step_gradient(objective, student, [batch])
    parts = [batch.take(torch.tensor(rows)) for rows in ([2, 0], [3], [1])]
    split, _ = step_gradient(objective, student, parts)
    torch.testing.assert_close(split, whole)


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_a_wider_head_of_the_teacher_changes_nothing(kind: str) -> None:
    batch, student = make_batch(), Student()
    section = direct(divergence=kind)
    narrow, _ = step_gradient(build(section, Teacher()), student, [batch])
    wide, _ = step_gradient(build(section, Teacher(padding=3)), student, [batch])
    torch.testing.assert_close(wide, narrow)


@given(seed=st.integers(0, 2**16), kind=st.sampled_from(["reverse_kl", "forward_kl", "jsd"]))
def test_the_top_tokens_give_a_lower_bound_that_grows_to_the_full_value(
    seed: int, kind: str
) -> None:
    teacher, student = Teacher(), Student(seed=seed)
    batch = make_batch(seed=seed)
    full, _ = build(direct(divergence=kind), teacher).fn(student, batch)
    bounds = [
        build(direct(divergence=kind, teacher_topk=k))
        .fn(student, teacher.annotate(batch, k))[0]
        .item()
        for k in range(1, 7)
    ]
    assert all(a <= b + 1e-9 for a, b in zip(bounds, [*bounds[1:], full.item()], strict=True))
    assert bounds[-1] == pytest.approx(full.item(), abs=1e-9)


def test_mass_moved_out_of_the_top_tokens_costs_something() -> None:
    teacher = torch.tensor([[math.log(0.98)]], dtype=torch.float64)
    model = TwoSymbols()
    model.theta = torch.tensor([0.01, 0.99], dtype=torch.float64).log().requires_grad_()
    batch = two_symbols(
        [[0]],
        teacher_topk_ids=torch.tensor([[[0]]]),
        teacher_topk_logprobs=teacher[..., None],
    )
    loss, _ = build(direct(teacher_topk=1)).fn(model, batch)
    assert loss.item() == pytest.approx(
        0.01 * math.log(0.01 / 0.98) + 0.99 * math.log(0.99 / 0.02), abs=1e-6
    )
    (gradient,) = torch.autograd.grad(loss, model.theta)
    assert gradient[0] < 0 < gradient[1]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (rl(), "'teacher_logprobs', which the teacher_score stage produces"),
        (direct(), "hand build_objective a teacher_scorer"),
        (direct(teacher_topk=2), "'teacher_topk_ids'"),
    ],
)
def test_without_its_teacher_the_loss_says_what_is_missing(section: Rl, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(section).fn(Student(), make_batch())


def test_the_sequence_level_and_other_surrogates_are_refused() -> None:
    with pytest.raises(ValueError, match="importance_sampling_level is 'sequence'"):
        build(rl(importance_sampling_level="sequence", lower_bound_ratio=0.0))
    with pytest.raises(ValueError, match="grpo_surrogate is 'cispo'"):
        build(rl(grpo_surrogate="cispo", lower_bound_ratio=3.0))


def test_what_is_required_follows_the_mode() -> None:
    assert "teacher_logprobs" in build(rl()).requires
    assert build(direct()).requires == ("response_tokens", "loss_mask")
    assert build(direct(teacher_topk=3)).requires[2:] == (
        "teacher_topk_ids",
        "teacher_topk_logprobs",
    )


def test_identities_differ_in_what_the_mode_reads_and_in_nothing_else() -> None:
    def differing(a: Rl, b: Rl) -> set[str]:
        return set(identity_difference(build(a).identity, build(b).identity))

    assert differing(rl(), rl(kl_coef=0.5)) == {"kl_coef"}
    assert differing(rl(), rl(divergence="jsd")) == set()
    assert differing(rl(), rl(advantage="maxrl")) == set()
    assert "advantage" in differing(
        rl(task_advantage_weight=1.0), rl(task_advantage_weight=1.0, advantage="maxrl")
    )
    assert differing(direct(), direct(jsd_beta=0.1)) == set()
    assert differing(direct(divergence="jsd"), direct(divergence="jsd", jsd_beta=0.1)) == {
        "jsd_beta"
    }
    assert differing(direct(), direct(kl_coef=0.5, epsilon_low=0.1)) == set()
    assert "distillation_mode" in differing(rl(), direct())
