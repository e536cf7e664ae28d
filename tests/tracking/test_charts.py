import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tracking.charts import bin_edges, histogram, line_chart, ticks

LABELS = {"x_label": "step", "y_label": "mean reward"}
numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


def polyline(chart: str) -> list[tuple[float, float]]:
    points = re.search(r'<polyline points="([^"]*)"', chart)
    return [tuple(map(float, pair.split(","))) for pair in points[1].split()]


def test_a_curve_spans_the_frame_and_rises_upwards() -> None:
    (x0, y0), (x1, y1) = polyline(line_chart([(0, 0.0), (10, 1.0)], **LABELS))
    assert (x0, x1) == (54, 298)
    assert (y0, y1) == (172, 12)


def test_a_curve_leaves_out_what_is_not_finite() -> None:
    chart = line_chart([(0, 0.0), (1, math.nan), (2, math.inf), (3, 1.0)], **LABELS)
    assert len(polyline(chart)) == 2


def test_a_long_curve_is_thinned_and_keeps_its_last_point() -> None:
    points = [(step, 0.0) for step in range(5000)] + [(5000, 1.0)]
    drawn = polyline(line_chart(points, **LABELS))
    assert len(drawn) <= 400
    assert drawn[-1] == (298, 12)


def test_no_points_give_a_note() -> None:
    assert "no data yet" in line_chart([], **LABELS)
    assert "no data" in histogram(np.array([math.nan]), **LABELS)


def test_bars_count_all_finite_values() -> None:
    values = np.array([0.0, 0.0, 1.0, math.nan, 0.5])
    chart = histogram(values, **LABELS)
    counts = [int(count) for count in re.findall(r": (\d+)</title>", chart)]
    assert counts == [2, 1, 1]


def test_each_integer_gets_its_own_bin_while_they_are_few() -> None:
    edges = bin_edges(np.array([2, 2, 9]))
    assert edges.tolist() == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]


def test_bins_of_many_integers_are_whole() -> None:
    edges = bin_edges(np.arange(1000))
    assert len(edges) <= 21
    assert set(np.diff(edges)) == {50.0}


def test_whole_axes_have_no_fractional_ticks() -> None:
    assert ticks(0.5, 1.5, whole=True) == [1.0]
    assert ticks(0.0, 2.0, whole=True) == [0.0, 1.0, 2.0]


def test_labels_are_escaped() -> None:
    assert "<b>" not in line_chart([(0, 1.0)], x_label="<b>", y_label="<b>")


@given(st.lists(st.tuples(st.integers(0, 10_000), numbers), max_size=30, unique_by=lambda p: p[0]))
def test_every_curve_is_well_formed_and_inside_its_frame(points: list[tuple[int, float]]) -> None:
    chart = line_chart(sorted(points), **LABELS)
    ET.fromstring(chart)
    if points:
        assert all(54 <= x <= 298 and 12 <= y <= 172 for x, y in polyline(chart))


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=50))
def test_every_value_falls_into_a_bin(values: list[int]) -> None:
    for array in (np.array(values), np.array(values, dtype=np.float64)):
        counts, _ = np.histogram(array, bin_edges(array))
        assert counts.sum() == len(values)
        assert len(counts) <= 20


@pytest.mark.parametrize("low_high", [(0.0, 1.0), (-3.0, 7.0), (0.1, 0.1004), (0.0, 2500.0)])
def test_ticks_are_few_and_inside(low_high: tuple[float, float]) -> None:
    low, high = low_high
    values = ticks(low, high)
    assert 2 <= len(values) <= 6
    assert low - 1e-9 <= values[0] <= values[-1] <= high + 1e-9
