"""What batching does to the score, and how near it came to another token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from batch_invariance.invariance_diff.facts import Facts
from batch_invariance.invariance_diff.pairs import NO_GROUP


@dataclass(frozen=True, slots=True)
class ScoreImpact:
    """What batching does to the score, over the ids that have one in A and in some C trial.

    `mean_c` is the mean over ids of each one's mean over its C trials, `difference` is C less A.
    An id is changed where score or passed differs in any C trial, and it may be both better in one
    and worse in another. `by_family` gives the same figures for each family.
    """

    n_scored: int
    n_changed: int
    n_better: int
    n_worse: int
    mean_a: float | None
    mean_c: float | None
    difference: float | None
    by_family: Mapping[str, ScoreImpact] | None = None


@dataclass(frozen=True, slots=True)
class Closeness:
    """How near the cell came to another token: A's margins (best logprob less the second, in nats)
    at the positions compared with C, and the smallest of them over the largest drift seen. Below 1
    a drift of the size that was measured could have turned that token."""

    n_positions: int
    smallest_margin: float | None
    largest_drift: float
    margin_over_drift: float | None
    quantiles: Mapping[str, float]
    margins: Mapping[str, int]


def impact_of(facts: Facts) -> ScoreImpact:
    """The change of score, over all ids and by family."""
    items = facts.header.workset.items
    families: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        families.setdefault(item.family or NO_GROUP, []).append(i)
    whole = _impact(facts, range(len(items)))
    by_family = {name: _impact(facts, members) for name, members in sorted(families.items())}
    return replace(whole, by_family=by_family)


def _impact(facts: Facts, members: Sequence[int]) -> ScoreImpact:
    scored = [i for i in members if facts.items[i].n_scored]
    seen = [facts.items[i] for i in scored]
    a = _mean([facts.score_a[i] or 0.0 for i in scored])
    c = _mean([item.score_sum / item.n_scored for item in seen])
    return ScoreImpact(
        n_scored=len(scored),
        n_changed=sum(item.n_score_changed > 0 for item in seen),
        n_better=sum(item.n_better > 0 for item in seen),
        n_worse=sum(item.n_worse > 0 for item in seen),
        mean_a=a,
        mean_c=c,
        difference=None if a is None or c is None else c - a,
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def closeness_of(facts: Facts) -> Closeness:
    """A's margins against the largest drift of C."""
    margins, drift = facts.margins, facts.pairs["AC"].logit_drift.max_abs
    known = margins.smallest is not None and drift > 0.0
    return Closeness(
        n_positions=margins.n,
        smallest_margin=margins.smallest,
        largest_drift=drift,
        margin_over_drift=(margins.smallest or 0.0) / drift if known else None,
        quantiles=margins.quantiles(("0.01", "0.1", "0.5")),
        margins=margins.by_edge(),
    )
