"""Delta debugging over indexes: the smallest set of pieces that still shows what the whole shows.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28
(2002), algorithm ddmin. What "shows" means comes from outside, and so do errors raised in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

Indexes = tuple[int, ...]
Shows = Callable[[Indexes], bool]


def ddmin(n: int, shows: Shows, most_parts: int | None = None, least: int = 0) -> Indexes:
    """A subset of range(n), of `least` indexes or more, that shows it, from which no part can go.

    The whole is taken to show it and is not asked. With `most_parts` None the result is 1-minimal:
    no single index can go. Else sets are never cut into more parts than that, which ends earlier
    and leaves more. No subset is asked twice.
    """
    asked: dict[Indexes, bool] = {}

    def ask(indexes: Indexes) -> bool:
        if len(indexes) < least:
            return False
        if indexes not in asked:
            asked[indexes] = shows(indexes)
        return asked[indexes]

    current: Indexes = tuple(range(n))
    if n > least == 0 and ask(()):
        return ()
    parts = 2
    while len(current) > max(least, 1):
        cut = _cut(current, min(parts, len(current)))
        found = next((part for part in cut if ask(part)), None)
        if found is not None:
            current, parts = found, 2
            continue
        rests = [tuple(i for i in current if i not in part) for part in cut] if parts > 2 else []
        found = next((rest for rest in rests if ask(rest)), None)
        if found is not None:
            current, parts = found, max(parts - 1, 2)
            continue
        if parts >= min(len(current), most_parts or len(current)):
            break
        parts = min(2 * parts, len(current), most_parts or len(current))
    return current


def _cut(indexes: Indexes, parts: int) -> list[Indexes]:
    """Cuts into `parts` runs whose lengths differ by one at most."""
    edges = [len(indexes) * i // parts for i in range(parts + 1)]
    return [indexes[a:b] for a, b in itertools.pairwise(edges)]


def smallest(low: int, high: int, shows: Callable[[int], bool]) -> int:
    """The least number from `low` to `high` that shows it, if all above it do; `high` is not asked.

    Where showing it does not grow with the number the result still shows it, and need not be the
    least.
    """
    while low < high:
        middle = (low + high) // 2
        if shows(middle):
            high = middle
        else:
            low = middle + 1
    return high
