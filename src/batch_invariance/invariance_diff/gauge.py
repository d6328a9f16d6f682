"""What a scheduler's gauge of running requests proves about the trials of one pass.

A poll that shows exactly as many requests running as the client has in flight shows all of them
running at once. Fewer: some were waiting, and which is not told. More: a stranger's, or a gauge
that lags; then nothing is known of ours. A poll says so of one moment, where a count of forward
passes speaks of all of them: it is the weaker witness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batch_invariance.invariance_diff.rules import MIN_GAUGE_POLLS

Key = tuple[int, int]
"""(item, occurrence) of a trial within its pass."""
Interval = tuple[float, float, int, int]
"""(dispatch, completion, item, occurrence)."""
Poll = tuple[float, float, int, int]
"""(asked, answered, running, waiting), as in `records.GaugeSamples`."""


@dataclass(frozen=True, slots=True)
class GaugeReading:
    """One pass by its polls: how many there are, the most requests seen running that were all
    ours, the polls that show more running than we had in flight, and per trial the polls inside it
    and those that show it running beside another."""

    n_polls: int
    peak: int
    n_over: int
    of_trial: Mapping[Key, tuple[int, int]]


def read_gauge(polls: Sequence[Poll], trials: Sequence[Interval]) -> GaugeReading:
    """Lays the polls over the trials. Linear for a bounded number in flight.

    Polls before the first completion count for no excess: a gauge may still show what ran before.
    """
    waiting = sorted(trials)
    settled = min((trial[1] for trial in waiting), default=0.0)
    active: list[Interval] = []
    inside: dict[Key, list[int]] = {trial[2:]: [0, 0] for trial in waiting}
    peak = n_over = place = 0
    for asked, answered, running, _ in sorted(polls):
        while place < len(waiting) and waiting[place][0] <= answered:
            active.append(waiting[place])
            place += 1
        active = [trial for trial in active if trial[1] >= asked]
        n_over += running > len(active) and asked >= settled
        together = running == len(active)
        if together:
            peak = max(peak, running)
        for start, end, *key in active:
            if start <= asked and answered <= end:
                counts = inside[key[0], key[1]]
                counts[0] += 1
                counts[1] += together and running > 1
    return GaugeReading(len(polls), peak, n_over, {k: (n, m) for k, (n, m) in inside.items()})


def proves_company(inside: int, beside: int) -> bool:
    """Whether the polls are enough: two or more beside another, and half of those inside."""
    return beside >= MIN_GAUGE_POLLS and 2 * beside >= inside
