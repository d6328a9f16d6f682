"""Bounds after zero events, the median, and the histogram."""

from __future__ import annotations

import math

import pytest

from batch_invariance.invariance_diff.stats import (
    LogHistogram,
    bin_of,
    exact_zero_bound,
    median,
    rule_of_three,
    upper_edge,
)


def test_rule_of_three() -> None:
    assert rule_of_three(0) is None
    assert rule_of_three(-1) is None
    assert [rule_of_three(n) for n in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert rule_of_three(4) == 0.75
    assert rule_of_three(300) == 0.01


@pytest.mark.parametrize("n", [1, 2, 7, 59, 1000])
def test_exact_bound_is_the_rate_that_hides_with_the_stated_chance(n: int) -> None:
    bound = exact_zero_bound(n, 0.95)
    assert bound is not None
    assert math.isclose((1.0 - bound) ** n, 0.05, rel_tol=1e-9)
    three = rule_of_three(n)
    assert three is not None
    assert bound <= three


def test_exact_bound_of_nothing() -> None:
    assert exact_zero_bound(0, 0.95) is None
    assert exact_zero_bound(-3, 0.95) is None
    one = exact_zero_bound(1, 0.95)
    assert one is not None
    assert math.isclose(one, 0.95)


def test_fifty_nine_clean_trials_bound_the_rate_by_five_percent() -> None:
    assert (exact_zero_bound(58, 0.95) or 0) > 0.05 > (exact_zero_bound(59, 0.95) or 1)


def test_median() -> None:
    assert median([]) is None
    assert median([3.0]) == 3.0
    assert median([9, 1, 5]) == 5
    assert median([4, 1, 3, 2]) == 2.5


def test_histogram_edges_are_a_quarter_octave_apart() -> None:
    for value in (1.0, 1.2, 0.3, 7e-8, 123.456, 1e-45, 3.4e38):
        edge = upper_edge(bin_of(value))
        assert value < edge <= 1.25 * value
    assert upper_edge(bin_of(0.0)) == 0.0
    assert upper_edge(bin_of(-1.0)) == 0.0


def test_histogram_quantiles_are_upper_edges() -> None:
    histogram = LogHistogram()
    assert histogram.quantile(0.5) is None
    assert histogram.quantiles(("0.5",)) == {}
    histogram.add_all([0.1] * 9 + [3.0])
    histogram.add_bin(bin_of(0.0))
    assert histogram.n == 11
    assert histogram.smallest == 0.1
    assert histogram.quantile(0.5) == upper_edge(bin_of(0.1))
    assert histogram.quantile(1.0) == upper_edge(bin_of(3.0)) == 3.5
    assert histogram.quantile(0.01) == 0.0
    assert list(histogram.by_edge().values()) == [1, 9, 1]
