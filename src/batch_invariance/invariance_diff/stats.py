"""Bounds on a rate after zero events, and plain quantiles."""

from __future__ import annotations

from collections.abc import Sequence


def rule_of_three(n: int) -> float | None:
    """3/n: the customary 95 % upper bound on a rate after n trials without an event.

    None for n = 0; never above 1. Source: Hanley and Lippman-Hand, JAMA 249 (1983).
    """
    return min(1.0, 3.0 / n) if n > 0 else None


def exact_zero_bound(n: int, confidence: float) -> float | None:
    """1 - (1 - confidence)**(1/n): the exact binomial upper bound after n trials without an event.

    None for n = 0. Source: Clopper and Pearson, Biometrika 26 (1934), the case of zero events.
    """
    return float(1.0 - (1.0 - confidence) ** (1.0 / n)) if n > 0 else None


def median(values: Sequence[float]) -> float | None:
    """The middle value; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
