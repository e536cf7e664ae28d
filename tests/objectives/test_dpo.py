"""DPO over pairs of completions: values, gradients, and what must not change them."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from configs.dpo import Dpo
from objectives.dpo import build_objective
from objectives.metrics import Metric
from objectives.objective import Objective
from objectives.pairs import PreferenceBatch
from tests.objectives import oracle
from tests.objectives.builders import BigramPolicy, step_gradient
from tests.objectives.pair_builders import make_pairs
from tests.objectives.test_split_invariance import PARTITIONS

FORMS = {
    "sigmoid": Dpo(beta=0.3),
    "smoothed": Dpo(beta=0.3, label_smoothing=0.2),
    "robust": Dpo(beta=0.3, kind="robust", label_smoothing=0.2),
    "ipo": Dpo(beta=0.3, kind="ipo"),
    "hinge": Dpo(beta=0.3, kind="hinge"),
    "sft": Dpo(beta=0.3, sft_coef=0.5),
    "everything": Dpo(beta=0.3, kind="ipo", sft_coef=0.5),
}
NUM_TRAINED = 3
"""Pairs of the builder with a token on both sides."""


def values(metrics: dict[str, Metric]) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items()}


def token_sums(policy: BigramPolicy, batch: PreferenceBatch) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and token counts of all completions, token by token."""
    rows = batch.responses
    width = rows.response_tokens.shape[1]
    sums = np.zeros(len(rows.row_ids))
    for row in range(len(sums)):
        for t in range(width):
            if rows.loss_mask[row, t]:
                before, after = rows.input_ids[row, -width - 1 + t], rows.response_tokens[row, t]
                sums[row] += policy.theta[before].log_softmax(-1)[after].item()
    return sums, rows.loss_mask.sum(1).numpy()


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_is_that_of_the_oracle_pair_by_pair(form: str) -> None:
    dpo, policy, reference = FORMS[form], BigramPolicy(), BigramPolicy(seed=9)
    batch = make_pairs(reference=reference)
    sums, counts = token_sums(policy, batch)
    theirs, _ = token_sums(reference, batch)
    divisor = np.maximum(counts, 1) if dpo.kind == "ipo" else np.ones_like(counts)
    (pc, pr), (rc, rr) = np.split(sums / divisor, 2), np.split(theirs / divisor, 2)
    losses = oracle.preference(
        (pc - pr) - (rc - rr), beta=dpo.beta, kind=dpo.kind, smoothing=dpo.label_smoothing
    )
    losses = losses + dpo.sft_coef * -np.split(sums, 2)[0] / np.split(counts, 2)[0]
    loss, metrics = build_objective(dpo).fn(policy, batch)
    assert loss.item() == pytest.approx(losses[:NUM_TRAINED].mean())
    assert metrics["loss"].value == pytest.approx(loss.item())
    rewards = dpo.beta * (pc - rc)[:NUM_TRAINED], dpo.beta * (pr - rr)[:NUM_TRAINED]
    assert metrics["reward_chosen"].value == pytest.approx(rewards[0].mean())
    assert metrics["reward_rejected"].value == pytest.approx(rewards[1].mean())
    assert metrics["margin"].value == pytest.approx((rewards[0] - rewards[1]).mean())
    assert metrics["margin_min"].value == pytest.approx((rewards[0] - rewards[1]).min())
    assert metrics["accuracy"].value == pytest.approx((rewards[0] > rewards[1]).mean())
    assert metrics["num_pairs"].value == NUM_TRAINED


def test_a_policy_that_is_its_reference_has_loss_ln_2_margin_0_and_the_accuracy_of_a_coin() -> None:
    policy = BigramPolicy()
    loss, metrics = build_objective(Dpo()).fn(policy, make_pairs(reference=policy))
    assert loss.item() == pytest.approx(math.log(2), abs=1e-12)
    assert metrics["margin"].value == pytest.approx(0, abs=1e-12)
    at_start = values(metrics)
    assert (at_start["reward_chosen"], at_start["reward_rejected"]) == pytest.approx((0, 0))
    assert at_start["accuracy"] == 0.5


def test_at_the_start_the_gradient_is_half_beta_between_the_two_completions() -> None:
    policy = BigramPolicy()
    batch = make_pairs(reference=policy)
    gradient, _ = step_gradient(build_objective(Dpo(beta=0.4)), policy, [batch])
    scored = policy.token_logprobs(batch.responses, temperature=1.0).logprobs
    sums = torch.where(batch.responses.loss_mask != 0, scored, 0).sum(1)
    chosen, rejected = (side[:NUM_TRAINED].mean() for side in sums.chunk(2))
    (expected,) = torch.autograd.grad(-0.4 / 2 * (chosen - rejected), policy.theta)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("form", ["sigmoid", "smoothed", "robust", "ipo", "hinge"])
def test_a_pair_of_equal_completions_has_no_gradient(form: str) -> None:
    policy, batch = BigramPolicy(), make_pairs(((4, 4), (2, 2)))
    half = torch.tensor([0, 1, 0, 1])
    equal = replace(
        batch,
        responses=batch.responses.take(half),
        reference_rejected=batch.reference_chosen,
    )
    gradient, _ = step_gradient(build_objective(FORMS[form]), policy, [equal])
    assert gradient.abs().max() < 1e-15


@pytest.mark.parametrize("form", FORMS)
def test_gradient_and_metrics_are_the_same_for_every_chunking_in_every_order(form: str) -> None:
    objective, policy, batch = build_objective(FORMS[form]), BigramPolicy(), make_pairs()
    whole, metrics = step_gradient(objective, policy, [batch])
    assert whole.abs().max() > 1e-3
    for parts in PARTITIONS:
        chunks = [batch.take(torch.tensor(part[::-1])) for part in reversed(parts)]
        gradient, merged = step_gradient(objective, policy, chunks)
        torch.testing.assert_close(gradient, whole, rtol=1e-10, atol=1e-13)
        assert values(merged) == pytest.approx(values(metrics), rel=1e-10, abs=1e-12), parts


@pytest.mark.parametrize("form", FORMS)
def test_pairs_without_a_token_on_one_side_change_nothing(form: str) -> None:
    objective, policy, batch = build_objective(FORMS[form]), BigramPolicy(), make_pairs()
    alone = batch.take(torch.tensor([0, 1, 2]))
    first, second = (step_gradient(objective, policy, [b]) for b in (batch, alone))
    torch.testing.assert_close(first[0], second[0])
    assert values(first[1]) == pytest.approx(values(second[1]))


def test_a_chunk_that_trains_nothing_is_a_finite_zero_on_the_graph() -> None:
    policy, batch = BigramPolicy(), make_pairs().take(torch.tensor([3]))
    loss, metrics = build_objective(Dpo(sft_coef=1.0)).fn(policy, batch)
    loss.backward()
    assert loss.item() == 0
    assert policy.theta.grad is not None
    assert bool((policy.theta.grad == 0).all())
    assert metrics["objective/weight_sum"].value == 0


def test_the_weight_is_the_number_of_pairs_and_not_of_tokens() -> None:
    policy = BigramPolicy()
    batch = make_pairs(((6, 6), (1, 1)))
    whole, _ = step_gradient(build_objective(Dpo()), policy, [batch])
    each = [
        step_gradient(build_objective(Dpo()), policy, [batch.take(torch.tensor([row]))])[0]
        for row in range(2)
    ]
    torch.testing.assert_close(whole, (each[0] + each[1]) / 2)


def test_garbage_where_nothing_is_trained_is_never_read() -> None:
    policy, batch = BigramPolicy(), make_pairs()
    assert batch.reference_rejected[3].isnan()
    gradient, metrics = step_gradient(build_objective(Dpo(sft_coef=0.1)), policy, [batch])
    assert bool(gradient.isfinite().all())
    assert all(math.isfinite(value) for value in values(metrics).values())


def test_identity_holds_what_the_loss_reads_and_no_more() -> None:
    def digest(**changed: object) -> str:
        return build_objective(Dpo(**changed)).identity_digest()

    assert digest() == digest(save_every=3, epochs=4, pairs_per_step=8, max_steps=2)
    others = [
        digest(beta=0.2),
        digest(kind="ipo"),
        digest(label_smoothing=0.1),
        digest(sft_coef=0.1),
        digest(mini_batches=2),
    ]
    assert len({digest(), *others}) == len(others) + 1


def test_a_label_smoothing_that_is_never_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing is 0\.1, but dpo\.kind='hinge'"):
        build_objective(Dpo(kind="hinge", label_smoothing=0.1))


def test_an_objective_survives_pickling_and_names_its_columns() -> None:
    objective: Objective = pickle.loads(pickle.dumps(build_objective(Dpo())))
    policy, batch = BigramPolicy(), make_pairs()
    assert torch.equal(objective.fn(policy, batch)[0], build_objective(Dpo()).fn(policy, batch)[0])
    assert "reference_chosen_logprob" in objective.requires


@pytest.mark.parametrize("name", ["reference_chosen", "reference_rejected", "responses"])
def test_a_batch_of_disagreeing_shapes_is_refused_by_name(name: str) -> None:
    batch = make_pairs()
    value = getattr(batch, name)
    wrong = value[:2] if isinstance(value, Tensor) else value.take(torch.arange(2))
    with pytest.raises(ValueError, match=name):
        replace(batch, **{name: wrong})
