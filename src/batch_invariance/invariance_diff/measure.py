"""Evidence, record by record, becomes `Facts`: everything the gates look at, and nothing else.

One pass over the file. What stays in memory is arm A and arm B (one trial per item), one tally per
item and pair, and the pass that is open; the trials of arm C are compared and let go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from batch_invariance.errors import EvidenceError, ScheduleError
from batch_invariance.invariance_diff.codec import shown
from batch_invariance.invariance_diff.diff import TrialDiff, compare_trials, repeats
from batch_invariance.invariance_diff.model import Arm, Completion, Failure, Trial
from batch_invariance.invariance_diff.overlap import is_co_batched
from batch_invariance.invariance_diff.pairs import PairAccumulator, PairReport, content_sha
from batch_invariance.invariance_diff.plan import length_schedule
from batch_invariance.invariance_diff.records import (
    COMPLETE,
    ControlPlan,
    Event,
    Footer,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassPlan,
    PassStart,
    Record,
    WaveEnd,
)
from batch_invariance.invariance_diff.request import build_body
from batch_invariance.invariance_diff.rules import RULES_VERSION
from batch_invariance.invariance_diff.schedule import (
    Ordering,
    check_schedule,
)
from batch_invariance.invariance_diff.tracker import Member, PassFacts, PassTracker

SERIAL_ARMS = (Arm.A, Arm.A2, Arm.B, Arm.CONFIRM)
PLANNED_ARMS = (Arm.A, Arm.A2, Arm.B, Arm.C)
MAX_LANES = 1 << 16


@dataclass(frozen=True, slots=True)
class LostTrial:
    """A trial without a completion. What the server said is in the evidence alone."""

    id: str
    arm: Arm
    pass_index: int
    occurrence: int
    kind: str
    http_status: int | None


@dataclass(slots=True)
class ItemFacts:
    """One item over arm C: trials compared and diverging, and what was proved of sharing.

    `shared`/`own`: the trial with the most proved shared passes and its own. `n_co_batched`
    counts scored trials with enough of them; `horizon` is the longest run of token positions
    compared in such a trial.
    """

    n_compared: int = 0
    n_divergent: int = 0
    shared: int = 0
    own: int = 0
    n_co_batched: int = 0
    horizon: int = 0


@dataclass(slots=True)
class Isolation:
    """Counts over all trials of A, A2, B, C, confirm and P that speak for or against isolation."""

    n_checked: int = 0
    cache_unknown: int = 0
    cache_used: int = 0
    truncation_unknown: int = 0
    truncated: int = 0
    speculated: int = 0
    prompt_count_unknown: int = 0
    foreign_bodies: int = 0


@dataclass(slots=True)
class ControlFacts:
    """The positive control: its plan, the planted trial, and whether each diff saw the change."""

    plan: ControlPlan | None = None
    token_seen: bool | None = None
    score_seen: bool | None = None


@dataclass(slots=True)
class Lifetime:
    """One launch of the server: how it began and, once read, how it ended."""

    start: LifetimeStart
    end: LifetimeEnd | None = None


@dataclass(slots=True)
class Facts:
    """All that the gates look at."""

    header: Header
    lifetimes: list[Lifetime] = field(default_factory=list)
    passes: list[PassFacts] = field(default_factory=list)
    pairs: dict[str, PairReport] = field(default_factory=dict)
    items: list[ItemFacts] = field(default_factory=list)
    lost: list[LostTrial] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)
    isolation: Isolation = field(default_factory=Isolation)
    control: ControlFacts = field(default_factory=ControlFacts)
    events: list[Event] = field(default_factory=list)
    footer: Footer | None = None
    plan_faults: list[str] = field(default_factory=list)
    n_trials: int = 0
    failure_modes: dict[str, dict[str, int]] = field(default_factory=dict)
    content_a: list[str | None] = field(default_factory=list)
    score_a: list[float | None] = field(default_factory=list)
    per_pass: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)
    n_co_batched_divergent: int = 0
    n_c_divergent: int = 0
    confirm_wanted: int = 0
    confirm_done: int = 0
    confirm_divergent: int = 0


class Fold:
    """Feeds records in, keeps the running state, and gives the `Facts` at the end."""

    def __init__(self, header: Header) -> None:
        items = header.workset.items
        self._items = items
        self._facts = Facts(header, items=[ItemFacts() for _ in items])
        self._bodies = [build_body(item, header.plan.sampling).sha256 for item in items]
        self._first: dict[Arm, dict[int, Trial]] = {Arm.A: {}, Arm.A2: {}, Arm.B: {}}
        self._pairs = {name: PairAccumulator(name, items) for name in ("AC", "AB", "BC", "AA")}
        self._pair_seen: dict[str, set[int]] = {"AC": set(), "AB": set(), "BC": set(), "AA": set()}
        self._open: PassTracker | None = None
        self._diffs: dict[tuple[int, int], TrialDiff] = {}
        self._repeat_diffs: dict[int, TrialDiff] = {}
        self._late_first: list[tuple[str, Trial]] = []
        self._plans = {(p.arm, p.pass_index): p for p in header.plan.passes}
        self._done: set[tuple[Arm, int]] = set()
        self._divergent_lanes: dict[tuple[int, int], None] = {}

    def feed(self, record: Record) -> None:
        """Takes the next record. Raises EvidenceError for one that cannot stand where it is."""
        facts = self._facts
        if facts.footer is not None:
            raise EvidenceError("evidence", ["a record follows the footer"])
        if isinstance(record, Trial):
            self._trial(record)
        elif isinstance(record, PassStart):
            self._pass_start(record)
        elif isinstance(record, WaveEnd):
            for member in self._tracker(record.arm, record.pass_index).end_wave(record):
                self._member(member)
        elif isinstance(record, PassEnd):
            self._tracker(record.arm, record.pass_index)
            self._close(record)
        elif isinstance(record, LifetimeStart):
            facts.lifetimes.append(Lifetime(record))
        elif isinstance(record, LifetimeEnd):
            if not facts.lifetimes or facts.lifetimes[-1].start.index != record.index:
                raise EvidenceError("evidence", ["a server lifetime ends that never began"])
            facts.lifetimes[-1].end = record
        elif isinstance(record, ControlPlan):
            if not 0 <= record.item < len(self._items):
                raise EvidenceError("evidence", ["the control plan names an unknown item"])
            facts.control.plan = record
        elif isinstance(record, Event):
            facts.events.append(record)
        elif isinstance(record, Footer):
            facts.footer = record

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
        if record.arm in PLANNED_ARMS:
            plan = self._plans.get((record.arm, record.pass_index))
            if plan is None:
                self._facts.plan_faults.append(f"{name} was not planned")
            elif record.schedule.digest != self._planned_digest(plan, record):
                self._facts.plan_faults.append(f"{name} ran another schedule than planned")
        self._open = PassTracker(record)

    def _planned_digest(self, plan: PassPlan, record: PassStart) -> str | None:
        """The digest the pass must have; for an order by length it follows from arm A."""
        if plan.ordering is not Ordering.BY_LENGTH:
            return plan.digest
        a = self._first[Arm.A]
        lengths = [_tokens(a.get(i)) for i in range(len(self._items))]
        header = self._facts.header
        seed = header.plan.schedule_seed
        return length_schedule(lengths, header.cell.dispatch_n, seed, plan.pass_index).digest

    def _trial(self, trial: Trial) -> None:
        facts, key = self._facts, trial.key
        tracker = self._tracker(key.arm, key.pass_index)
        if not 0 <= key.item < len(self._items) or self._items[key.item].id != trial.item_id:
            raise EvidenceError("evidence", [f"trial of an unknown item {shown(trial.item_id)}"])
        facts.n_trials += 1
        tracker.add(trial)
        if key.arm is Arm.WARMUP:
            return
        planted = trial.perturbed and key.arm is Arm.P
        if trial.request_sha256 != self._bodies[key.item] and not planted:
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
            self._isolation(result)
            self._modes(trial)
        self._route(trial)

    def _route(self, trial: Trial) -> None:
        arm, item = trial.key.arm, trial.key.item
        if arm is Arm.A:
            self._first[arm].setdefault(item, trial)
        elif arm is Arm.A2:
            self._keep(trial, self._compare("AA", Arm.A, trial))
        elif arm is Arm.B:
            self._keep(trial, self._compare("AB", Arm.A, trial))
        elif arm is Arm.C:
            self._arm_c(trial)
        elif arm is Arm.CONFIRM:
            self._confirm(trial)
        elif arm is Arm.P:
            self._control(trial)

    def _keep(self, trial: Trial, diff: TrialDiff | None) -> None:
        """Keeps an item's first trial in A2 or B: A's own in its place where it repeats that, so
        that an answer is in memory once."""
        item = trial.key.item
        repeated = diff is not None and diff is self._repeat_diffs.get(item)
        kept = self._first[Arm.A][item] if repeated else trial
        self._first[trial.key.arm].setdefault(item, kept)

    def _compare(
        self, pair: str, x_arm: Arm, y: Trial, known: TrialDiff | None = None
    ) -> TrialDiff | None:
        item = y.key.item
        self._pair_seen[pair].add(item)
        x = self._first[x_arm].get(item)
        if x is None:
            self._pairs[pair].missing_side(item, "y")
            return None
        if isinstance(x.result, Failure) or isinstance(y.result, Failure):
            return None
        return self._pairs[pair].add(x, y, known or self._diff(x, y))

    def _diff(self, x: Trial, y: Trial) -> TrialDiff:
        """Compares two answered trials; all that repeat arm A's share one comparison."""
        item = y.key.item
        if x is not self._first[Arm.A].get(item) or not repeats(x, y):
            return compare_trials(x, y)
        diff = self._repeat_diffs.get(item)
        if diff is None:
            diff = self._repeat_diffs[item] = compare_trials(x, y)
        return diff

    def _arm_c(self, trial: Trial) -> None:
        facts, key = self._facts, trial.key
        item = facts.items[key.item]
        diff = self._compare("AC", Arm.A, trial)
        b_is_a = self._first[Arm.B].get(key.item) is self._first[Arm.A].get(key.item)
        self._compare("BC", Arm.B, trial, diff if b_is_a else None)
        for pair in ("AC", "BC"):
            if self._pairs[pair].first_of(key.item) is trial:
                self._late_first.append((pair, trial))
        if diff is None:
            return
        item.n_compared += 1
        self._diffs[(key.item, key.occurrence)] = diff
        if diff.score_divergent or diff.token_divergent:
            item.n_divergent += 1
            facts.n_c_divergent += 1
            self._divergent_lanes.setdefault((key.item, trial.lane))
            score_ids, token_ids = facts.per_pass.setdefault(key.pass_index, ([], []))
            (score_ids if diff.score_divergent else token_ids).append(trial.item_id)

    def _member(self, member: Member) -> None:
        trial = member.trial
        if trial.key.arm is not Arm.C or member.shared is None:
            return
        diff = self._diffs.get((trial.key.item, trial.key.occurrence))
        item = self._facts.items[trial.key.item]
        if member.shared > item.shared:
            item.shared, item.own = member.shared, member.own
        if diff is None or not is_co_batched(member.own, member.shared):
            return
        item.n_co_batched += 1
        item.horizon = max(item.horizon, diff.n_tokens + (diff.first is not None))
        self._facts.n_co_batched_divergent += diff.score_divergent or diff.token_divergent

    def _confirm(self, trial: Trial) -> None:
        x = self._first[Arm.A].get(trial.key.item)
        if x is None or isinstance(x.result, Failure) or isinstance(trial.result, Failure):
            return
        diff = compare_trials(x, trial)
        self._facts.confirm_done += 1
        self._facts.confirm_divergent += diff.token_divergent or diff.score_divergent

    def _control(self, trial: Trial) -> None:
        control, plan = self._facts.control, self._facts.control.plan
        x = self._first[Arm.A].get(trial.key.item)
        if x is None or isinstance(x.result, Failure) or isinstance(trial.result, Failure):
            return
        if not trial.perturbed:
            return
        if plan is not None and plan.item == trial.key.item:
            diff = compare_trials(x, trial)
            first = diff.first
            control.token_seen = first is not None and first.token_index == 0
            control.score_seen = diff.score_divergent

    def _isolation(self, result: Completion) -> None:
        i = self._facts.isolation
        i.n_checked += 1
        i.cache_unknown += result.cache_n is None
        i.cache_used += bool(result.cache_n)
        i.truncation_unknown += result.truncated is None
        i.truncated += bool(result.truncated)
        i.speculated += bool(result.draft_n)
        i.prompt_count_unknown += result.prompt_tokens is None

    def _modes(self, trial: Trial) -> None:
        arm = trial.key.arm
        if arm not in PLANNED_ARMS or trial.scored is None:
            return
        mode = trial.scored.failure_mode
        modes = self._facts.failure_modes.setdefault(arm.value, {})
        modes[mode] = modes.get(mode, 0) + 1

    def _close(self, end: PassEnd | None) -> None:
        tracker = self._open
        assert tracker is not None
        companions = tracker.companions({trial.key.item for _, trial in self._late_first})
        for pair, trial in self._late_first:
            met = sorted(companions.get((trial.key.item, trial.key.occurrence), ()))
            names = tuple(self._items[i].id for i in met)
            self._pairs[pair].set_companions(trial.key.item, names)
        self._late_first.clear()
        self._diffs.clear()
        self._facts.passes.append(tracker.finish(end))
        self._open = None

    def finish(self) -> Facts:
        """The facts, once the last record has been fed."""
        facts = self._facts
        if self._open is not None:
            facts.plan_faults.append(f"{_name(self._open.start)} never ended")
            self._close(None)
        for (arm, index), _ in self._plans.items():
            if (arm, index) not in self._done:
                facts.plan_faults.append(f"arm {arm.value} pass {index} never ran")
        self._one_sided()
        facts.pairs = {name: pair.report() for name, pair in self._pairs.items()}
        compared = [item.n_compared for item in facts.items]
        facts.untested = [i.id for i, n in zip(self._items, compared, strict=True) if not n]
        a = self._first[Arm.A]
        for item in range(len(self._items)):
            trial = a.get(item)
            answered = trial is not None and isinstance(trial.result, Completion)
            facts.content_a.append(content_sha(trial) if trial and answered else None)
            facts.score_a.append(trial.scored.score if trial and trial.scored else None)
        facts.confirm_wanted = min(len(self._divergent_lanes), facts.header.plan.confirm_limit)
        return facts

    def _one_sided(self) -> None:
        """An item that only one arm has is a divergence, unless the run broke off before its turn:
        then nothing was compared, and the gate `completeness` says so."""
        footer = self._facts.footer
        if footer is None or footer.ended != COMPLETE:
            return
        for pair, arm in (("AC", Arm.A), ("AB", Arm.A), ("BC", Arm.B), ("AA", Arm.A)):
            for item in self._first[arm].keys() - self._pair_seen[pair]:
                self._pairs[pair].missing_side(item, "x")


def _name(start: PassStart) -> str:
    return f"arm {start.arm.value} pass {start.pass_index}"


def _tokens(trial: Trial | None) -> int:
    result = trial.result if trial is not None else None
    return (result.completion_tokens or 0) if isinstance(result, Completion) else 0


def _check_header(header: Header) -> None:
    """Raises EvidenceError for figures that no run can have and that no gate could judge."""
    n, drift = header.cell.dispatch_n, header.plan.logit_drift
    if not 1 <= n <= MAX_LANES:
        raise EvidenceError("evidence", [f"the cell has {n} slots, not 1 to {MAX_LANES}"])
    if drift is None or drift == "bits":
        return
    try:
        usable = 0.0 <= float(drift) < math.inf
    except ValueError:
        usable = False
    if not usable:
        raise EvidenceError("evidence", ["logit_drift is neither bits nor an epsilon"])


def measure(records: Iterable[Record]) -> Facts:
    """Folds the records of one evidence file. Raises EvidenceError for an impossible sequence."""
    iterator = iter(records)
    header = next(iterator, None)
    if not isinstance(header, Header):
        raise EvidenceError("evidence", ["the file is empty or does not begin with a header"])
    if header.rules_version != RULES_VERSION:
        raise EvidenceError("evidence", [f"unknown rules: version {header.rules_version}"])
    _check_header(header)
    fold = Fold(header)
    for record in iterator:
        fold.feed(record)
    return fold.finish()
