"""How often something intermittent must be tried before "it does not happen" means anything."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batch_invariance.invariance_diff.rules import CONFIDENCE

MOST_ATTEMPTS = 64
RARE_SHARE = 0.25
"""A candidate whose rate is this share of the start's is not worth keeping: nobody could show it to
others. A plan tells it from one with the start's rate."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many attempts, in how many of them it showed, and how many were lost (requests without an
    answer, which show nothing)."""

    n: int
    shown: int
    lost: int = 0

    @property
    def share(self) -> float:
        """The share of attempts in which it showed; 0 without attempts."""
        return self.shown / self.n if self.n else 0.0

    @property
    def cautious(self) -> float:
        """Laplace's estimate (shown + 1) / (n + 2), so that never is not 0 and always is not 1."""
        return (self.shown + 1) / (self.n + 2)

    def __str__(self) -> str:
        return f"{self.shown} of {self.n}"


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """At most `limit` attempts; it is kept once it showed in `needed` of them. `missed` is the
    probability that one with the start's rate is not kept, `lucky` that one with `RARE_SHARE` of
    that rate is."""

    limit: int
    needed: int
    missed: float
    lucky: float


def plan_attempts(rate: float, confidence: float = CONFIDENCE) -> AttemptPlan:
    """The shortest plan in which `missed` and `lucky` are both at most 1 - `confidence`, for a
    start that shows with `rate`, above 0 and below 1.

    Where `MOST_ATTEMPTS` are not enough, the plan of so many with the smallest sum of the two.
    """
    for limit in range(1, MOST_ATTEMPTS + 1):
        plans = [_plan(limit, needed, rate) for needed in range(1, limit + 1)]
        best = min(plans, key=lambda plan: max(plan.missed, plan.lucky))
        if max(best.missed, best.lucky) <= 1.0 - confidence:
            return best
    return min(plans, key=lambda plan: plan.missed + plan.lucky)


def _plan(limit: int, needed: int, rate: float) -> AttemptPlan:
    lucky = 1.0 - fewer_than(needed, limit, rate * RARE_SHARE)
    return AttemptPlan(limit, needed, fewer_than(needed, limit, rate), lucky)


def attempts_to_see(rate: float, confidence: float = CONFIDENCE) -> int:
    """So many attempts show it at least once with `confidence`, if each does with `rate`, above 0
    and below 1: log(1 - confidence) / log(1 - rate), rounded up, `MOST_ATTEMPTS` at most."""
    n = math.ceil(math.log(1.0 - confidence) / math.log(1.0 - rate))
    return min(max(n, 1), MOST_ATTEMPTS)


def fewer_than(needed: int, n: int, rate: float) -> float:
    """The binomial probability of fewer than `needed` successes in `n` independent attempts."""
    return math.fsum(
        math.comb(n, k) * rate**k * (1.0 - rate) ** (n - k) for k in range(min(needed, n + 1))
    )
