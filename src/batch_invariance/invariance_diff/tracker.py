"""Following one pass as its records arrive: what was planned, what came, what was shared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.decode_witness import DecodeTally, Sent, TaskTally
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.endpoint import Sharing, sharing
from batch_invariance.invariance_diff.gauge import GaugeReading, Poll, proves_company, read_gauge
from batch_invariance.invariance_diff.model import Arm, Completion, Trial
from batch_invariance.invariance_diff.overlap import (
    batch_peak,
    companions_in_flight,
    group_pairs,
    max_depth,
    overlapping_pairs,
    shared_decodes,
)
from batch_invariance.invariance_diff.records import (
    Counters,
    DecodeRuns,
    Header,
    PassEnd,
    PassStart,
    WaveEnd,
)
from batch_invariance.invariance_diff.rules import MAX_GAUGE_TIME
from batch_invariance.invariance_diff.schedule import DispatchKind
from batch_invariance.invariance_diff.ubatch import Layout

NO_COUNTERS = Counters(None, None, None)


@dataclass(frozen=True, slots=True)
class PassFacts:
    """One pass in figures.

    `tokens`: generated tokens of all answered trials; `tokens_known` is false where a trial was
    lost or gave no count. `decodes` and `predicted`: forward passes and generated tokens by the
    server's counters, None where it has none. `decode_peak`: the least batch size that some
    forward pass must have had. `slot_peak`: most slots seen busy, None without samples.
    `companions`: digest of the pairs of items that met. `seconds`: first dispatch to last
    completion. `impossible_waves`: waves whose counter says less than one of their requests took.
    `prompt_counted`: prompt tokens by the server's counter. `log_fault`: why the server's log of
    forward passes is no witness, None where it is; then `log_peak` is the most lanes in one
    micro-batch and `log_crowded` the passes with several participants. `cached`: prompt tokens from
    a cache by the server's counter. `gauge`: the polls of a scheduler's gauge, None without any;
    `gauge_fault` says why they are no witness of the pass, None where they are.
    """

    arm: Arm
    pass_index: int
    lifetime: int
    kind: DispatchKind
    n_planned: int
    n_answered: int
    n_lost: int
    n_missing: int
    n_unexpected: int
    ended: bool
    tokens: int
    tokens_known: bool
    prompt_tokens: int
    decodes: int | None
    predicted: int | None
    client_depth: int
    decode_peak: int | None
    slot_peak: int | None
    companions: str | None
    lanes: tuple[int, ...]
    seconds: float
    impossible_waves: int
    n_lanes: int
    prompt_counted: int | None
    log_fault: str | None
    log_peak: int | None
    log_crowded: int
    cached: int | None = None
    gauge: GaugeReading | None = None
    gauge_fault: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A trial inside its pass: the forward passes it took, and how many of them it shared, a lower
    bound (None unknown). `tally` is there where the server's log is the witness; `by_gauge`: both
    figures count polls of the scheduler's gauge."""

    sent: Sent
    own: int
    shared: int | None
    tally: TaskTally | None = None
    by_gauge: bool = False


class PassTracker:
    """Holds one open pass. Memory is linear in the pass, and freed with it."""

    def __init__(self, start: PassStart, layout: Layout, sharing: Sharing) -> None:
        self.start = start
        self._sharing = sharing
        self._polls: list[Poll] = []
        self._log = DecodeTally(layout)
        self._matched: dict[tuple[int, int], TaskTally] = {}
        self.members: list[Member] = []
        """The trials with what each one shared, by the best witness; filled by `finish`."""
        self.sent: list[Sent] = []
        """Every trial, in order of arrival."""
        self._impossible_waves = 0
        self._expected = {(e.item, e.occurrence): e for e in start.schedule.entries()}
        self._n_planned = len(self._expected)
        self._unexpected = 0
        self._answered = self._lost = 0
        self._tokens = self._prompt_tokens = 0
        self._tokens_known = True
        self._intervals: list[tuple[float, float, int, int]] = []
        self._waves: dict[int, list[Sent]] = {}
        self._wave_items: dict[int, list[tuple[int, int]]] = {}
        self._lanes: set[int] = set()
        self._last = start.counters
        self._peak: int | None = None

    def add(self, trial: Trial) -> None:
        """Counts a trial; it is unexpected where the schedule has no such trial (any more)."""
        key = (trial.key.item, trial.key.occurrence)
        entry = self._expected.pop(key, None)
        planned = (
            entry is not None
            and entry.wave == trial.wave
            and (entry.lane is None or entry.lane == trial.lane)
            and 0 <= trial.lane < self.start.schedule.lanes
        )
        self._unexpected += not planned
        self._lanes.add(trial.lane)
        sent = sent_of(trial)
        self.sent.append(sent)
        self._intervals.append((trial.dispatch_ts, trial.complete_ts, *key))
        if planned and trial.wave is not None:
            self._waves.setdefault(trial.wave, []).append(sent)
            self._wave_items.setdefault(trial.wave, []).append(key)
        result = trial.result
        if isinstance(result, Completion):
            self._answered += 1
            self._prompt_tokens += result.prompt_tokens or 0
            if result.completion_tokens is None:
                self._tokens_known = False
            else:
                self._tokens += result.completion_tokens
        else:
            self._lost += 1
            self._tokens_known = False

    def add_runs(self, record: DecodeRuns) -> None:
        """Takes forward passes from the server's log. Raises EvidenceError for impossible ones."""
        try:
            self._log.add(record.runs)
        except ValueError as error:
            raise EvidenceError("evidence", [f"decode_runs: {error}"]) from None

    def add_polls(self, polls: Iterable[Poll]) -> None:
        """Takes polls of the scheduler's gauge."""
        self._polls += polls

    def end_wave(self, record: WaveEnd) -> None:
        """Closes a wave and works out the lower bound of what each of its trials shared.

        A counter that says fewer passes than one request must have taken proves nothing.
        """
        decodes = counter_delta(self._last.decode_total, record.counters.decode_total)
        self._last = record.counters
        trials = self._waves.pop(record.wave, [])
        counted = [(t, t.tokens) for t in trials if t.tokens is not None]
        if decodes is not None and any(own > decodes for _, own in counted):
            self._impossible_waves += 1
            decodes = None
        if decodes is not None and counted:
            peak = batch_peak([own for _, own in counted], decodes)
            self._peak = max(self._peak or 0, peak)
        by_lane = {trial.lane: own for trial, own in counted}
        for trial, own in counted:
            others = self._sharers(trial.lane, by_lane)
            shared = None if decodes is None else shared_decodes(own, others, decodes)
            self.members.append(Member(trial, own, shared))

    @property
    def largest_pass(self) -> int:
        """Tokens in the largest forward pass, by the server's log."""
        return self._log.most_rows

    def _sharers(self, lane: int, by_lane: dict[int, int]) -> list[int]:
        """Tokens of the companions whose presence in a pass means the same matrix products.

        Under split KV llama.cpp cuts a pass into runs of neighbouring sequences (`split_equal` with
        `sequential`), so only a neighbouring lane is sure to be in the same piece; under unified KV
        any lane is.
        """
        if self._sharing is Sharing.UNTOLD:
            return []
        if self._sharing is Sharing.NEIGHBOURS:
            return [by_lane[n] for n in (lane - 1, lane + 1) if n in by_lane]
        return [own for other, own in by_lane.items() if other != lane]

    def companions(self, items: set[int]) -> dict[tuple[int, int], set[int]]:
        """For each (item, occurrence) of `items`: the other items that it met.

        By the server's log those of its forward passes; without it those of its wave, or those in
        flight at the same time in a saturated pass. Empty where more were in flight than there are
        lanes: such times are wrong, and everything would have met everything.
        """
        if self._matched:
            item_of = {tally.task: key[0] for key, tally in self._matched.items()}
            return {
                key: {item_of[task] for task in tally.companions} - {key[0]}
                for key, tally in self._matched.items()
                if key[0] in items
            }
        if self.start.schedule.kind is DispatchKind.WAVES:
            groups = self._wave_items.values()
            return {
                key: {i for i, _ in group} - {key[0]}
                for group in groups
                for key in group
                if key[0] in items
            }
        if not items or self._depth() > self.start.schedule.lanes:
            return {}
        return companions_in_flight(self._intervals, items)

    def finish(self, end: PassEnd | None, alone_s: float | None = None) -> PassFacts:
        """The figures of the pass; `end` is None where the evidence breaks off inside it. `alone_s`
        is the time that its requests took one at a time in arm A."""
        start, depth = self.start, self._depth()
        before, after = start.counters, end.counters if end is not None else NO_COUNTERS
        decodes = counter_delta(before.decode_total, after.decode_total)
        kind = start.schedule.kind
        peak = self._peak
        if kind is not DispatchKind.WAVES and decodes and self._tokens_known:
            peak = batch_peak([self._tokens], decodes)
        slots = end.slots if end is not None else None
        spans = self._intervals
        log_fault = self._match_log(end, decodes)
        log = self._log if log_fault is None else None
        predicted = counter_delta(before.predicted_total, after.predicted_total)
        seconds = max((s[1] for s in spans), default=0.0) - min((s[0] for s in spans), default=0.0)
        gauge = read_gauge(self._polls, spans) if self._polls else None
        ours = self._tokens_known and predicted == self._tokens
        gauge_fault = _gauge_fault(decodes, ours, seconds, alone_s)
        if gauge is not None and gauge_fault is None:
            self._add_company(gauge)
        return PassFacts(
            arm=start.arm,
            pass_index=start.pass_index,
            lifetime=start.lifetime,
            kind=kind,
            n_planned=self._n_planned,
            n_answered=self._answered,
            n_lost=self._lost,
            n_missing=len(self._expected),
            n_unexpected=self._unexpected,
            ended=end is not None,
            tokens=self._tokens,
            tokens_known=self._tokens_known,
            prompt_tokens=self._prompt_tokens,
            decodes=decodes,
            predicted=predicted,
            client_depth=depth,
            decode_peak=peak,
            slot_peak=slots.peak_busy if slots is not None and slots.n_samples else None,
            companions=self._companions_digest(depth),
            lanes=tuple(sorted(self._lanes)),
            seconds=seconds,
            impossible_waves=self._impossible_waves,
            n_lanes=start.schedule.lanes,
            prompt_counted=counter_delta(before.prompt_total, after.prompt_total),
            log_fault=log_fault,
            log_peak=log.peak if log is not None else None,
            log_crowded=log.n_crowded if log is not None else 0,
            cached=counter_delta(before.cached_total, after.cached_total),
            gauge=gauge,
            gauge_fault=gauge_fault,
        )

    def _add_company(self, gauge: GaugeReading) -> None:
        """Members by what the gauge shows of each trial."""
        self.members = []
        for sent in self.sent:
            inside, beside = gauge.of_trial[sent.key]
            shared = beside if proves_company(inside, beside) else 0
            self.members.append(Member(sent, inside, shared, by_gauge=True))

    def _match_log(self, end: PassEnd | None, decodes: int | None) -> str | None:
        """Why the server's log is no witness of this pass; None where it is."""
        if end is None:
            return "the pass did not end"
        if end.log_fault is not None:
            return end.log_fault
        if self._unexpected or self._expected:
            return "the pass did not go as planned"
        matched = self._log.match(self.sent, decodes)
        if isinstance(matched, str):
            return matched
        if not matched:
            return "no trial"
        self._matched = matched
        self.members = []
        for sent in self.sent:
            tally = matched[sent.key]
            self.members.append(Member(sent, tally.steps, tally.shared, tally))
        return None

    def _depth(self) -> int:
        return max_depth((start, end) for start, end, _, _ in self._intervals)

    def _companions_digest(self, depth: int) -> str | None:
        if self.start.arm is not Arm.C or depth > self.start.schedule.lanes:
            return None
        pairs: set[tuple[int, int]] = set()
        if self.start.schedule.kind is DispatchKind.WAVES:
            for group in self._wave_items.values():
                pairs |= group_pairs([item for item, _ in group])
        else:
            pairs = overlapping_pairs(self._intervals)
        return digest_of(sorted(pairs)) if pairs else None


def tracker_of(start: PassStart, header: Header) -> PassTracker:
    """The tracker of a pass of the run that has this header."""
    cell, endpoint, dialect = header.cell, header.endpoint, header.plan.sampling.dialect
    # A build without the flag for it is taken to split, which shares less.
    layout = Layout(cell.kv_unified is True, cell.n_ubatch)
    if endpoint is not None and dialect is not None:
        return PassTracker(start, layout, sharing(endpoint.engine, dialect))
    own = Sharing.ANY_LANE if layout.kv_unified else Sharing.NEIGHBOURS
    return PassTracker(start, layout, own)


def _gauge_fault(
    decodes: int | None, ours: bool, seconds: float, alone_s: float | None
) -> str | None:
    """Why a gauge is no witness of a pass; None where it is."""
    if decodes is not None:
        return "the server counts its forward passes, which says more"
    if not ours:
        return "other traffic, beside which a gauge does not tell which requests run"
    if alone_s is None or not alone_s > 0:
        return "how long its requests take alone is not known"
    if seconds > MAX_GAUGE_TIME * alone_s:
        share = seconds / alone_s
        return f"it took {share:.0%} of the time that its requests take one at a time"
    return None


def counter_delta(before: int | None, after: int | None) -> int | None:
    """What a counter gained; None where a reading is unknown or it runs backwards."""
    if before is None or after is None or after < before:
        return None
    return after - before


def ran_back(before: Counters, after: Counters) -> bool:
    """Whether any counter says less than it did."""
    return any(
        old is not None and new is not None and new < old
        for old, new in zip(_values(before), _values(after), strict=True)
    )


def latest(before: Counters, after: Counters) -> Counters:
    """The last known value of each counter."""
    pairs = zip(_values(before), _values(after), strict=True)
    return Counters(*(old if new is None else new for old, new in pairs))


def _values(counters: Counters) -> tuple[int | None, ...]:
    return (
        counters.decode_total,
        counters.predicted_total,
        counters.prompt_total,
        counters.cached_total,
    )


def sent_of(trial: Trial) -> Sent:
    """What the match with the server's log needs of a trial."""
    key, result = trial.key, trial.result
    tokens = prompt_tokens = None
    if isinstance(result, Completion):
        tokens, prompt_tokens = result.completion_tokens, result.prompt_tokens
    return Sent(key.item, key.occurrence, trial.lane, trial.dispatch_ts, tokens, prompt_tokens)
