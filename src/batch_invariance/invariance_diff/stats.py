"""Bounds on a rate after zero events, and quantiles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


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


SUB_BINS = 4
"""Bins per octave of a `LogHistogram`."""


class LogHistogram:
    """Counts numbers of the size of a float32 in bins of a quarter octave, alike on every platform.

    A bin's edges are 2**(e-1) * (1 + s/4) for whole e and s of 0 to 3, so a value and the upper
    edge of its bin differ by a quarter at most.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.n = 0
        self.smallest: float | None = None

    def add_all(self, values: Iterable[float]) -> None:
        """Counts values in; zero and less fall into the lowest bin of all."""
        for value in values:
            self.n += 1
            self.smallest = value if self.smallest is None else min(self.smallest, value)
            place = bin_of(value)
            self._counts[place] = self._counts.get(place, 0) + 1

    def add_bin(self, place: int) -> None:
        """Counts in a value of which only the bin is known."""
        self.n += 1
        self._counts[place] = self._counts.get(place, 0) + 1

    def quantile(self, share: float) -> float | None:
        """The upper edge of the bin below or in which `share` of the values lie; None for none."""
        if not self.n:
            return None
        seen = 0
        for place in sorted(self._counts):
            seen += self._counts[place]
            if seen >= share * self.n:
                break
        return upper_edge(place)

    def quantiles(self, shares: Sequence[str]) -> dict[str, float]:
        """`quantile` for each share, given and named as a decimal; empty for no values."""
        found = {share: self.quantile(float(share)) for share in shares}
        return {share: value for share, value in found.items() if value is not None}

    def by_edge(self) -> dict[str, int]:
        """Counts by upper edge, in ascending order of the edges."""
        return {repr(upper_edge(place)): self._counts[place] for place in sorted(self._counts)}


_LOWEST = SUB_BINS * -1100
"""Below every positive double."""


def bin_of(value: float) -> int:
    """The number of the bin of a finite value."""
    if value <= 0.0:
        return _LOWEST
    mantissa, exponent = math.frexp(value)
    return SUB_BINS * exponent + int((mantissa - 0.5) * 2 * SUB_BINS)


def upper_edge(place: int) -> float:
    """The upper edge of a bin."""
    if place == _LOWEST:
        return 0.0
    exponent, sub = divmod(place, SUB_BINS)
    return math.ldexp(0.5 + (sub + 1) / (2 * SUB_BINS), exponent)
