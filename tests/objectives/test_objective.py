import json
import pickle

import pytest
import torch

from objectives.metrics import OBJECTIVE_WEIGHT_SUM, Metric, MetricAdapter
from objectives.objective import (
    Objective,
    Reduction,
    Term,
    identity_difference,
    loss_terms,
)


def _fn(model: object, batch: object) -> tuple[torch.Tensor, dict[str, Metric]]:
    return torch.zeros(()), {}


def _objective(**changes: object) -> Objective:
    parts = {
        "requires": ("response_tokens",),
        "metric_adapter": MetricAdapter({}),
        "identity": {"surrogate": "clipped", "eps": 1e-6, "unbiased": False, "cap": None},
    }
    return Objective(_fn, Reduction.TOKEN_SUM, **{**parts, **changes})


def test_an_objective_is_frozen_and_pickles() -> None:
    objective = _objective()
    copy = pickle.loads(pickle.dumps(objective))
    assert copy == objective
    assert copy.identity_digest() == objective.identity_digest()
    with pytest.raises(AttributeError):
        objective.reduction = Reduction.MEAN


def test_the_identity_digest_is_that_of_the_values_not_of_their_order() -> None:
    identity = dict(_objective().identity)
    backwards = dict(reversed(identity.items()))
    digest = _objective().identity_digest()
    assert _objective(identity=backwards).identity_digest() == digest
    assert _objective(identity=json.loads(json.dumps(identity))).identity_digest() == digest
    for key, value in (("eps", 1e-7), ("unbiased", 0), ("cap", 1), ("new", 1)):
        assert _objective(identity={**identity, key: value}).identity_digest() != digest


def test_the_identity_cannot_be_changed_from_outside() -> None:
    identity = {"surrogate": "clipped"}
    objective = _objective(identity=identity)
    identity["surrogate"] = "other"
    assert objective.identity == {"surrogate": "clipped"}


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"identity": {}}, ValueError, "identity is empty"),
        ({"identity": {"clip": [0.2]}}, TypeError, r"identity\['clip'\] is a list"),
        ({"identity": {"clip": {"low": 1}}}, TypeError, r"identity\['clip'\] is a dict"),
        ({"identity": {"eps": float("nan")}}, ValueError, r"identity\['eps'\] is nan"),
        ({"requires": "advantage"}, TypeError, "requires is 'advantage'"),
        ({"metric_adapter": {}}, TypeError, "metric_adapter"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(
    changes: dict[str, object], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        _objective(**changes)


def test_function_and_reduction_are_checked_too() -> None:
    parts = {"requires": (), "metric_adapter": MetricAdapter({}), "identity": {"a": 1}}
    with pytest.raises(TypeError, match="fn is 3"):
        Objective(3, Reduction.MEAN, **parts)
    with pytest.raises(TypeError, match="reduction is 'mean'"):
        Objective(_fn, "mean", **parts)


def test_identities_are_compared_key_by_key() -> None:
    ours = {"b": 1, "a": 0.2, "same": "x", "flag": True}
    theirs = {"a": 0.3, "same": "x", "c": None, "flag": 1}
    assert identity_difference(ours, theirs) == {
        "a": (0.2, 0.3),
        "b": (1, "<absent>"),
        "c": ("<absent>", None),
        "flag": (True, 1),
    }
    assert list(identity_difference(ours, theirs)) == ["a", "b", "c", "flag"]
    assert identity_difference(ours, dict(ours)) == {}


def test_terms_recover_numerator_and_weight() -> None:
    loss = torch.tensor(1.5, requires_grad=True)
    metrics = {OBJECTIVE_WEIGHT_SUM: Metric.sum(torch.tensor(4.0))}
    (tokens,) = loss_terms(loss, metrics, reduction=Reduction.TOKEN_SUM, num_sequences=3)
    (mean,) = loss_terms(loss, {}, reduction=Reduction.MEAN, num_sequences=3)
    assert (tokens.numerator.item(), tokens.weight.item()) == (6.0, 4.0)
    assert (mean.numerator.item(), mean.weight.item()) == (4.5, 3.0)
    tokens.numerator.backward()
    assert loss.grad is not None
    assert loss.grad.item() == 4.0
    several = (Term(loss, torch.tensor(2.0)), Term(loss, torch.tensor(1.0)))
    assert loss_terms(several, {}, reduction=Reduction.TOKEN_SUM, num_sequences=3) is several


@pytest.mark.parametrize("weight", [None, 4.0, torch.tensor(4.0), Metric(4, 1)])
def test_a_token_sum_without_its_weight_is_refused(weight: object) -> None:
    with pytest.raises(TypeError, match="must report metrics"):
        loss_terms(
            torch.zeros(()),
            {OBJECTIVE_WEIGHT_SUM: weight} if weight is not None else {},
            reduction=Reduction.TOKEN_SUM,
            num_sequences=1,
        )


def test_a_loss_per_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[3\], expected a scalar"):
        loss_terms(torch.zeros(3), {}, reduction=Reduction.MEAN, num_sequences=3)
