"""Bounds after zero events, and the median."""

from __future__ import annotations

import math

import pytest

from batch_invariance.invariance_diff.stats import exact_zero_bound, median, rule_of_three


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
