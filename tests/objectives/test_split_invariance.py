"""One optimizer step is the same however its rows are cut into chunks."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from configs.rl import Rl
from objectives.build import ModelContext
from objectives.grpo import build_objective
from objectives.objective import Objective
from objectives.primitives.reductions import LOSS_TYPES
from tests.objectives.builders import (
    BigramPolicy,
    FixedReference,
    freeze,
    make_batch,
    step_gradient,
)

GSPO = {"importance_sampling_level": "sequence", "lower_bound_ratio": 0.0}
TERMS = {"kl_beta": 0.1, "entropy_coef": 0.02, "temperature": 0.9}
RECIPES = {
    **{
        f"{name} {loss_type}": {"loss_type": loss_type, **knobs}
        for loss_type, (name, knobs) in itertools.product(
            LOSS_TYPES,
            {
                "clipped": {},
                "sequence": GSPO,
                "cispo": {"grpo_surrogate": "cispo"},
                "sapo": {"grpo_surrogate": "sapo"},
            }.items(),
        )
    },
    "gmpo": {"grpo_surrogate": "gmpo"},
    "legacy_pg": {"grpo_surrogate": "legacy_pg"},
    **{f"terms {kind}": {**TERMS, "kl_estimator": kind} for kind in ("k1", "k2", "k3")},
    **{
        f"engine {kind}": {"engine_correction": kind, "engine_correction_high": 1.5}
        for kind in ("truncate", "mask", "sequence-mask")
    },
    "everything": {
        **TERMS,
        **GSPO,
        "engine_correction": "mask",
        "loss_type": "seq-mean-token-sum-fixed",
    },
}
ROWS = range(4)


def _partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    if not rows:
        yield []
        return
    for rest in _partitions(rows[1:]):
        yield [[rows[0]], *rest]
        for i, part in enumerate(rest):
            yield [*rest[:i], [rows[0], *part], *rest[i + 1 :]]


PARTITIONS = list(_partitions(list(ROWS)))


def _objective(recipe: str, dtype: torch.dtype, rows: tuple[int, ...]) -> Objective:
    objective = build_objective(
        Rl(mini_batches=2, **RECIPES[recipe]),
        ModelContext(name_or_path="toy", max_response_length=12),
        reference_scorer=FixedReference(dtype),
    )
    if objective.old_logp_cache is not None:
        freeze(objective, make_batch(rows, dtype=dtype), BigramPolicy(seed=5, dtype=dtype))
    return objective


def test_all_partitions_are_there() -> None:
    assert len(PARTITIONS) == 15
    assert all(sorted(itertools.chain(*parts)) == list(ROWS) for parts in PARTITIONS)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["fp64", "fp32"]
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_gradient_and_metrics_are_the_same_for_every_chunking_in_every_order(
    recipe: str, dtype: torch.dtype, tolerance: float
) -> None:
    lengths = (5, 1, 0, 3)
    objective, policy = _objective(recipe, dtype, lengths), BigramPolicy(dtype=dtype)
    batch = make_batch(lengths, dtype=dtype)
    whole, metrics = step_gradient(objective, policy, [batch])
    assert whole.abs().max() > 1e-3
    scale = whole.abs().max()
    for parts in PARTITIONS:
        chunks = [batch.take(torch.tensor(part[::-1])) for part in reversed(parts)]
        gradient, merged = step_gradient(objective, policy, chunks)
        assert (gradient - whole).abs().max() <= tolerance * scale, parts
        values = {name: metric.value for name, metric in merged.items()}
        expected = {name: metric.value for name, metric in metrics.items()}
        assert values == pytest.approx(expected, rel=tolerance, abs=tolerance), parts


@pytest.mark.parametrize("recipe", RECIPES)
def test_fully_masked_rows_change_neither_gradient_nor_metrics(recipe: str) -> None:
    lengths = (5, 1, 0, 3)
    objective, policy = _objective(recipe, torch.float64, lengths), BigramPolicy()
    batch = make_batch(lengths)
    rows = torch.tensor([0, 1, 3, 2, 2, 2])
    whole, metrics = step_gradient(objective, policy, [batch.take(torch.tensor([0, 1, 3]))])
    for chunks in ([batch.take(rows)], [batch.take(rows[:2]), batch.take(rows[2:])]):
        gradient, merged = step_gradient(objective, policy, chunks)
        torch.testing.assert_close(gradient, whole, rtol=1e-10, atol=1e-14)
        assert {n: m.value for n, m in merged.items()} == pytest.approx(
            {n: m.value for n, m in metrics.items()}
        )


@pytest.mark.parametrize("recipe", RECIPES)
def test_padding_to_another_width_changes_nothing(recipe: str) -> None:
    lengths = (5, 1, 0, 3)
    objective, policy = _objective(recipe, torch.float64, lengths), BigramPolicy()
    batch = make_batch(lengths).take(torch.tensor([1, 3]))
    narrow = {
        name: getattr(batch, name)[:, : getattr(batch, name).shape[1] - 3]
        for name in (
            "input_ids",
            "attention_mask",
            "response_tokens",
            "loss_mask",
            "engine_logprobs",
        )
    }
    cut = type(batch)(
        row_ids=batch.row_ids,
        token_counts=batch.token_counts,
        advantages=batch.advantages,
        **narrow,
    )
    wide_gradient, _ = step_gradient(objective, policy, [batch])
    cut_gradient, _ = step_gradient(objective, policy, [cut])
    torch.testing.assert_close(cut_gradient, wide_gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_on_policy_both_levels_take_the_same_step(loss_type: str) -> None:
    gradients = []
    for knobs in ({}, GSPO):
        rl = Rl(loss_type=loss_type, **{"lower_bound_ratio": 0.0, **knobs})
        context = ModelContext(name_or_path="toy", max_response_length=12)
        gradients.append(
            step_gradient(build_objective(rl, context), BigramPolicy(), [make_batch()])[0]
        )
    assert torch.equal(*gradients)
