"""What proves that requests shared a forward pass.

Two algebras. *Intervals*: from dispatch and completion times the client knows how many requests
were in flight; necessary, never sufficient, because a server may queue them. *Decode counts*:
`n_decode_total` counts forward passes; k tokens of one request take k of them, so when a wave of
requests took fewer passes than the requests' tokens add up to, passes were shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, combinations

from batch_invariance.invariance_diff.rules import MIN_SHARED_DECODES


def max_depth(intervals: Iterable[tuple[float, float]]) -> int:
    """The most intervals that hold at one instant. An interval that ends as another begins does
    not overlap it."""
    spans = list(intervals)
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    return max(accumulate(step for _, step in edges), default=0)


Interval = tuple[float, float, int, int]
"""(dispatch, completion, item, occurrence)."""


def _meetings(intervals: Sequence[Interval]) -> Iterator[tuple[Interval, Interval]]:
    """Every two intervals that overlap; linear for a bounded number in flight."""
    active: list[Interval] = []
    for current in sorted(intervals):
        active = [other for other in active if other[1] > current[0]]
        for other in active:
            yield other, current
        active.append(current)


def overlapping_pairs(intervals: Sequence[Interval]) -> set[tuple[int, int]]:
    """Unordered pairs of item indexes that were in flight at the same time."""
    return {
        (a[2], b[2]) if a[2] < b[2] else (b[2], a[2])
        for a, b in _meetings(intervals)
        if a[2] != b[2]
    }


def companions_in_flight(
    intervals: Sequence[Interval], items: set[int]
) -> dict[tuple[int, int], set[int]]:
    """For each (item, occurrence) of `items`: the other items in flight at the same time."""
    met: dict[tuple[int, int], set[int]] = {}
    for a, b in _meetings(intervals):
        for one, other in ((a, b), (b, a)):
            if one[2] in items:
                met.setdefault(one[2:], set()).add(other[2])
    return {key: others - {key[0]} for key, others in met.items()}


def group_pairs(items: Sequence[int]) -> set[tuple[int, int]]:
    """Unordered pairs of different items of one wave."""
    return set(combinations(sorted(set(items)), 2))


def shared_decodes(own: int, others: Sequence[int], decodes: int) -> int:
    """A lower bound on the passes that a request of `own` tokens shared with some companion.

    A companion Y with k_Y tokens was in at least k_Y of the wave's `decodes` passes, so at most
    `decodes` - k_Y passes were without Y, and `own` - (`decodes` - max k_Y) of the request's own
    passes must have been shared. Extra passes for prompt chunks only weaken the bound. It holds
    while each pass yields one token per request at most, that is, without speculation.
    """
    if not others:
        return 0
    return max(0, min(own, own - (decodes - max(others))))


def batch_peak(counts: Sequence[int], decodes: int) -> int:
    """The least batch size that some pass must have had: ceil(sum of tokens / passes)."""
    if decodes <= 0:
        return 0
    return -(-sum(counts) // decodes)


def is_co_batched(own: int, shared: int) -> bool:
    """Whether the proved shared passes are enough: half of the request's own, or 16."""
    return shared > 0 and (2 * shared >= own or shared >= MIN_SHARED_DECODES)
