"""The interval and decode algebra, against brute force and a simulated engine."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from batch_invariance.invariance_diff.overlap import (
    Interval,
    batch_peak,
    companions_in_flight,
    group_pairs,
    is_co_batched,
    max_depth,
    overlapping_pairs,
    shared_decodes,
)


def _random_intervals(rng: random.Random, n: int) -> list[Interval]:
    seen: dict[int, int] = {}
    intervals = []
    for _ in range(n):
        start = rng.randint(0, 12)
        item = rng.randint(0, max(1, n // 2))
        seen[item] = seen.get(item, -1) + 1
        intervals.append((float(start), float(start + rng.randint(1, 6)), item, seen[item]))
    return intervals


def _meet(a: Interval, b: Interval) -> bool:
    return a[0] < b[1] and b[0] < a[1]


@pytest.mark.parametrize("seed", range(60))
def test_intervals_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    intervals = _random_intervals(rng, rng.randint(0, 14))
    depth = max(
        (sum(s <= start < e for s, e, _, _ in intervals) for start, _, _, _ in intervals), default=0
    )
    assert max_depth((s, e) for s, e, _, _ in intervals) == depth
    meetings = [(a, b) for a, b in combinations(intervals, 2) if _meet(a, b)]
    pairs = {(min(a[2], b[2]), max(a[2], b[2])) for a, b in meetings if a[2] != b[2]}
    assert overlapping_pairs(intervals) == pairs
    chosen = {0, 2}
    met: dict[tuple[int, int], set[int]] = {}
    for a, b in meetings:
        for one, other in ((a, b), (b, a)):
            if one[2] in chosen:
                met.setdefault(one[2:], set()).add(other[2])
    expected = {key: others - {key[0]} for key, others in met.items()}
    assert companions_in_flight(intervals, chosen) == expected


def test_touching_intervals_do_not_overlap() -> None:
    assert max_depth([(0.0, 1.0), (1.0, 2.0)]) == 1
    assert max_depth([(0.0, 1.5), (1.0, 2.0)]) == 2
    assert max_depth([]) == 0
    assert overlapping_pairs([(0.0, 1.0, 0, 0), (1.0, 2.0, 1, 0)]) == set()
    assert overlapping_pairs([(0.0, 1.5, 7, 0), (1.0, 2.0, 1, 0)]) == {(1, 7)}


def test_pairs_of_a_wave() -> None:
    assert group_pairs([3, 1, 2]) == {(1, 3), (2, 3), (1, 2)}
    assert group_pairs([5]) == set()
    assert group_pairs([2, 2]) == set()


@pytest.mark.parametrize("seed", range(300))
def test_bounds_never_exceed_the_truth(seed: int) -> None:
    """A wave whose requests arrive at different times and need chunks for their prompts."""
    rng = random.Random(seed)
    n = rng.randint(1, 6)
    lengths = [rng.randint(1, 40) for _ in range(n)]
    spread = rng.choice([0, 0, 3, 30])
    starts = [rng.randint(0, spread) for _ in range(n)]
    chunks = [rng.choice([0, 0, 1, 4]) for _ in range(n)]
    runs = [range(s, s + c + k) for s, c, k in zip(starts, chunks, lengths, strict=True)]
    ticks = range(max(run.stop for run in runs))
    present = [{i for i, run in enumerate(runs) if t in run} for t in ticks]
    decodes = sum(bool(p) for p in present)
    for i, own in enumerate(lengths):
        others = lengths[:i] + lengths[i + 1 :]
        truth = sum(i in p and len(p) > 1 for p in present)
        assert shared_decodes(own, others, decodes) <= truth
    assert batch_peak(lengths, decodes) <= max(len(p) for p in present)
    # Foreign traffic and further passes only weaken the bounds.
    assert batch_peak(lengths, decodes + 7) <= batch_peak(lengths, decodes)


@pytest.mark.parametrize(
    ("own", "others", "decodes", "shared"),
    [
        (32, [32, 32, 32], 33, 31),
        (32, [32], 32, 32),
        (32, [32], 64, 0),
        (32, [32], 63, 1),
        (10, [30, 5], 30, 10),
        (10, [30], 35, 5),
        (10, [30], 41, 0),
        (30, [10], 30, 10),
        (10, [30], 20, 10),  # more than its own it cannot have shared
        (10, [], 10, 0),
        (0, [30], 30, 0),
    ],
)
def test_shared_decodes(own: int, others: list[int], decodes: int, shared: int) -> None:
    assert shared_decodes(own, others, decodes) == shared


@pytest.mark.parametrize(
    ("counts", "decodes", "peak"),
    [
        ([24, 24, 24, 24], 24, 4),
        ([24, 24, 24, 24], 25, 4),
        ([24, 24, 24, 24], 32, 3),
        ([24, 24, 24, 24], 31, 4),
        ([24, 24], 48, 1),
        ([24, 24], 47, 2),
        ([24], 0, 0),
        ([24], -1, 0),
        ([3], 1, 3),
    ],
)
def test_batch_peak(counts: list[int], decodes: int, peak: int) -> None:
    assert batch_peak(counts, decodes) == peak


@pytest.mark.parametrize(
    ("own", "shared", "enough"),
    [
        (40, 16, True),
        (40, 15, False),
        (32, 16, True),
        (31, 15, False),
        (30, 15, True),
        (2, 1, True),
        (1, 1, True),
        (3, 1, False),
        (0, 0, False),
        (1, 0, False),
        (1000, 16, True),
    ],
)
def test_half_or_sixteen(own: int, shared: int, enough: bool) -> None:
    assert is_co_batched(own, shared) is enough
