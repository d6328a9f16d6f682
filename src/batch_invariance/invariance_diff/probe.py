"""The result of a probe: one prompt many times, one at a time and at once, on the same slots.

The serial answers are the control: where they agree and the concurrent ones do not, what ran beside
a request changed its answer. A probe is no certificate: one prompt bounds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from batch_invariance.invariance_diff.decode_witness import DecodeTally
from batch_invariance.invariance_diff.diff import (
    TOKEN_FIELDS,
    FirstDivergence,
    TrialDiff,
    compare_trials,
)
from batch_invariance.invariance_diff.model import Completion, Failure, FailureKind, Trial
from batch_invariance.invariance_diff.overlap import batch_peak, max_depth
from batch_invariance.invariance_diff.records import Counters, SlotSamples
from batch_invariance.invariance_diff.tracker import sent_of

_generated = attrgetter(*TOKEN_FIELDS)
"""Everything of an answer that was generated: what makes it another answer."""


class ProbeOutcome(str, Enum):
    """What a probe shows.

    `SAME`: every concurrent answer is the serial one, and overlap is proved. `DIFFERENT`: the
    serial answers agree, some concurrent one is another. `UNSTABLE`: the serial answers differ
    among themselves. `UNPROVED`: no difference was seen, and something that a statement needs is
    missing.
    """

    SAME = "same"
    DIFFERENT = "different"
    UNSTABLE = "unstable"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class Variant:
    """One distinct answer within a series.

    `count`: how many requests got it; `lanes`: on which slots; `first_request`: the first of them,
    counted from 0 in the order of dispatch. `differs_in`: fields in which it is not the serial
    answer, empty where it is that. `first`: where the token ids part (x is the serial side, with
    the margin there), None where they agree or are not known.
    """

    count: int
    lanes: tuple[int, ...]
    first_request: int
    text: str
    n_tokens: int | None
    differs_in: tuple[str, ...]
    first: FirstDivergence | None


@dataclass(frozen=True, slots=True)
class Loss:
    """Requests of a series without an answer, of one kind, and the first one's detail."""

    kind: FailureKind
    count: int
    detail: str


@dataclass(frozen=True, slots=True)
class Series:
    """The same request `n_planned` times, against the most common serial answer.

    `variants`: distinct answers in everything that was generated, the most common first.
    `n_distinct_tokens` and `n_distinct_texts` count by token ids and by text alone; the former is
    None where an answer lacks its ids. `n_not_sent`: requests that the series' end came before.
    `n_drifted`: answers whose logprobs moved while the tokens were the same, by up to
    `max_drift` nats.
    """

    n_planned: int
    n_answered: int
    n_not_sent: int
    variants: tuple[Variant, ...]
    n_distinct_tokens: int | None
    n_distinct_texts: int
    losses: tuple[Loss, ...]
    n_drifted: int
    max_drift: float


@dataclass(frozen=True, slots=True)
class WaveCount:
    """Server counters around requests, and the tokens generated between them, at least."""

    before: Counters
    after: Counters
    n_tokens: int

    @property
    def decodes(self) -> int | None:
        """Forward passes in between; None where the counter is absent or went backwards."""
        first, last = self.before.decode_total, self.after.decode_total
        return None if first is None or last is None or last < first else last - first

    @property
    def peak(self) -> int | None:
        """The least batch size that some pass must have had; None where it is not known."""
        return None if self.decodes is None else batch_peak([self.n_tokens], self.decodes)


@dataclass(frozen=True, slots=True)
class LoadLog:
    """What the server's log of forward passes shows of the load.

    `peak`: the most requests in one matrix product. `fault`: why the log is no witness; the peak is
    then None.
    """

    peak: int | None
    fault: str | None


NO_LOG = LoadLog(None, "the load was not run")


def read_load_log(tally: DecodeTally, trials: Sequence[Trial], load: WaveCount) -> LoadLog:
    """Matches the log of the load with its trials and with the server's counter."""
    matched = tally.match([sent_of(trial) for trial in trials], load.decodes)
    return LoadLog(None, matched) if isinstance(matched, str) else LoadLog(tally.peak, None)


@dataclass(frozen=True, slots=True)
class ProbeOverlap:
    """What proves that the concurrent requests shared forward passes.

    `client_depth`: most requests in flight at once. `n_tokens` and `n_decodes`: generated tokens,
    and the forward passes that they took. `slot_peak`: most slots seen busy. `warmup_peak`: the
    batch size that the warm-up wave proves. `log`: what the server's log shows. `tested_n`: the
    largest batch that is proved.
    """

    client_depth: int
    n_tokens: int
    n_decodes: int | None
    slot_peak: int | None
    warmup_peak: int | None
    log: LoadLog
    tested_n: int
    proved: bool


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """What a probe recorded: trials in the order of their answers (`key.occurrence` counts the
    requests of a series, `scored` is set on answered ones), and why a series ended early."""

    parallel: int
    n_serial: int
    n_concurrent: int
    serial: tuple[Trial, ...]
    concurrent: tuple[Trial, ...]
    warmup: WaveCount
    load: WaveCount
    slots: SlotSamples | None
    log: LoadLog = NO_LOG
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A probe's outcome; `reasons` lists everything that stands against SAME."""

    outcome: ProbeOutcome
    reasons: tuple[str, ...]
    parallel: int
    serial: Series
    concurrent: Series
    overlap: ProbeOverlap


def judge_probe(run: ProbeRun) -> ProbeResult:
    """Works out the result. Whatever is unknown counts against SAME."""
    reference = _most_common(run.serial)
    serial = _series(run.serial, run.n_serial, reference)
    concurrent = _series(run.concurrent, run.n_concurrent, reference)
    overlap = _overlap(run)
    differing = sum(v.count for v in concurrent.variants if v.differs_in)
    reasons = []
    if differing and reference is not None:
        reasons.append(
            f"{differing} of {concurrent.n_answered} answers at once are not the serial one"
        )
    if len(serial.variants) > 1:
        reasons.append(f"the serial answers differ too: {len(serial.variants)} distinct")
    reasons += _missing(run, serial, concurrent, overlap)
    if len(serial.variants) > 1:
        outcome = ProbeOutcome.UNSTABLE
    elif differing and reference is not None:
        outcome = ProbeOutcome.DIFFERENT
    else:
        outcome = ProbeOutcome.UNPROVED if reasons else ProbeOutcome.SAME
    return ProbeResult(outcome, tuple(reasons), run.parallel, serial, concurrent, overlap)


def _missing(run: ProbeRun, serial: Series, concurrent: Series, overlap: ProbeOverlap) -> list[str]:
    """What a statement would need and the run does not have."""
    found = [] if run.ended is None else [run.ended]
    for name, series in (("serial", serial), ("concurrent", concurrent)):
        lost = series.n_planned - series.n_answered
        if lost:
            kinds = [f"{loss.count} {loss.kind.value}" for loss in series.losses]
            kinds += [f"{series.n_not_sent} not sent"] if series.n_not_sent else []
            found.append(f"{lost} {name} requests lost: {', '.join(kinds)}")
    if not overlap.proved:
        found.append(
            f"overlap not proved: {overlap.client_depth} in flight at once, a batch of "
            f"{overlap.tested_n} proved, {run.parallel} needed"
        )
    answers = [t.result for t in (*run.serial, *run.concurrent) if isinstance(t.result, Completion)]
    if any(answer.cache_n for answer in answers):
        found.append("the server took part of a prompt from its cache")
    elif any(answer.cache_n is None for answer in answers):
        found.append("the server does not say whether it used its prompt cache")
    if any(answer.draft_n for answer in answers):
        found.append("the server speculates, so its forward passes prove nothing")
    if any(not answer.completion_tokens for answer in answers):
        found.append("an answer has no token, or the server does not say how many")
    if serial.n_distinct_tokens is None or concurrent.n_distinct_tokens is None:
        found.append("an answer lacks token ids, so equality is of the texts alone")
    return found


def _answered(trials: Sequence[Trial]) -> list[Trial]:
    ordered = sorted(trials, key=lambda trial: trial.key.occurrence)
    return [trial for trial in ordered if isinstance(trial.result, Completion)]


def _groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Trials by distinct answer, the most common first, ties in the order of dispatch."""
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in _answered(trials):
        groups.setdefault(_generated(trial.result), []).append(trial)
    return sorted(groups.values(), key=len, reverse=True)


def _most_common(trials: Sequence[Trial]) -> Trial | None:
    groups = _groups(trials)
    return groups[0][0] if groups else None


def _series(trials: Sequence[Trial], n_planned: int, reference: Trial | None) -> Series:
    answered = _answered(trials)
    answers = [t.result for t in answered if isinstance(t.result, Completion)]
    diffs = [compare_trials(reference, t) for t in answered] if reference is not None else []
    moves = [d.drift.max_abs for d in diffs if d.drift is not None and d.drift.n_moved]
    known = all(compare_trials(t, t).tokens_known for t in answered)
    return Series(
        n_planned=n_planned,
        n_answered=len(answered),
        n_not_sent=n_planned - len(trials),
        variants=tuple(_variant(group, reference) for group in _groups(trials)),
        n_distinct_tokens=len({a.token_ids for a in answers}) if known else None,
        n_distinct_texts=len({a.text for a in answers}),
        losses=_losses([t.result for t in trials if isinstance(t.result, Failure)]),
        n_drifted=len(moves),
        max_drift=max(moves, default=0.0),
    )


def _variant(group: Sequence[Trial], reference: Trial | None) -> Variant:
    first = group[0]
    assert isinstance(first.result, Completion)
    diff: TrialDiff | None = None if reference is None else compare_trials(reference, first)
    return Variant(
        count=len(group),
        lanes=tuple(sorted({trial.lane for trial in group})),
        first_request=first.key.occurrence,
        text=first.result.text,
        n_tokens=first.result.completion_tokens,
        differs_in=() if diff is None else diff.token_fields,
        first=None if diff is None else diff.first,
    )


def _losses(failures: Sequence[Failure]) -> tuple[Loss, ...]:
    counts = Counter(failure.kind for failure in failures)
    details = {failure.kind: failure.detail for failure in reversed(failures)}
    return tuple(Loss(kind, n, details[kind]) for kind, n in counts.most_common())


def _overlap(run: ProbeRun) -> ProbeOverlap:
    """The rule of gate F1: a batch of N is proved by the log of forward passes, by the tokens of
    the load against their number, or by a wave of warm-up requests together with N slots seen busy
    under the load."""
    spans = [(trial.dispatch_ts, trial.complete_ts) for trial in run.concurrent]
    slot_peak = run.slots.peak_busy if run.slots is not None and run.slots.n_samples else None
    peak, warmup = run.load.peak, run.warmup.peak
    tested = max(peak or 0, run.log.peak or 0)
    if warmup is not None and slot_peak is not None and tested >= 2:
        tested = max(tested, min(warmup, slot_peak))
    depth = max_depth(spans)
    return ProbeOverlap(
        client_depth=depth,
        n_tokens=run.load.n_tokens,
        n_decodes=run.load.decodes,
        slot_peak=slot_peak,
        warmup_peak=warmup,
        log=run.log,
        tested_n=min(tested, run.parallel),
        proved=depth >= 2 and tested >= run.parallel,
    )
