"""What a report takes from evidence: the intervals of all trials, and a few answers.

Fed one record at a time. It keeps four numbers for a trial and the answers that are asked for, so
a report of a long run needs little memory. What a trial shared is what the certificate counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from batch_invariance.invariance_diff.model import Arm, Completion, Failure, Trial, TrialKey
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.overlap import is_co_batched
from batch_invariance.invariance_diff.pairs import content_sha
from batch_invariance.invariance_diff.records import (
    Header,
    LifetimeEnd,
    Record,
    Resumed,
)
from batch_invariance.invariance_diff.schedule import DispatchKind
from batch_invariance.invariance_diff.tracker import PassFacts, PassTracker


@dataclass(frozen=True, slots=True)
class Span:
    """One trial on the clock of the run, in seconds; the time in which an interrupted run stood
    still is left out. `own` and `shared`: the forward passes it took and those proved shared, None
    where nothing tells."""

    item: int
    occurrence: int
    lane: int
    start_s: float
    end_s: float
    lost: bool
    own: int | None = None
    shared: int | None = None

    @property
    def co_batched(self) -> bool:
        """Whether enough of it is proved shared to count as co-batched."""
        return (
            self.own is not None
            and self.shared is not None
            and is_co_batched(self.own, self.shared)
        )


@dataclass(frozen=True, slots=True)
class PassView:
    """One pass of an arm, in server lifetime `lifetime`, over `lanes` slots. `by_log`: the server's
    log of forward passes says what was shared. `void`: it was cut off and proves nothing."""

    arm: Arm
    pass_index: int
    lifetime: int
    kind: DispatchKind
    lanes: int
    spans: tuple[Span, ...]
    by_log: bool
    void: bool


@dataclass(frozen=True, slots=True)
class RunView:
    """What was taken from the evidence of one run. `log_tail`: the end of the log of the last
    server that ended."""

    header: Header
    passes: tuple[PassView, ...]
    answers: Mapping[TrialKey, Completion]
    log_tail: str


class RunCollector(Onlooker):
    """Takes the records of one evidence file in their order.

    `wanted` names the answers to keep, each with the digest of its text: a trial of a pass that
    was interrupted is there twice. None takes the last.
    """

    def __init__(self, wanted: Mapping[TrialKey, str | None]) -> None:
        self._wanted = wanted
        self._header: Header | None = None
        self._answers: dict[TrialKey, Completion] = {}
        self._passes: list[PassView] = []
        self._spans: list[Span] = []
        self._log_tail = ""
        self._last_s = self._skipped_s = 0.0

    def feed(self, record: Record) -> None:
        """Takes the next record."""
        if isinstance(record, Trial):
            self._trial(record)
        elif isinstance(record, Header):
            self._header = record
        elif isinstance(record, Resumed):
            self._skipped_s = record.ts - self._last_s
        elif isinstance(record, LifetimeEnd) and record.exit is not None:
            self._log_tail = record.exit.log_tail

    def pass_closed(self, tracker: PassTracker, facts: PassFacts | None) -> None:
        """Takes the pass with the trials since the one before it."""
        start, spans, by_log = tracker.start, self._spans, False
        self._spans = []
        if start.arm is Arm.C:
            by_log = facts is not None and facts.log_fault is None
            known = {m.sent.key: (m.own, m.shared) for m in tracker.members}
            spans = [_with_shares(span, known) for span in spans]
        self._passes.append(
            PassView(
                start.arm,
                start.pass_index,
                start.lifetime,
                start.schedule.kind,
                start.schedule.lanes,
                tuple(spans),
                by_log,
                void=facts is None or not facts.ended,
            )
        )

    def view(self) -> RunView | None:
        """What was collected; None where not even the header came."""
        if self._header is None:
            return None
        return RunView(self._header, tuple(self._passes), self._answers, self._log_tail)

    def _trial(self, trial: Trial) -> None:
        key, result = trial.key, trial.result
        if (
            key in self._wanted
            and isinstance(result, Completion)
            and self._wanted[key] in (None, content_sha(trial))
        ):
            self._answers[key] = result
        start, end = trial.dispatch_ts - self._skipped_s, trial.complete_ts - self._skipped_s
        self._last_s = max(self._last_s, end)
        lost = isinstance(result, Failure)
        self._spans.append(Span(key.item, key.occurrence, trial.lane, start, end, lost))


def _with_shares(span: Span, known: Mapping[tuple[int, int], tuple[int, int | None]]) -> Span:
    shares = known.get((span.item, span.occurrence))
    return span if shares is None else replace(span, own=shares[0], shared=shares[1])
