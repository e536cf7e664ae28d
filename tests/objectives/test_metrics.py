import itertools
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.metrics import (
    OBJECTIVE_WEIGHT_SUM,
    Metric,
    MetricAdapter,
    merge_metrics,
    pack_metrics,
    unpack_metrics,
)

VALUES = torch.tensor([[1.0, 2.0, math.nan], [4.0, math.inf, 9.0]])
KEEP = torch.tensor([[True, True, False], [True, False, True]])


def _all_kinds(values: torch.Tensor, keep: torch.Tensor) -> dict[str, Metric]:
    return {
        "mean": Metric.mean(values, keep),
        "sum": Metric.sum(torch.where(keep, values, 0).sum()),
        "min": Metric.min(values, keep),
        "max": Metric.max(values, keep),
    }


def test_each_kind_by_hand_without_reading_masked_places() -> None:
    metrics = _all_kinds(VALUES, KEEP)
    assert {name: metric.value for name, metric in metrics.items()} == {
        "mean": 4.0,
        "sum": 16.0,
        "min": 1.0,
        "max": 9.0,
    }
    assert float(metrics["mean"]) == 4.0
    assert repr(metrics["min"]) == "Metric(1.0, kind='min')"


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
    st.integers(1, 4),
)
def test_every_split_into_chunks_and_ranks_gives_the_same_value(
    numbers: list[int], cuts: list[int], ranks: int
) -> None:
    whole = torch.tensor(numbers, dtype=torch.float32)
    keep = whole != 7
    edges = [0, *sorted(cuts), len(numbers)]
    chunks = [_all_kinds(whole[a:b], keep[a:b]) for a, b in itertools.pairwise(edges)]
    merged = merge_metrics(chunks)
    per_rank = [
        merge_metrics(chunks[rank::ranks] or [_all_kinds(whole[:0], keep[:0])])
        for rank in range(ranks)
    ]
    packed = [pack_metrics(metrics) for metrics in per_rank]
    reduced = type(packed[0])(
        torch.stack([p.sums for p in packed]).sum(0),
        torch.stack([p.mins for p in packed]).amin(0),
        torch.stack([p.maxs for p in packed]).amax(0),
    )
    for metrics in (merged, unpack_metrics(reduced, merged)):
        for name, expected in _all_kinds(whole, keep).items():
            assert metrics[name].kind == expected.kind
            assert metrics[name].value == expected.value or math.isnan(expected.value)


def test_packing_keeps_every_metric_under_its_own_name() -> None:
    metrics = {
        "b": Metric(3, 2),
        "a": Metric.sum(5),
        "d": Metric(8, 2),
        "c": Metric.max(*_ones(4.0)),
    }
    unpacked = unpack_metrics(pack_metrics(metrics), metrics)
    assert {name: metric.value for name, metric in unpacked.items()} == {
        "a": 5.0,
        "b": 1.5,
        "c": 4.0,
        "d": 4.0,
    }
    assert [len(part) for part in pack_metrics(metrics)] == [6, 0, 1]


def _ones(value: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([value]), torch.tensor([True])


def test_what_was_never_counted_has_no_value_and_no_effect() -> None:
    empty = _all_kinds(VALUES[:0], KEEP[:0])
    assert [math.isnan(empty[name].value) for name in ("mean", "sum", "min", "max")] == [
        True,
        False,
        True,
        True,
    ]
    full = _all_kinds(VALUES, KEEP)
    assert {n: m.value for n, m in merge_metrics([empty, full]).items()} == {
        n: m.value for n, m in full.items()
    }


def test_sums_are_exact_where_float32_is_not() -> None:
    big = Metric.sum(torch.tensor(2.0**24))
    assert big.merge(Metric.sum(torch.tensor(1.0))).value == 2**24 + 1
    ones = torch.full((2,), 16777217.0, dtype=torch.float64)
    assert Metric.mean(ones.float(), ones > 0).numerator.dtype == torch.float64


def test_metrics_are_detached_scalars_that_pickle() -> None:
    source = torch.tensor(2.0, requires_grad=True)
    metric = Metric(source * 3, 2)
    assert not metric.numerator.requires_grad
    assert pickle.loads(pickle.dumps(metric)).value == 3.0
    with pytest.raises(ValueError, match="a metric holds scalars"):
        Metric(torch.ones(2), 1)


@pytest.mark.parametrize("value", [0.5, 3, torch.tensor(0.5)])
def test_bare_numbers_are_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"'clip' is a .*expected a Metric"):
        MetricAdapter({"clip": "train/clip"}).adapt({"clip": value})
    with pytest.raises(TypeError, match="'clip'"):
        merge_metrics([{"clip": value}])


def test_kinds_and_names_must_agree_over_chunks() -> None:
    with pytest.raises(ValueError, match=r"'sum'.*'mean'"):
        merge_metrics([{"x": Metric.sum(1)}, {"x": Metric(1, 1)}])
    with pytest.raises(ValueError, match=r"\['y'\] are reported by some chunks only"):
        merge_metrics([{"x": Metric.sum(1)}, {"x": Metric.sum(1), "y": Metric.sum(1)}])
    assert merge_metrics([]) == {}


def test_the_adapter_publishes_drops_and_fails_by_name() -> None:
    adapter = MetricAdapter({"kl": "train/kl/old"}, frozenset({"debug"}))
    reported = {"kl": Metric(1, 2), "debug": Metric.sum(1), OBJECTIVE_WEIGHT_SUM: Metric.sum(3)}
    assert {name: m.value for name, m in adapter.adapt(reported).items()} == {"train/kl/old": 0.5}
    with pytest.raises(ValueError, match=r"\['extra'\] have no public name"):
        adapter.adapt({"kl": Metric(1, 2), "extra": Metric.sum(1)})


@pytest.mark.parametrize(
    "public", ["loss", "test/loss", "train/", "train/Loss", "train/a b", "train/a@b", "train/a\n"]
)
def test_public_names_follow_one_pattern(public: str) -> None:
    with pytest.raises(ValueError, match="'loss' is mapped to"):
        MetricAdapter({"loss": public})


def test_a_public_name_is_given_once_and_not_to_an_ignored_metric() -> None:
    with pytest.raises(ValueError, match=r"\['train/a'\] are given to several"):
        MetricAdapter({"x": "train/a", "y": "train/a"})
    with pytest.raises(ValueError, match=r"\['x'\] are mapped and ignored"):
        MetricAdapter({"x": "val/a"}, frozenset({"x"}))


@pytest.mark.parametrize("kind", ["mean", "sum", "min", "max"])
def test_nothing_of_a_metric_changes_no_other(kind: str) -> None:
    metric, other = Metric(6.0, 4.0, kind), Metric(-3.0, 2.0, kind)
    for merged in (metric.merge(other.nothing()), other.nothing().merge(metric)):
        assert (merged.value, merged.kind) == (metric.value, kind)
