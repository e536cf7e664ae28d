"""No field of the `rl` section is inert: it changes the gradient, is refused, or is no maths."""

from typing import Any

import pytest
import torch
from torch import Tensor

from configs.distillation import Distillation
from configs.preflight import check
from configs.resolve import resolve
from configs.rl import Rl
from configs.run import RunConfig
from configs.surrogates import SURROGATES
from objectives.batch import TokenLogprobs, TrajectoryBatch
from objectives.build import ModelContext
from objectives.grpo import build_objective
from objectives.objective import loss_terms
from tasks.annotators.annotate import annotate
from tasks.trainer.rows import collate, read_rows
from tests.data.tables import scored

RECIPE = resolve("grpo_arithmetic").model_dump()
CPU = torch.device("cpu")
VOCABULARY = 16
MAX_TOKENS = 4

WITHOUT_MATHEMATICS = {
    "grpo_surrogate": "what the test below runs over",
    "builder": "names the code that reads the other fields",
    "builder_arguments": "are that code's own; one it does not take is refused when it is loaded",
    "mini_batches": "how many updates are made, not what one of them is",
    "max_steps": "when the run ends",
    "save_every": "when checkpoints are published",
    "resume": "where the run starts",
    "engine_mismatch_bound": "when a warning is given",
    "old_logprobs": "which policy's log-probabilities the trainer freezes, not what it does then",
    "certified_deterministic_forward": "whether a proof is run",
    "dynamic_sampling_rounds": "which groups are trained on, not how",
}

MATHEMATICS: dict[str, tuple[dict[str, Any], Any]] = {
    "loss_type": ({}, "seq-mean-token-mean"),
    "importance_sampling_level": ({"lower_bound_ratio": 0}, "sequence"),
    "epsilon_low": ({}, 0.05),
    "epsilon_high": ({}, 5.0),
    "lower_bound_ratio": ({}, 1.2),
    "temperature": ({}, 0.7),
    "sapo_temperature_positive": ({}, 3.0),
    "sapo_temperature_negative": ({}, 3.0),
    "kl_beta": ({}, 0.5),
    "kl_estimator": ({"kl_beta": 0.5}, "k1"),
    "entropy_coef": ({}, 0.5),
    "engine_correction": ({}, "truncate"),
    "engine_correction_low": ({"engine_correction": "mask"}, 0.9),
    "engine_correction_high": ({"engine_correction": "mask"}, 50.0),
    "advantage": ({}, "leave_one_out"),
    "unbiased_advantage": ({}, True),
    "pass_k": ({"advantage": "pass_at_k"}, 2),
    "drop_zero_variance_groups": ({}, True),
    "mask_truncated": ({}, True),
    "min_shared_prefix_tokens": ({}, 1),
}
"""For every field: settings under which it can matter, and a value other than the default."""


class Tabular:
    """A policy, or a reference, whose logits are given for every row and position."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def token_logprobs(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        every = torch.log_softmax(self.logits / temperature, -1)
        chosen = every.gather(-1, batch.response_tokens[..., None])[..., 0]
        return TokenLogprobs(chosen, -(every.exp() * every).sum(-1))

    def reference_logprobs(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        return self.token_logprobs(batch, temperature=temperature).logprobs


def batch(rl: Rl) -> TrajectoryBatch:
    """Three groups of four: with signal, with signal and unequal lengths, without signal."""
    lengths = [4, 4, 4, 4, 1, 2, 3, 4, 2, 2, 2, 2]
    table = scored(
        12,
        group_size=4,
        response_tokens=[[3, *range(4, 3 + length)] for length in lengths],
        engine_logprobs=[[-2.0 - 0.5 * t for t in range(length)] for length in lengths],
        reward=[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0],
        finish_reason=["length" if length == MAX_TOKENS else "stop" for length in lengths],
    )
    rows = read_rows(annotate(table, rl))
    return collate(rows, torch.arange(12).numpy(), CPU)


def gradient(rl: Rl) -> Tensor:
    """Return the gradient of the mean loss, old and reference policies being others."""
    chunk = batch(rl)
    shape = (*chunk.response_tokens.shape, VOCABULARY)
    logits, old, reference = (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in range(3)
    )
    context = ModelContext(name_or_path="tabular", max_response_length=MAX_TOKENS)
    objective = build_objective(rl, context, reference_scorer=Tabular(reference))
    if objective.old_logp_cache is not None:
        frozen = Tabular(old).token_logprobs(chunk, temperature=rl.temperature).logprobs
        objective.old_logp_cache.freeze(chunk.row_ids, frozen)
    loss, metrics = objective.fn(Tabular(logits.requires_grad_()), chunk)
    (term,) = loss_terms(loss, metrics, reduction=objective.reduction, num_sequences=12)
    return torch.autograd.grad(term.numerator, logits)[0] / term.weight


def config(surrogate: str, **rl: Any) -> RunConfig:
    knobs = RECIPE["rl"] | {"grpo_surrogate": surrogate, **rl}
    rollout = RECIPE["rollout"] | {"temperature": knobs["temperature"]}
    return RunConfig.model_validate(RECIPE | {"rl": knobs, "rollout": rollout})


def accepted(candidate: RunConfig) -> bool:
    try:
        check(candidate)
    except ValueError:
        return False
    return True


def test_every_field_is_known_to_do_mathematics_or_not() -> None:
    """Fields that need a teacher have a module of tests of their own."""
    known = MATHEMATICS.keys() | WITHOUT_MATHEMATICS.keys()
    assert known == Rl.model_fields.keys() - Distillation.model_fields.keys()
    assert not MATHEMATICS.keys() & WITHOUT_MATHEMATICS.keys()


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("field", MATHEMATICS)
def test_a_field_changes_the_gradient_or_is_refused(field: str, surrogate: str) -> None:
    context, value = MATHEMATICS[field]
    candidate = config(surrogate, **{**context, field: value})
    if accepted(candidate):
        before, after = gradient(config(surrogate, **context).rl), gradient(candidate.rl)
        assert before.abs().sum() > 0
        assert not torch.allclose(before, after, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("field", MATHEMATICS)
def test_a_field_matters_under_some_surrogate(field: str) -> None:
    context, value = MATHEMATICS[field]
    assert any(accepted(config(name, **{**context, field: value})) for name in SURROGATES)


@pytest.mark.parametrize("surrogate", SURROGATES)
def test_what_a_surrogate_declares_to_read_is_what_preflight_lets_through(surrogate: str) -> None:
    declared = {name for row in SURROGATES.values() for name in row.reads}
    for field in declared & MATHEMATICS.keys():
        context, value = MATHEMATICS[field]
        candidate = config(surrogate, **{**context, field: value})
        assert accepted(candidate) == (field in SURROGATES[surrogate].reads), field
