import json
import math
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from configs.rl import Regularisers, Rl, SurrogateKnobs
from configs.surrogates import SURROGATES
from objectives.batch import TokenLogprobs, TrajectoryBatch
from objectives.build import ModelContext
from objectives.grpo import build_objective
from objectives.metrics import OBJECTIVE_WEIGHT_SUM
from objectives.objective import Objective, Reduction, identity_difference
from objectives.surrogates import SURROGATE_LOSSES
from tests.objectives import oracle
from tests.objectives.builders import BigramPolicy, FixedReference, freeze, make_batch

MAX_LENGTH = 12
CONTEXT = ModelContext(name_or_path="toy", max_response_length=MAX_LENGTH)


def _build(**knobs: object) -> Objective:
    return build_objective(Rl(**knobs), CONTEXT)


class _Fixed:
    """A policy that says what it was told."""

    def __init__(self, logprobs: torch.Tensor, entropy: torch.Tensor | None = None) -> None:
        self.scored = TokenLogprobs(logprobs, entropy)

    def token_logprobs(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        return self.scored


def _hand_batch(advantages: list[float], lengths: list[int]) -> TrajectoryBatch:
    width = max(lengths)
    mask = (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()
    rows = len(lengths)
    return TrajectoryBatch(
        row_ids=torch.arange(rows),
        input_ids=torch.zeros(rows, width + 1, dtype=torch.long),
        attention_mask=torch.cat([torch.ones(rows, 1, dtype=torch.long), mask], 1),
        response_tokens=torch.zeros(rows, width, dtype=torch.long),
        loss_mask=mask,
        token_counts=mask.sum(1),
        advantages=torch.tensor(advantages, dtype=torch.float64),
    )


def _evaluate(
    objective: Objective,
    logprobs: list[list[float]],
    old: list[list[float]],
    batch: TrajectoryBatch,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    c = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    if objective.old_logp_cache is not None:
        objective.old_logp_cache.freeze(batch.row_ids, torch.tensor(old, dtype=torch.float64))
    loss, metrics = objective.fn(_Fixed(c), batch)
    loss.backward()
    assert c.grad is not None
    return loss.detach(), c.grad, {name: metric.value for name, metric in metrics.items()}


def test_every_surrogate_of_the_table_has_a_loss_and_no_other() -> None:
    assert SURROGATE_LOSSES.keys() == SURROGATES.keys()


def test_the_surrogate_table_decides_what_is_frozen_and_required() -> None:
    for name, row in SURROGATES.items():
        several = _build(grpo_surrogate=name, mini_batches=4)
        assert (several.old_logp_cache is not None) == row.consults_old_policy
        assert several.requires == row.requires
        assert several.reduction is Reduction.TOKEN_SUM
        assert _build(grpo_surrogate=name).old_logp_cache is None
    stale = build_objective(Rl(), CONTEXT, staleness=1)
    assert stale.old_logp_cache is not None
    assert _build(engine_correction="mask").requires[-1] == "engine_logprobs"


def test_with_one_update_the_ratio_is_exactly_one() -> None:
    batch = _hand_batch([1.5, -0.5], [2, 1])
    loss, gradient, metrics = _evaluate(_build(), [[-0.1, -2.3], [-1.7, 0.0]], [], batch)
    assert loss.item() == -(1.5 + 1.5 - 0.5) / 3
    assert gradient.tolist() == [[-0.5, -0.5], [0.5 / 3, 0.0]]
    assert metrics["ratio_mean"] == metrics["ratio_max"] == 1.0
    assert metrics["kl_old"] == metrics["clip_low"] == metrics["clip_high"] == 0.0


def test_clipped_over_a_frozen_policy_by_hand() -> None:
    batch = _hand_batch([2.0, -1.0], [2, 1])
    ratios = [[1.5, 1.1], [5.0, 1.0]]
    loss, gradient, metrics = _evaluate(
        _build(mini_batches=2), np.log(ratios).tolist(), [[0.0, 0.0]] * 2, batch
    )
    assert loss.item() == pytest.approx((-2.4 - 2.2 + 3.0) / 3)
    assert gradient[0].tolist() == pytest.approx([0.0, -2.2 / 3])
    assert gradient[1].tolist() == pytest.approx([0.0, 0.0])
    expected = {
        "loss": (-2.4 - 2.2 + 3.0) / 3,
        "policy_loss": (-2.4 - 2.2 + 3.0) / 3,
        "ratio_mean": 7.6 / 3,
        "ratio_max": 5.0,
        "clip_low": 0.0,
        "clip_high": 1 / 3,
        "clip_dual": 1 / 3,
        "kl_old": np.mean([r - 1 - np.log(r) for r in (1.5, 1.1, 5.0)]),
        "advantage_mean": 1.0,
        "advantage_mean_square": 3.0,
        "num_tokens": 3.0,
        "num_sequences": 2.0,
        OBJECTIVE_WEIGHT_SUM: 3.0,
    }
    assert metrics == pytest.approx(expected)


def test_gspo_by_hand() -> None:
    gspo = _build(
        importance_sampling_level="sequence",
        lower_bound_ratio=0.0,
        epsilon_low=3e-4,
        epsilon_high=4e-4,
        loss_type="seq-mean-token-mean",
        mini_batches=2,
    )
    batch = _hand_batch([1.0, -1.0, 1.0], [3, 2, 1])
    logs = [[0.3, -0.1, 0.1], [60.0, 40.0, 0.0], [0.0001, 0.0, 0.0]]
    loss, gradient, metrics = _evaluate(gspo, logs, [[0.0] * 3] * 3, batch)
    assert loss.item() == pytest.approx((-1.0004 + math.exp(10) - math.exp(1e-4)) / 3)
    assert gradient.isfinite().all()
    assert gradient.flatten().tolist() == pytest.approx([0.0] * 6 + [-math.exp(1e-4) / 3, 0, 0])
    assert metrics["sequence_clip"] == pytest.approx(1 / 3)
    assert metrics["sequence_ratio_max"] == pytest.approx(math.exp(10))
    assert metrics["sequence_ratio_min"] == pytest.approx(math.exp(1e-4))
    assert metrics["sequence_ratio_spread"] == pytest.approx(
        np.mean([(math.exp(z) - 1) ** 2 for z in (0.1, 10.0, 1e-4)])
    )


def test_legacy_pg_is_the_token_mean_of_the_plain_gradient() -> None:
    batch = _hand_batch([2.0, -1.0], [2, 1])
    loss, gradient, metrics = _evaluate(
        _build(grpo_surrogate="legacy_pg", mini_batches=3), [[-1.0, -0.5], [-3.0, 0.0]], [], batch
    )
    assert loss.item() == pytest.approx((2.0 + 1.0 - 3.0) / 3, abs=1e-12)
    assert gradient.flatten().tolist() == pytest.approx([-2 / 3, -2 / 3, 1 / 3, 0])
    assert not {"ratio_mean", "kl_old", "clip_low"} & metrics.keys()


def test_all_terms_stand_over_one_weight() -> None:
    rl = Rl(
        kl_beta=0.1,
        kl_estimator="k2",
        entropy_coef=0.01,
        engine_correction="truncate",
        engine_correction_high=1.2,
        loss_type="seq-mean-token-sum-fixed",
        mini_batches=2,
        temperature=0.8,
    )
    reference = FixedReference()
    objective = build_objective(rl, CONTEXT, reference_scorer=reference)
    batch, policy, behaviour = make_batch(), BigramPolicy(), BigramPolicy(seed=5)
    freeze(objective, batch, behaviour)
    loss, metrics = objective.fn(policy, batch)

    c, entropy = policy.token_logprobs(batch, temperature=0.8, with_entropy=True)
    o = behaviour.token_logprobs(batch, temperature=1.0).logprobs
    ref = reference.reference_logprobs(batch, temperature=0.8)
    assert entropy is not None
    assert batch.engine_logprobs is not None
    c, entropy, o, ref, mu, a, m = (
        x.detach().numpy()
        for x in (c, entropy, o, ref, batch.engine_logprobs, batch.advantages, batch.loss_mask)
    )
    surrogate = oracle.clipped(c, o, a, m, low=0.2, high=0.2, dual=3.0, level="token")
    weights = oracle.engine(o, mu, m, correction="truncate", low=0.5, high=1.2)
    total = surrogate * weights + 0.1 * oracle.kl(c, ref, m, "k2") - 0.01 * entropy
    numerator, weight = oracle.reduce(total, m, rl.loss_type, MAX_LENGTH)
    assert loss.item() == pytest.approx(numerator / weight, rel=1e-12)
    assert metrics[OBJECTIVE_WEIGHT_SUM].value == weight
    assert metrics["loss"].value == pytest.approx(loss.item())
    policy_part, _ = oracle.reduce(surrogate * weights, m, rl.loss_type, MAX_LENGTH)
    assert metrics["policy_loss"].value == pytest.approx(policy_part / weight)
    kept = m != 0
    assert metrics["entropy"].value == pytest.approx(entropy[kept].mean())
    assert metrics["kl_reference"].value == pytest.approx(((c[kept] - ref[kept]) ** 2 / 2).mean())


def test_the_loss_temperature_reaches_policy_and_reference() -> None:
    batch = make_batch()
    losses = []
    for temperature in (1.0, 0.5):
        rl = Rl(temperature=temperature, kl_beta=1.0, entropy_coef=0.1)
        objective = build_objective(rl, CONTEXT, reference_scorer=FixedReference())
        policy = BigramPolicy()
        loss, metrics = objective.fn(policy, batch)
        losses.append(loss.item())
        reference = FixedReference().reference_logprobs(batch, temperature=temperature)
        c = policy.token_logprobs(batch, temperature=temperature).logprobs.detach()
        kl = oracle.kl(c.numpy(), reference.numpy(), batch.loss_mask.numpy(), "k3")
        assert metrics["kl_reference"].value == pytest.approx(
            kl.sum() / batch.loss_mask.sum().item()
        )
    assert losses[0] != pytest.approx(losses[1])


def test_a_policy_that_is_its_reference_has_kl_zero() -> None:
    policy = BigramPolicy()
    reference = FixedReference()
    reference.policy = policy
    for estimator in ("k1", "k2", "k3"):
        objective = build_objective(
            Rl(kl_beta=0.5, kl_estimator=estimator), CONTEXT, reference_scorer=reference
        )
        assert objective.reference_scorer is reference
        _, metrics = objective.fn(policy, make_batch())
        assert metrics["kl_reference"].value == 0.0


def test_without_kl_no_reference_is_kept() -> None:
    assert (
        build_objective(Rl(), CONTEXT, reference_scorer=FixedReference()).reference_scorer is None
    )


def test_engine_diagnostics_count_unknown_and_zeroed_tokens() -> None:
    batch = _hand_batch([1.0, 1.0], [3, 1])
    mu = torch.log(torch.tensor([[0.25, 0.5, math.nan], [0.4, math.nan, math.nan]]).double())
    batch = replace(batch, engine_logprobs=mu)
    c = math.log(0.5)
    objective = _build(engine_correction="mask", engine_correction_high=1.5)
    loss, gradient, metrics = _evaluate(objective, [[c] * 3] * 2, [], batch)
    assert metrics["engine_mismatch_mean"] == pytest.approx((math.log(2) + math.log(1.25)) / 3)
    assert metrics["engine_mismatch_max"] == pytest.approx(math.log(2))
    assert metrics["engine_num_missing"] == 1.0
    assert metrics["engine_zeroed"] == 0.25
    # The zeroed token stays in the denominator.
    assert loss.item() == pytest.approx(-(0 + 1 + 1 + 1.25) / 4)
    assert gradient.flatten().tolist() == pytest.approx([0, -0.25, -0.25, -1.25 / 4, 0, 0])


def test_advantages_may_be_per_token() -> None:
    batch = _hand_batch([0.0], [2])
    batch = replace(batch, advantages=torch.tensor([[1.0, -2.0]], dtype=torch.float64))
    loss, gradient, _ = _evaluate(_build(), [[-1.0, -1.0]], [], batch)
    assert loss.item() == 0.5
    assert gradient.tolist() == [[-0.5, 1.0]]


@pytest.mark.parametrize("name", SURROGATES)
def test_a_chunk_without_training_tokens_is_a_zero_on_the_graph(name: str) -> None:
    batch = make_batch()
    batch = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))
    policy = BigramPolicy()
    loss, metrics = _build(grpo_surrogate=name).fn(policy, batch)
    assert loss.item() == metrics[OBJECTIVE_WEIGHT_SUM].value == 0.0
    loss.backward()
    assert policy.theta.grad is not None
    assert (policy.theta.grad == 0).all()


@pytest.mark.parametrize("name", SURROGATES)
def test_objectives_pickle_with_their_cache(name: str) -> None:
    rl = Rl(grpo_surrogate=name, mini_batches=2)
    objective = build_objective(rl, CONTEXT)
    batch, policy = make_batch(), BigramPolicy()
    if objective.old_logp_cache is not None:
        freeze(objective, batch, BigramPolicy(seed=5))
    copy = pickle.loads(pickle.dumps(objective))
    assert copy.identity == objective.identity
    assert copy.fn(policy, batch)[0].item() == objective.fn(policy, batch)[0].item()
    if copy.old_logp_cache is not None:
        copy.old_logp_cache.clear()
        with pytest.raises(KeyError):
            copy.fn(policy, batch)


def test_a_row_that_was_not_frozen_stops_the_loss() -> None:
    with pytest.raises(KeyError, match="freeze every row"):
        _build(mini_batches=2).fn(BigramPolicy(), make_batch())


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"grpo_surrogate": "legacy_pg", "temperature": 0.7}, "temperature is 0.7"),
        ({"grpo_surrogate": "legacy_pg", "loss_type": "seq-mean-token-sum"}, "loss_type"),
        ({"grpo_surrogate": "legacy_pg", "kl_beta": 0.1}, "kl_beta"),
        ({"grpo_surrogate": "cispo", "lower_bound_ratio": 0.0}, "lower_bound_ratio is 0.0"),
        ({"grpo_surrogate": "cispo", "importance_sampling_level": "sequence"}, "level"),
        ({"grpo_surrogate": "sapo", "epsilon_low": 0.1}, "epsilon_low"),
        ({"grpo_surrogate": "gmpo", "loss_type": "seq-mean-token-sum"}, "loss_type"),
        ({"importance_sampling_level": "sequence"}, "no dual clip"),
    ],
)
def test_knobs_that_the_surrogate_never_reads_are_refused(
    knobs: dict[str, object], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        _build(**knobs)


@pytest.mark.parametrize("bad", [True, 7.5, 0, -3, None])
def test_the_builder_validates_the_response_length_again(bad: object) -> None:
    with pytest.raises(ValueError, match=r"max_response_length is .*rollout\.max_tokens"):
        build_objective(Rl(), SimpleNamespace(max_response_length=bad))


def test_missing_inputs_are_named_with_their_remedy() -> None:
    batch = make_batch()
    with pytest.raises(ValueError, match=r"rl\.kl_beta=0\.1 needs a reference"):
        _build(kl_beta=0.1).fn(BigramPolicy(), batch)
    with pytest.raises(ValueError, match="'engine_logprobs', which the rollout stage produces"):
        _build(engine_correction="mask").fn(BigramPolicy(), replace(batch, engine_logprobs=None))
    with pytest.raises(ValueError, match=r"rl\.entropy_coef=0\.1 needs entropies"):
        _build(entropy_coef=0.1).fn(_Fixed(torch.zeros(4, 6)), batch)


CHANGES = {
    "grpo_surrogate": "cispo",
    "loss_type": "seq-mean-token-mean",
    "epsilon_low": 0.1,
    "epsilon_high": 0.3,
    "lower_bound_ratio": 0.0,
    "temperature": 0.9,
    "kl_beta": 0.1,
    "entropy_coef": 0.1,
    "engine_correction": "mask",
    "advantage": "maxrl",
    "unbiased_advantage": True,
    "drop_zero_variance_groups": True,
    "mask_truncated": True,
    "min_shared_prefix_tokens": 4,
    "dynamic_sampling_rounds": 2,
    "mini_batches": 4,
}


@pytest.mark.parametrize("knob", CHANGES)
def test_whatever_changes_the_mathematics_changes_the_identity(knob: str) -> None:
    changed = _build(**{knob: CHANGES[knob]})
    base = _build()
    assert changed.identity_digest() != base.identity_digest()
    assert identity_difference(base.identity, changed.identity)


@pytest.mark.parametrize(
    ("base", "knob", "value"),
    [
        ({"kl_beta": 0.1}, "kl_estimator", "k1"),
        ({"engine_correction": "mask"}, "engine_correction_low", 0.1),
        ({"engine_correction": "truncate"}, "engine_correction_high", 9.0),
        ({"grpo_surrogate": "sapo"}, "sapo_temperature_negative", 2.0),
        ({"advantage": "pass_at_k"}, "pass_k", 3),
    ],
)
def test_a_knob_counts_only_together_with_the_one_that_switches_it_on(
    base: dict[str, object], knob: str, value: object
) -> None:
    assert knob in _build(**base).identity
    assert knob not in _build().identity
    on = identity_difference(_build(**base).identity, _build(**base, **{knob: value}).identity)
    assert knob in on


@pytest.mark.parametrize(
    "inert",
    [
        {"save_every": 3},
        {"max_steps": 7},
        {"resume": "off"},
        {"certified_deterministic_forward": True},
        {"engine_mismatch_bound": 0.5},
        {"kl_estimator": "k1"},
        {"engine_correction_low": 0.1},
        {"engine_correction": "truncate", "engine_correction_low": 0.1},
    ],
)
def test_what_changes_nothing_is_not_part_of_the_identity(inert: dict[str, object]) -> None:
    base = {name: value for name, value in inert.items() if name == "engine_correction"}
    assert _build(**inert).identity == _build(**base).identity


def test_the_identity_names_the_constants_and_the_fixed_length() -> None:
    identity = _build().identity
    assert (identity["advantage_std_ddof"], identity["advantage_eps"]) == (0, 1e-6)
    assert identity["token_log_ratio_bound"] == 20.0
    assert "max_response_length" not in identity
    dr_grpo = _build(loss_type="seq-mean-token-sum-fixed", unbiased_advantage=True).identity
    assert dr_grpo["max_response_length"] == MAX_LENGTH
    assert "advantage_eps" not in dr_grpo
    gspo = _build(importance_sampling_level="sequence", lower_bound_ratio=0.0).identity
    assert gspo["sequence_log_ratio_cap"] == 10.0
    assert "token_log_ratio_bound" not in gspo
    legacy = _build(grpo_surrogate="legacy_pg").identity
    assert not [key for key in legacy if key.startswith(("epsilon", "lower", "token_log"))]
    assert _build(grpo_surrogate="gmpo").identity["loss_type"] == "seq-mean-token-mean"
    assert json.loads(json.dumps(dict(identity))) == dict(identity)


SETTINGS = {
    "loss_type": ({}, "seq-mean-token-mean"),
    "importance_sampling_level": ({"lower_bound_ratio": 0.0}, "sequence"),
    "epsilon_low": ({}, 0.05),
    "epsilon_high": ({}, 1.5),
    "lower_bound_ratio": ({}, 1.3),
    "temperature": ({}, 0.5),
    "sapo_temperature_positive": ({}, 3.0),
    "sapo_temperature_negative": ({}, 3.0),
    "kl_beta": ({}, 0.3),
    "kl_estimator": ({"kl_beta": 0.3}, "k2"),
    "entropy_coef": ({}, 0.3),
    "engine_correction": ({}, "truncate"),
    "engine_correction_low": ({"engine_correction": "mask"}, 0.9),
    "engine_correction_high": ({"engine_correction": "mask"}, 1.1),
}
"""Every knob of the loss: what switches it on, and a value that is not its default."""


def _step(rl: Rl) -> torch.Tensor:
    batch, policy = make_batch((7,) * 24, seed=3), BigramPolicy()
    objective = build_objective(rl, CONTEXT, reference_scorer=FixedReference())
    if objective.old_logp_cache is not None:
        freeze(objective, batch, BigramPolicy(seed=5))
    loss, _ = objective.fn(policy, batch)
    loss.backward()
    assert policy.theta.grad is not None
    return policy.theta.grad


def test_the_list_of_knobs_is_complete() -> None:
    elsewhere = {
        "grpo_surrogate",
        "certified_deterministic_forward",
        "engine_mismatch_bound",
        "old_logprobs",  # of the trainer: where the frozen log-probabilities come from
    }
    fields = SurrogateKnobs.model_fields.keys() | Regularisers.model_fields.keys()
    assert fields - elsewhere == SETTINGS.keys()


@pytest.mark.parametrize("knob", SETTINGS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_every_knob_changes_the_gradient_or_is_refused(surrogate: str, knob: str) -> None:
    switch, value = SETTINGS[knob]
    base = {"grpo_surrogate": surrogate, "mini_batches": 2, **switch}
    reads = {knob, *switch} - {"engine_correction_low", "engine_correction_high"}
    if reads <= SURROGATES[surrogate].reads:
        assert not torch.allclose(_step(Rl(**base)), _step(Rl(**base, **{knob: value})), rtol=1e-6)
    else:
        with pytest.raises(ValueError, match="never reads it"):
            _step(Rl(**base, **{knob: value}))
