"""Evidence, record by record, becomes `Facts`.

One pass over the file. What stays in memory is arm A and arm B (one trial per item), one tally per
item and pair, and the pass that is open; the trials of arm C are compared and let go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from batch_invariance.errors import EvidenceError, ScheduleError
from batch_invariance.invariance_diff.arm_c import ArmC, answered_tokens
from batch_invariance.invariance_diff.codec import shown
from batch_invariance.invariance_diff.comparisons import OF_ENDPOINT, PAIRS, Comparisons
from batch_invariance.invariance_diff.control import planted_body
from batch_invariance.invariance_diff.diff import margins
from batch_invariance.invariance_diff.facts import (
    PLANNED_ARMS,
    Facts,
    ItemFacts,
    Lifetime,
    LostTrial,
)
from batch_invariance.invariance_diff.model import Arm, Completion, Failure, Source, Trial
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.pairs import content_sha
from batch_invariance.invariance_diff.plan import planned_digest
from batch_invariance.invariance_diff.records import (
    COMPLETE,
    ControlPlan,
    DecodeRuns,
    Event,
    Footer,
    GaugeSamples,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    Resumed,
    ServerSaid,
    SharedArm,
    WaveEnd,
)
from batch_invariance.invariance_diff.request import build_body
from batch_invariance.invariance_diff.rules import MAX_SLOTS, RULES_VERSION
from batch_invariance.invariance_diff.schedule import DispatchKind, Ordering, check_schedule
from batch_invariance.invariance_diff.schedule_space import SpaceTally
from batch_invariance.invariance_diff.shared_arm import CopiedArm
from batch_invariance.invariance_diff.tracker import (
    NO_COUNTERS,
    PassTracker,
    latest,
    ran_back,
    tracker_of,
)
from batch_invariance.invariance_diff.workset import items_sha256


class Fold:
    """Feeds records in, keeps the running state, and gives the `Facts` at the end."""

    def __init__(self, header: Header, onlooker: Onlooker) -> None:
        items = header.workset.items
        self._onlooker = onlooker
        self._items = items
        self._facts = Facts(header, SpaceTally(len(items)), items=[ItemFacts() for _ in items])
        self._bodies = [build_body(item, header.plan.sampling).sha256 for item in items]
        self._compared = Comparisons(items, PAIRS if header.endpoint is None else OF_ENDPOINT)
        self._open: PassTracker | None = None
        self._counters = NO_COUNTERS
        self._alone: dict[int, float] = {}
        self._arm_c = ArmC(self._facts, self._compared)
        self._plans = {(p.arm, p.pass_index): p for p in header.plan.passes}
        self._done: set[tuple[Arm, int]] = set()
        self._confirmed: set[tuple[int, int]] = set()
        self._all_items = range(len(items))
        self._copied: CopiedArm | None = None
        self._at_start = True

    def feed(self, record: Record) -> None:
        """Takes the next record. Raises EvidenceError for one that cannot stand where it is."""
        facts = self._facts
        if facts.footer is not None:
            raise EvidenceError("evidence", ["a record follows the footer"])
        if isinstance(record, (PassStart, WaveEnd, PassEnd)):
            self._watch(record)
        if self._copied is not None and self._copied.take(record):
            self._copied = None
        if isinstance(record, Trial):
            self._trial(record)
        elif isinstance(record, PassStart):
            self._pass_start(record)
        elif isinstance(record, WaveEnd):
            self._tracker(record.arm, record.pass_index).end_wave(record)
        elif isinstance(record, DecodeRuns):
            self._tracker(record.arm, record.pass_index).add_runs(record)
        elif isinstance(record, GaugeSamples):
            self._tracker(record.arm, record.pass_index).add_polls(record.samples)
        elif isinstance(record, ServerSaid):
            facts.said.append(record)
        elif isinstance(record, PassEnd):
            self._tracker(record.arm, record.pass_index)
            self._close(record)
        elif isinstance(record, LifetimeStart):
            facts.lifetimes.append(Lifetime(record))
            self._counters = NO_COUNTERS
        elif isinstance(record, LifetimeEnd):
            if not facts.lifetimes or facts.lifetimes[-1].start.index != record.index:
                raise EvidenceError("evidence", ["a server lifetime ends that never began"])
            facts.lifetimes[-1].end = record
        elif isinstance(record, ControlPlan):
            other = record.item if record.other_item is None else record.other_item
            if not (0 <= record.item < len(self._items) and 0 <= other < len(self._items)):
                raise EvidenceError("evidence", ["the control plan names an unknown item"])
            facts.control.plan = record
        elif isinstance(record, Event):
            facts.events.append(record)
        elif isinstance(record, Resumed):
            self._resumed(record)
        elif isinstance(record, SharedArm):
            self._shared(record)
        elif isinstance(record, Footer):
            facts.footer = record
        self._at_start = False

    def _shared(self, record: SharedArm) -> None:
        if not self._at_start:
            raise EvidenceError("evidence", ["a shared arm stands elsewhere than at the beginning"])
        self._copied = CopiedArm(self._facts.header, record)
        self._facts.shared_arms.append(record)
        if record.footer.ended != COMPLETE:
            self._facts.plan_faults.append(f"the shared arm ended early: {record.footer.ended}")

    def _watch(self, record: PassStart | WaveEnd | PassEnd) -> None:
        name = f"arm {record.arm.value} pass {record.pass_index}"
        if ran_back(self._counters, record.counters) and name not in self._facts.ran_back:
            self._facts.ran_back.append(name)
        self._counters = latest(self._counters, record.counters)

    def _tracker(self, arm: Arm, pass_index: int) -> PassTracker:
        tracker = self._open
        if tracker is None or (tracker.start.arm, tracker.start.pass_index) != (arm, pass_index):
            raise EvidenceError("evidence", [f"{arm.value} pass {pass_index} is not open"])
        return tracker

    def _pass_start(self, record: PassStart) -> None:
        if self._open is not None:
            self._facts.plan_faults.append(f"{_name(self._open.start)} never ended")
            self._close(None)
        name = _name(record)
        try:
            check_schedule(record.schedule, len(self._items), name)
        except ScheduleError as error:
            raise EvidenceError("evidence", [str(error)]) from None
        if (record.arm, record.pass_index) in self._done:
            self._facts.plan_faults.append(f"{name} ran twice")
        self._done.add((record.arm, record.pass_index))
        if record.arm is Arm.CONFIRM and record.schedule.kind is not DispatchKind.SERIAL:
            self._facts.plan_faults.append(f"{name} was not serial")
        if record.arm in PLANNED_ARMS:
            plan = self._plans.get((record.arm, record.pass_index))
            sent = {i for group in record.schedule.groups for i in group}
            by_file = record.arm is Arm.C and plan is not None and plan.ordering is Ordering.LISTED
            if sent != set(self._all_items) and not by_file:
                self._facts.plan_faults.append(f"{name} does not cover the work-set")
            if plan is None:
                self._facts.plan_faults.append(f"{name} was not planned")
            elif record.schedule.digest != planned_digest(
                plan, self._facts.header, self._lengths()
            ):
                self._facts.plan_faults.append(f"{name} ran another schedule than planned")
        self._open = tracker_of(record, self._facts.header)

    def _lengths(self) -> list[int]:
        return [answered_tokens(self._compared.of_a(i)) for i in self._all_items]

    def _trial(self, trial: Trial) -> None:
        facts, key = self._facts, trial.key
        tracker = self._tracker(key.arm, key.pass_index)
        if not 0 <= key.item < len(self._items) or self._items[key.item].id != trial.item_id:
            raise EvidenceError("evidence", [f"trial of an unknown item {shown(trial.item_id)}"])
        facts.n_trials += 1
        tracker.add(trial)
        if key.arm is Arm.WARMUP:
            return
        if trial.request_sha256 != self._expected_body(trial):
            facts.isolation.foreign_bodies += 1
        result = trial.result
        if isinstance(result, Failure):
            facts.lost.append(
                LostTrial(
                    trial.item_id,
                    key.arm,
                    key.pass_index,
                    key.occurrence,
                    result.kind.value,
                    result.http_status,
                )
            )
        else:
            facts.isolation.note(result)
            self._note_mode(trial)
            self._note_alone(trial)
        self._route(trial)

    def _expected_body(self, trial: Trial) -> str:
        """The one body of the item, or in arm P that of the planted change."""
        item, plan = trial.key.item, self._facts.control.plan
        if trial.perturbed and trial.key.arm is Arm.P and plan is not None and item == plan.item:
            return planted_body(plan, self._items, self._facts.header.plan.sampling).sha256
        return self._bodies[item]

    def _route(self, trial: Trial) -> None:
        arm = trial.key.arm
        if arm is Arm.A:
            self._compared.add_a(trial)
        elif arm is Arm.A2:
            self._compared.add_repeat("AA", trial)
        elif arm is Arm.A3:
            self._compared.add_repeat("AA3", trial)
        elif arm is Arm.B:
            self._compared.add_repeat("AB", trial)
        elif arm is Arm.C:
            self._arm_c.add(trial)
        elif arm is Arm.CONFIRM:
            self._confirm(trial)
        elif arm is Arm.P:
            self._control(trial)

    def _confirm(self, trial: Trial) -> None:
        diff, pair = self._compared.against_a(trial), (trial.key.item, trial.lane)
        if diff is None or pair not in self._arm_c.divergent_lanes:
            return
        self._confirmed.add(pair)
        self._facts.confirm_done = len(self._confirmed)
        self._facts.confirm_divergent += diff.token_divergent or diff.score_divergent

    def _control(self, trial: Trial) -> None:
        control = self._facts.control
        plan = control.plan
        diff = self._compared.against_a(trial)
        if plan is None or diff is None:
            return
        if not trial.perturbed:
            control.companions_divergent += diff.token_divergent or diff.score_divergent
        elif (plan.item, plan.lane) == (trial.key.item, trial.lane):
            at_once = diff.first is not None and diff.first.token_index == 0
            control.token_seen = diff.token_divergent if plan.banned_token is None else at_once
            control.score_seen = diff.score_divergent

    def _note_mode(self, trial: Trial) -> None:
        arm = trial.key.arm
        if arm not in PLANNED_ARMS or trial.scored is None:
            return
        mode = trial.scored.failure_mode
        modes = self._facts.failure_modes.setdefault(arm.value, {})
        modes[mode] = modes.get(mode, 0) + 1

    def _close(self, end: PassEnd | None) -> None:
        tracker = self._open
        assert tracker is not None
        facts = tracker.finish(end, self._alone_s(tracker))
        self._facts.passes.append(facts)
        self._onlooker.pass_closed(tracker, facts)
        if tracker.start.arm is Arm.C:
            self._arm_c.close(tracker)
        self._open = None

    def _note_alone(self, trial: Trial) -> None:
        """The faster of A and A2: a server may be slow at what it computes for the first time."""
        if trial.key.arm in (Arm.A, Arm.A2):
            item, span = trial.key.item, trial.complete_ts - trial.dispatch_ts
            self._alone[item] = min(span, self._alone.get(item, span))

    def _alone_s(self, tracker: PassTracker) -> float | None:
        """How long the requests of a pass of C took one at a time; None where one is unknown."""
        if tracker.start.arm is not Arm.C:
            return None
        spans = [self._alone.get(sent.item) for sent in tracker.sent]
        known = [span for span in spans if span is not None]
        return math.fsum(known) if len(known) == len(spans) else None

    def _resumed(self, record: Resumed) -> None:
        """The open pass is void: it proves nothing, but the divergences in it stay counted."""
        facts = self._facts
        facts.resumed.append(record)
        if facts.lifetimes and facts.lifetimes[-1].end is None:
            facts.lifetimes[-1].cut_off = True
        if self._open is None:
            return
        start = self._open.start
        if start.arm is Arm.C:
            self._arm_c.void(self._open)
        self._done.discard((start.arm, start.pass_index))
        facts.n_void_passes += 1
        self._onlooker.pass_closed(self._open, None)
        self._open = None

    def finish(self) -> Facts:
        """The facts, once the last record has been fed. Raises EvidenceError inside a copy."""
        if self._copied is not None:
            raise self._copied.cut_off()
        facts = self._facts
        workset = facts.header.workset
        if items_sha256(workset.items) != workset.sha256:
            facts.plan_faults.append("the work-set's digest is not that of its items")
        if self._open is not None:
            facts.plan_faults.append(f"{_name(self._open.start)} never ended")
            self._close(None)
        for (arm, index), _ in self._plans.items():
            if (arm, index) not in self._done:
                facts.plan_faults.append(f"arm {arm.value} pass {index} never ran")
        # An item that only one arm has is a divergence, unless the run broke off before its turn:
        # then nothing was compared, and the gate `completeness` says so.
        if facts.footer is not None and facts.footer.ended == COMPLETE:
            self._compared.close_sides()
        facts.pairs = self._compared.reports()
        compared = [item.n_compared for item in facts.items]
        facts.untested = [i.id for i, n in zip(self._items, compared, strict=True) if not n]
        for item in range(len(self._items)):
            trial = self._compared.of_a(item)
            answered = trial is not None and isinstance(trial.result, Completion)
            facts.content_a.append(content_sha(trial) if trial and answered else None)
            facts.score_a.append(trial.scored.score if trial and trial.scored else None)
            self._note_margins(item, trial)
        facts.confirm_wanted = min(
            len(self._arm_c.divergent_lanes), facts.header.plan.confirm_limit
        )
        return facts

    def _note_margins(self, item: int, trial: Trial | None) -> None:
        result, n = trial.result if trial is not None else None, self._facts.items[item].n_positions
        if isinstance(result, Completion):
            self._facts.margins.add_all(margins(result, n))


def _name(start: PassStart) -> str:
    return f"arm {start.arm.value} pass {start.pass_index}"


def _check_header(header: Header) -> None:
    """Raises EvidenceError for figures that no run can have and that no gate could judge."""
    foreign = header.source is Source.ENDPOINT
    told = (header.endpoint is not None, header.plan.sampling.dialect is not None)
    if told != (foreign, foreign):
        raise EvidenceError("evidence", ["the source and the description of the server disagree"])
    n, drift = header.cell.dispatch_n, header.plan.logit_drift
    if not 1 <= n <= MAX_SLOTS:
        raise EvidenceError("evidence", [f"the cell has {n} slots, not 1 to {MAX_SLOTS}"])
    # A server of someone else may not tell its context, which is then 0.
    if header.cell.ctx < (0 if foreign else 1):
        raise EvidenceError("evidence", ["the cell's context holds no token"])
    if header.cell.n_ubatch < 1:
        raise EvidenceError("evidence", ["the cell's micro-batch holds no token"])
    if drift is None or drift == "bits":
        return
    try:
        usable = 0.0 <= float(drift) < math.inf
    except ValueError:
        usable = False
    if not usable:
        raise EvidenceError("evidence", ["logit_drift is neither bits nor an epsilon"])


def measure(records: Iterable[Record], onlooker: Onlooker | None = None) -> Facts:
    """Folds the records of one evidence file. Raises EvidenceError for an impossible sequence."""
    onlooker = onlooker or Onlooker()
    iterator = iter(records)
    header = next(iterator, None)
    if not isinstance(header, Header):
        raise EvidenceError("evidence", ["the file is empty or does not begin with a header"])
    if header.rules_version != RULES_VERSION:
        raise EvidenceError("evidence", [f"unknown rules: version {header.rules_version}"])
    _check_header(header)
    fold = Fold(header, onlooker)
    onlooker.feed(header)
    for line, record in enumerate(iterator, start=2):
        try:
            fold.feed(record)
            onlooker.feed(record)
        except EvidenceError as error:
            raise EvidenceError("evidence", [f"line {line}: {error.issues[0]}"]) from None
    return fold.finish()
