"""Counting values: the histogram against counting by hand, the window against sorting."""

from __future__ import annotations

import math
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyserve.server.observe.histogram import Histogram, Window
from tinyserve.server.observe.metrics import token_bounds

values = st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=60)


@given(values, st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=8, unique=True))
def test_cumulative_counts_are_how_many_are_at_most_the_bound(
    numbers: list[float], bounds: list[float]
) -> None:
    histogram = Histogram(sorted(bounds))
    for number in numbers:
        histogram.observe(number)
    numbers = sorted(numbers)
    rows = histogram.cumulative()
    assert rows == [(b, bisect_right(numbers, b)) for b in (*sorted(bounds), math.inf)]
    assert histogram.sum == pytest.approx(sum(numbers))


def test_a_value_counted_several_times() -> None:
    one, other = Histogram([1.0, 2.0]), Histogram([1.0, 2.0])
    one.observe(1.5, 3)
    for _ in range(3):
        other.observe(1.5)
    assert one.cumulative() == other.cumulative() == [(1.0, 0), (2.0, 3), (math.inf, 3)]
    assert one.sum == other.sum == 4.5


@given(values, st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_percentiles_are_right_to_two_per_cent(numbers: list[float], share: float) -> None:
    window = Window()
    for index, number in enumerate(numbers):
        window.observe(100.0 + index / 10, number)
    count, (found,) = window.percentiles(107.0, [share])
    right = sorted(numbers)[math.ceil(share * len(numbers)) - 1]
    assert count == len(numbers)
    assert found == pytest.approx(right, rel=0.021)


def test_a_window_forgets_and_stays_small() -> None:
    window = Window(60)
    for second in range(500):
        for _ in range(50):
            window.observe(float(second), 0.02 if second < 450 else 0.5)
    count, (p50, p99) = window.percentiles(499.0, (0.5, 0.99))
    assert count == 60 * 50
    assert p50 == pytest.approx(0.5, rel=0.03)
    assert p99 == pytest.approx(0.5, rel=0.03)
    assert len(window._slots) <= 61
    assert window.percentiles(560.0, (0.5,)) == (0, [None])


def test_an_empty_window_has_no_percentiles() -> None:
    assert Window().percentiles(5.0, (0.5, 0.99)) == (0, [None, None])


@given(st.integers(1, 10**7))
def test_token_bounds_ascend_and_hold_the_longest(longest: int) -> None:
    bounds = token_bounds(longest)
    assert list(bounds) == sorted(set(bounds))
    assert bounds[-1] >= longest
    assert len(bounds) == 1 or bounds[-2] < longest
