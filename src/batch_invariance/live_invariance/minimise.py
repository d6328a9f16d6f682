"""From the starts of a divergence to the smallest case of it that was found, and its rate."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

from batch_invariance.errors import Interrupted, ServerError
from batch_invariance.invariance_diff.attempts import AttemptPlan, Rate, plan_attempts
from batch_invariance.invariance_diff.case import (
    CaseShape,
    DivergenceKind,
    Expected,
    Redaction,
    Reference,
    Search,
)
from batch_invariance.invariance_diff.case_judge import Wanted, answer_sha256
from batch_invariance.invariance_diff.case_origin import Start
from batch_invariance.invariance_diff.model import Completion
from batch_invariance.invariance_diff.reduction import Reducer, Shown
from batch_invariance.live_invariance.case_bench import CaseBench, Tried
from batch_invariance.live_invariance.case_filler import filler_item
from batch_invariance.live_invariance.interrupts import deferred

GOOD_START = 0.5
"""A start that shows it in this share of its attempts is taken without trying the others."""
GOOD_SHARE = 0.5
"""A case that shows it in this share of the start's rate is good enough."""
FALLBACKS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
"""Which of the kept candidates are measured until one is good enough: shares of the way from the
start to the last."""
FILLERS = 8
"""How many texts of filler are tried in place of one prompt."""


class SearchObserver(Protocol):
    """Is told how the search goes, for a person to read."""

    def stage(self, text: str, n_left: int) -> None:
        """A part begins; about `n_left` candidates are left in all."""

    def candidate(self, shape: CaseShape, tried: Tried, kept: bool) -> None:
        """A candidate was tried."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """When the search ends: after so many candidates, and after so many seconds. `attempts` are
    made at each start, and at the end to state the case's rate."""

    max_candidates: int
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class NotReproduced:
    """No start showed the divergence; the rate of each."""

    rates: tuple[tuple[str, Rate], ...]


@dataclass(frozen=True, slots=True)
class Minimised:
    """What was found. `fresh`: whether `rate` was measured on a server launched for the case; else
    it is that of the attempts that kept it."""

    start: Start
    shape: CaseShape
    expected: Expected
    rate: Rate
    fresh: bool
    one_slot_agrees: bool | None
    search: Search
    redaction: Redaction
    interrupted: Interrupted | None = None


class _Spent(Exception):
    """The search has used up what it was given."""


class _Probe:
    """Asks the bench, keeps to the limits, and remembers what the kept candidates showed."""

    def __init__(
        self,
        bench: CaseBench,
        plan: AttemptPlan,
        limits: SearchLimits,
        observer: SearchObserver,
        deadline: float,
    ) -> None:
        self.n_candidates = 0
        self.history: list[tuple[CaseShape, Tried]] = []
        self._bench = bench
        self._plan = plan
        self._limits = limits
        self._observer = observer
        self._deadline = deadline

    def stage(self, name: str, n_left: int) -> None:
        self._observer.stage(f"making it small: {name}", n_left)

    def shows(self, shape: CaseShape) -> Shown:
        if self.n_candidates >= self._limits.max_candidates:
            raise _Spent(f"{self.n_candidates} candidates were tried (--max-probes)")
        if time.monotonic() > self._deadline:
            raise _Spent(f"{self._limits.seconds:g} s have passed (--time-budget)")
        self.n_candidates += 1
        tried = self._bench.tries(shape, self._plan)
        kept = tried.rate.shown >= self._plan.needed
        if kept:
            self.history.append((shape, tried))
        self._observer.candidate(shape, tried, kept)
        return Shown(kept, tried.seen)


@dataclass(frozen=True, slots=True)
class SearchTask:
    """What is to be made small: its starts, what counts, and whether prompts are to be replaced."""

    starts: tuple[Start, ...]
    wanted: Wanted
    reference: Reference
    limits: SearchLimits
    fill: bool


def minimise(
    task: SearchTask, bench: CaseBench, observer: SearchObserver
) -> Minimised | NotReproduced:
    """Finds a start that shows the divergence, makes it small, and measures what is left.

    A signal that comes once a start has been found ends the search, not the result: the best so far
    is returned with it. Raises ServerError when a launch fails or the server dies again and again
    before there is anything to keep.
    """
    with deferred():
        return _Search(task, bench, observer).run()


class _Search:
    def __init__(self, task: SearchTask, bench: CaseBench, observer: SearchObserver) -> None:
        self._task = task
        self._bench = bench
        self._observer = observer
        self._began = time.monotonic()
        self._deadline = self._began + task.limits.seconds
        self._filled_at: int | None = None
        self._most_tokens = max(s.shape.subject.item.max_tokens or 1 for s in task.starts)

    def run(self) -> Minimised | NotReproduced:
        found = self._start()
        if isinstance(found, NotReproduced):
            return found
        start, tried = found
        plan = plan_attempts(tried.rate.cautious)
        limits = self._task.limits
        probe = _Probe(self._bench, plan, limits, self._observer, self._deadline)
        probe.history.append((start.shape, tried))
        serial = self._task.reference is Reference.ONE_SLOT
        reducer = Reducer(start.shape, tried.seen, probe, serial)
        ended, interrupted = None, None
        try:
            reducer.run()
            if self._task.fill:
                self._fill(reducer, probe)
        except _Spent as spent:
            ended = str(spent)
        except ServerError as error:
            ended = str(error).splitlines()[0]
        except Interrupted as signal:
            ended, interrupted = "a signal", signal
        made = _Made(start, tried.rate, plan, probe, reducer.n_kept, ended)
        return self._finish(made, interrupted)

    def _start(self) -> tuple[Start, Tried] | NotReproduced:
        rates: list[tuple[str, Rate]] = []
        best: tuple[Start, Tried] | None = None
        for start in self._task.starts:
            if rates and time.monotonic() > self._deadline:
                break
            self._observer.stage(f"start: {start.what}, {len(start.shape.requests)} requests", 0)
            tried = self._bench.rate(start.shape, self._task.limits.attempts)
            rates.append((start.what, tried.rate))
            if tried.rate.shown and (best is None or tried.rate.share > best[1].rate.share):
                best = start, tried
            if tried.rate.share >= GOOD_START:
                break
        return best or NotReproduced(tuple(rates))

    def _fill(self, reducer: Reducer, probe: _Probe) -> None:
        """Replaces prompt after prompt by filler, and notes from which kept candidate on all are.

        Another prompt of the target parts at another token, so it gets all the tokens of the start.
        """
        shape = reducer.best
        probe.stage("filler for private text", FILLERS * len(shape.requests))
        order = (*shape.companions, shape.target)
        if all(self._fill_one(reducer, i, shape.names[i]) for i in order):
            self._filled_at = len(probe.history) - 1
            reducer.fewer_tokens()

    def _fill_one(self, reducer: Reducer, index: int, name: str) -> bool:
        original = reducer.best.requests[index].item
        for number in range(FILLERS):
            client = self._bench.client(reducer.best)
            filler = filler_item(client, original, name, f"{index}/{number}")
            if filler is None:
                return False
            if reducer.attempt(self._roomy(reducer.best.with_item(index, filler), index)):
                return True
        return False

    def _roomy(self, shape: CaseShape, index: int) -> CaseShape:
        if index != shape.target:
            return shape
        limit = self._most_tokens
        for i, request in enumerate(shape.requests):
            shape = shape.with_item(i, replace(request.item, max_tokens=limit))
        return shape

    def _finish(self, made: _Made, interrupted: Interrupted | None) -> Minimised:
        shape, tried = made.probe.history[-1]
        expected, rate = _as_expected(self._task.wanted.kind, tried), tried.rate
        agrees, fresh, ended = None, False, made.ended
        try:
            if interrupted is None:
                shape, expected, rate, agrees = self._measured(made, expected)
                fresh = True
        except Interrupted as signal:
            interrupted, ended = signal, ended or "a signal"
        except ServerError as error:
            ended = ended or str(error).splitlines()[0]
        redaction = Redaction.NONE
        if self._task.fill:
            filled = self._filled_at is not None
            redaction = Redaction.FILLER if filled else Redaction.REMOVED
        search = Search(
            n_candidates=made.probe.n_candidates,
            n_kept=made.n_kept,
            n_attempts=self._bench.n_attempts,
            seconds=round(time.monotonic() - self._began, 1),
            start=made.rate,
            plan=made.plan,
            ended_early=ended,
        )
        return Minimised(
            made.start, shape, expected, rate, fresh, agrees, search, redaction, interrupted
        )

    def _measured(
        self, made: _Made, fallback: Expected
    ) -> tuple[CaseShape, Expected, Rate, bool | None]:
        """The smallest case that shows it well enough on a server launched for it, else an earlier
        one, else the one that shows it most often."""
        history = [shape for shape, _ in made.probe.history[self._filled_at or 0 :]]
        places = [round((len(history) - 1) * share) for share in FALLBACKS]
        best: tuple[CaseShape, Expected, Rate, bool | None] | None = None
        for shape in dict.fromkeys(history[place] for place in places):
            self._observer.stage("measuring the case", 0)
            try:
                measured = self._bench.measure(shape, self._task.limits.attempts)
            except ServerError:
                if best is None:
                    raise
                break
            expected, rate = measured.expectation(self._task.wanted, self._task.reference)
            found = shape, expected or fallback, rate, measured.one_slot_agrees
            if best is None or rate.share > best[2].share:
                best = found
            if rate.share >= GOOD_SHARE * made.rate.share:
                break
        assert best is not None
        return best


@dataclass(frozen=True, slots=True)
class _Made:
    """What the search left behind."""

    start: Start
    rate: Rate
    plan: AttemptPlan
    probe: _Probe
    n_kept: int
    ended: str | None


def _as_expected(kind: DivergenceKind, tried: Tried) -> Expected:
    """What the attempts that kept a candidate showed."""
    assert tried.alone is not None
    texts = [
        trial.result.text if trial is not None and isinstance(trial.result, Completion) else None
        for trial in (tried.alone, tried.other)
    ]
    return Expected(kind, answer_sha256(tried.alone), texts[0], texts[1], tried.seen)
