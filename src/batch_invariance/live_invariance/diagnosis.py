"""Which setting takes a divergence away: the order of attempts, and what they come to.

A remedy is screened first, on the diverging items and their companions with few passes: one
divergence there and it is no remedy. One that stays clean is then measured on the full cell, more
than once, because a setting that is clean only mostly is not GREEN. What runs a cell comes from
outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.remedies import (
    LeftOut,
    Remedy,
    Today,
    apply_remedies,
    compatible,
)

TODAY = "as today"
BUDGET = "not tried: the time budget was used up"


class Scope(str, Enum):
    """How much of the cell an attempt runs: a screen of few items, all items with the screen's few
    passes, or the full cell."""

    SCREEN = "screen"
    WIDE_SCREEN = "wide screen"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the cell under other settings."""

    name: str
    flags: UserFlags
    parallel: int
    scope: Scope


@dataclass(frozen=True, slots=True)
class Measured:
    """What one attempt came to. `divergent`: ids with another score or other tokens in arm C;
    speeds are generated tokens per second."""

    scope: Scope
    verdict: Verdict
    divergent: tuple[str, ...]
    n_ids: int
    serial_tokens_per_s: float | None
    concurrent_tokens_per_s: float | None
    certificate: Path


def measured(scope: Scope, cert: Certificate, path: Path) -> Measured:
    """The figures of one certificate."""
    speed = cert.throughput
    return Measured(
        scope=scope,
        verdict=cert.verdict,
        divergent=tuple(dict.fromkeys((*cert.mismatch, *cert.token_divergence_ids))),
        n_ids=cert.divergence_report["AC"].n_ids_compared,
        serial_tokens_per_s=speed.serial_tokens_per_s,
        concurrent_tokens_per_s=speed.concurrent_tokens_per_s,
        certificate=path,
    )


Run = Callable[[Attempt], Measured]
"""Runs one attempt. Raises BatchInvarianceError where it comes to no certificate."""


@dataclass(frozen=True, slots=True)
class Row:
    """One setting with all runs under it, in order. `why`: what kept it from being measured."""

    name: str
    flags: UserFlags
    parallel: int
    runs: tuple[Measured, ...]
    why: str | None = None
    needed: int = 0
    """Full runs that a GREEN takes; 0 for the row of today's settings."""

    @property
    def verdict(self) -> Verdict | None:
        """GREEN only where all full runs that were asked for are; else the worst run's verdict,
        and None where nothing ran."""
        full = [run.verdict for run in self.runs if run.scope is Scope.FULL]
        if self.needed and len(full) == self.needed and set(full) == {Verdict.GREEN}:
            return Verdict.GREEN
        others = [run for run in self.runs if run.divergent or run.scope is Scope.FULL]
        found = {run.verdict for run in others} - {Verdict.GREEN}
        order = (Verdict.RED, Verdict.UNVERIFIED, Verdict.AMBER)
        worst = next((verdict for verdict in order if verdict in found), None)
        # A clean screen alone, or fewer GREEN runs than asked for, proves nothing.
        return worst or (Verdict.UNVERIFIED if self.runs else None)

    @property
    def n_green(self) -> int:
        """Full runs that were GREEN."""
        return sum(run.scope is Scope.FULL and run.verdict is Verdict.GREEN for run in self.runs)

    @property
    def n_divergent(self) -> int:
        """The most diverging ids of any run."""
        return max((len(run.divergent) for run in self.runs), default=0)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All rows in the order of their measurement, today's settings first, and what was left out.

    `largest_n`: the most slots that are GREEN with today's flags, None where no N from 2 to one
    less than today's was. `reproduced`: whether today's settings diverged again.
    """

    today: Row
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    by_slots: tuple[Row, ...]
    reproduced: bool

    @property
    def remedies(self) -> tuple[Row, ...]:
        """The rows that are GREEN at today's number of slots."""
        return tuple(row for row in self.rows if row.verdict is Verdict.GREEN)

    @property
    def largest_n(self) -> int | None:
        """See the class."""
        green = [row.parallel for row in self.by_slots if row.verdict is Verdict.GREEN]
        return max(green, default=None)


@dataclass(frozen=True, slots=True)
class DiagnosisPlan:
    """What is tried: remedies in order, and how many full runs must be GREEN."""

    today: Today
    remedies: tuple[Remedy | LeftOut, ...]
    confirm_runs: int
    search_n: bool = True


def diagnose(plan: DiagnosisPlan, run: Run, out_of_time: Callable[[], bool]) -> Diagnosis:
    """Measures today's settings, each remedy, combinations where none helps alone, and fewer slots.

    `out_of_time` is asked before each attempt; once true, what is left is listed as not tried.
    """
    return _Diagnosing(plan, run, out_of_time).run()


class _Diagnosing:
    """The attempts in their order."""

    def __init__(self, plan: DiagnosisPlan, run: Run, out_of_time: Callable[[], bool]) -> None:
        self._plan = plan
        self._today = plan.today
        self._run = run
        self._out_of_time = out_of_time
        self._screen = Scope.SCREEN

    def run(self) -> Diagnosis:
        today = self._baseline()
        left_out = tuple(r for r in self._plan.remedies if isinstance(r, LeftOut))
        if not today.n_divergent:
            return Diagnosis(today, (), left_out, (), reproduced=False)
        rows = self._singles()
        if not any(row.verdict is Verdict.GREEN for row in rows):
            rows += self._combined(rows, len(today.runs[-1].divergent))
        by_slots = self._fewer_slots() if self._plan.search_n else []
        return Diagnosis(today, tuple(rows), left_out, tuple(by_slots), reproduced=True)

    def _baseline(self) -> Row:
        """Today's settings on the screen's items; on all of them where those stay clean."""
        runs = []
        for scope in (Scope.SCREEN, Scope.WIDE_SCREEN, Scope.FULL):
            self._screen = scope
            attempt = Attempt(TODAY, self._today.flags, self._today.parallel, scope)
            runs.append(self._run(attempt))
            if runs[-1].divergent:
                break
        return Row(TODAY, self._today.flags, self._today.parallel, tuple(runs))

    def _singles(self) -> list[Row]:
        tried = [remedy for remedy in self._plan.remedies if isinstance(remedy, Remedy)]
        return [self._try([remedy]) for remedy in tried]

    def _combined(self, rows: Sequence[Row], baseline: int) -> list[Row]:
        """Pairs of what helped a little, the most helpful first, then all of it together.

        `baseline`: diverging ids of the run of today's settings that the first run of each row
        repeats, on the same items.
        """
        by_name = {r.name: r for r in self._plan.remedies if isinstance(r, Remedy)}
        ran = [row for row in rows if row.runs]
        helped = sorted(ran, key=lambda row: (len(row.runs[0].divergent), row.n_divergent))
        chosen = [by_name[row.name] for row in helped if len(row.runs[0].divergent) < baseline]
        chosen = chosen if len(chosen) > 1 else [by_name[row.name] for row in helped]
        found = []
        for group in _groups(chosen):
            found.append(self._try(group))
            if found[-1].verdict is Verdict.GREEN:
                break
        return found

    def _fewer_slots(self) -> list[Row]:
        """Bisects between 1 slot, which is serial, and today's number, which diverges."""
        found = []
        good, bad = 1, self._today.parallel
        while bad - good > 1:
            middle = (good + bad) // 2
            row = self._attempt(f"{middle} slots", self._today.flags, middle)
            found.append(row)
            if row.verdict is Verdict.GREEN:
                good = middle
            else:
                bad = middle
        return found

    def _try(self, remedies: Sequence[Remedy]) -> Row:
        name = " + ".join(remedy.name for remedy in remedies)
        return self._attempt(name, apply_remedies(self._today.flags, remedies))

    def _attempt(self, name: str, flags: UserFlags, parallel: int | None = None) -> Row:
        n = self._today.parallel if parallel is None else parallel
        runs: list[Measured] = []
        why = None
        for attempt in self._attempts(name, flags, n):
            if self._out_of_time():
                why = BUDGET
                break
            try:
                runs.append(self._run(attempt))
            except BatchInvarianceError as error:
                why = str(error)
                break
            full = attempt.scope is Scope.FULL
            if runs[-1].divergent or (full and runs[-1].verdict is not Verdict.GREEN):
                break
        return Row(name, flags, n, tuple(runs), why, self._plan.confirm_runs)

    def _attempts(self, name: str, flags: UserFlags, n: int) -> Iterator[Attempt]:
        if self._screen is not Scope.FULL:
            yield Attempt(name, flags, n, self._screen)
        for _ in range(self._plan.confirm_runs):
            yield Attempt(name, flags, n, Scope.FULL)


def _groups(remedies: Sequence[Remedy]) -> Iterator[list[Remedy]]:
    """Compatible pairs in order, then the largest compatible set of more than two."""
    for pair in combinations(remedies[:3], 2):
        if compatible(pair):
            yield list(pair)
    together: list[Remedy] = []
    for remedy in remedies:
        if compatible([*together, remedy]):
            together.append(remedy)
    if len(together) > 2:
        yield together


def screening_ids(cert: Certificate, ids: Sequence[str], n: int) -> list[str]:
    """The `n` items to screen with, or few more, in the work-set's order: diverging ones, smallest
    margin first, each with the companions of its first divergence, then others."""
    reports = sorted(
        cert.divergence_report["AC"].per_id,
        key=lambda report: (
            math.inf
            if report.first_divergence.margin_x is None
            else report.first_divergence.margin_x
        ),
    )
    chosen: dict[str, None] = {}
    for report in reports:
        group = dict.fromkeys((report.id, *report.first_divergence.companions))
        if chosen and len(chosen | group) > n:
            break
        chosen.update(group)
    for item_id in (*cert.mismatch, *cert.token_divergence_ids, *ids):
        if len(chosen) >= n:
            break
        chosen[item_id] = None
    return [item_id for item_id in ids if item_id in chosen]
