"""Writing trials down as they come, and remembering what later parts of the run build on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from batch_invariance.invariance_diff.certificate import LOST_EVENT
from batch_invariance.invariance_diff.diff import compare_trials
from batch_invariance.invariance_diff.endpoint import TokenNames
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    Scored,
    Trial,
    TrialKey,
)
from batch_invariance.invariance_diff.records import Event, Header, Record
from batch_invariance.invariance_diff.request import build_body, max_tokens_of
from batch_invariance.live_invariance.answers import read_result
from batch_invariance.live_invariance.dispatch import Answered
from batch_invariance.live_invariance.evidence_file import EvidenceWriter
from batch_invariance.scorer_api import ScoringSession

UNSCORED = Scored(None, None, "not_scored", None, None)
"""Warm-up trials are compared with nothing, so no scorer sees them."""


class RunObserver(Protocol):
    """Is told what happens, for a person to read."""

    def stage(self, text: str) -> None:
        """A launch, an arm or a pass begins."""

    def trial(self, trial: Trial, divergent: bool) -> None:
        """A trial was recorded."""

    def event(self, event: Event) -> None:
        """Something out of the ordinary was recorded."""

    def note(self, text: str) -> None:
        """A remark that is not part of the evidence."""


class StopRun(Exception):
    """Ends the run early, with its evidence and a footer that says why."""

    def __init__(self, ended: str) -> None:
        super().__init__(ended)
        self.ended = ended


@dataclass(frozen=True, slots=True)
class StopRules:
    """Whether the run ends at the first lost trial, or at the first score divergence."""

    on_lost: bool = False
    on_red: bool = False


@dataclass(frozen=True, slots=True)
class PassRef:
    """The pass a trial belongs to, and whether its token limit is another than the item's."""

    arm: Arm
    index: int
    max_tokens: int | None = None


class Recorder:
    """Turns answers into trials and writes them; the run's memory.

    `reference` is arm A's trials by item, `divergent` the (item, lane) of diverging C trials, each
    once, in order of appearance.
    """

    def __init__(
        self,
        header: Header,
        session: ScoringSession,
        writer: EvidenceWriter,
        observer: RunObserver,
        stop_rules: StopRules,
    ) -> None:
        self.header = header
        self.observer = observer
        self.items = header.workset.items
        self.bodies = [build_body(item, header.plan.sampling) for item in self.items]
        self.reference: dict[int, Trial] = {}
        self.divergent: dict[tuple[int, int], None] = {}
        dialect = header.plan.sampling.dialect
        self._names = TokenNames.IDS if dialect is None else dialect.tokens
        self._session = session
        self._writer = writer
        self._stop_rules = stop_rules

    @property
    def n_trials(self) -> int:
        """Trials written so far."""
        return self._writer.n_trials

    def write(self, record: Record) -> None:
        """Writes a record that is no trial."""
        self._writer.write(record)

    def sync(self) -> None:
        """Puts what was written on the disk."""
        self._writer.sync()

    def event(
        self, what: str, detail: str, arm: Arm | None = None, pass_index: int | None = None
    ) -> None:
        """Writes an event and tells the observer."""
        event = Event(what, detail, arm, pass_index)
        self.write(event)
        self.observer.event(event)

    def answered(self, ref: PassRef, answer: Answered, died: bool) -> Trial:
        """Parses, scores and records one answer, and gives the trial.

        `died` puts a broken connection down to the server's death. Raises StopRun as the stop
        rules say.
        """
        entry, exchange = answer.entry, answer.exchange
        item = self.items[entry.item]
        limit = ref.max_tokens or max_tokens_of(item, self.header.plan.sampling)
        result = read_result(exchange, limit, died, self._names)
        scored = None
        if isinstance(result, Completion):
            warm = ref.arm is Arm.WARMUP
            scored = UNSCORED if warm else self._session.score(item, result)
        trial = Trial(
            key=TrialKey(ref.arm, ref.index, entry.item, entry.occurrence),
            item_id=item.id,
            lane=answer.lane,
            wave=entry.wave,
            request_sha256=answer.body.sha256,
            dispatch_ts=exchange.dispatch_ts,
            complete_ts=exchange.complete_ts,
            result=result,
            scored=scored,
            perturbed=ref.arm is Arm.P and answer.body.sha256 != self.bodies[entry.item].sha256,
        )
        self._record(trial)
        return trial

    def remember(self, trial: Trial) -> tuple[bool, bool]:
        """Keeps what later parts of the run build on; whether the trial differs from A at all, and
        in its score."""
        key = trial.key
        if key.arm is Arm.A:
            self.reference.setdefault(key.item, trial)
        x = self.reference.get(key.item)
        if key.arm is not Arm.C or x is None or x.scored is None or trial.scored is None:
            return False, False
        diff = compare_trials(x, trial)
        divergent = diff.score_divergent or diff.token_divergent
        if divergent:
            self.divergent.setdefault((key.item, trial.lane))
        return divergent, diff.score_divergent

    def _record(self, trial: Trial) -> None:
        self.write(trial)
        key = trial.key
        divergent, red = self.remember(trial)
        self.observer.trial(trial, divergent)
        if isinstance(trial.result, Failure) and key.arm is not Arm.WARMUP:
            detail = f"{trial.item_id}: {trial.result.kind.value}: {trial.result.detail}"
            self.event(LOST_EVENT, detail, key.arm, key.pass_index)
            if self._stop_rules.on_lost:
                raise StopRun("stopped at the first lost trial (--stop-on-lost)")
        if red and self._stop_rules.on_red:
            raise StopRun("stopped at the first score divergence (--stop-on-red)")
