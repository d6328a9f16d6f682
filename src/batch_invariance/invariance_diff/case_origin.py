"""From evidence to the shapes that a divergence of one item may be reproduced with.

Arm C's trials are compared with arm A's again. An item's first divergences in waves give the
requests of that wave; one in a saturated pass gives the requests that were in flight beside it; and
last comes the whole pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from batch_invariance.errors import EvidenceError, UsageError
from batch_invariance.invariance_diff.case import (
    CaseRequest,
    CaseShape,
    DivergenceKind,
    Reference,
    Seen,
)
from batch_invariance.invariance_diff.case_judge import wanted_of
from batch_invariance.invariance_diff.model import Arm, Item, Trial
from batch_invariance.invariance_diff.records import Header, PassStart, Record
from batch_invariance.invariance_diff.request import max_tokens_of
from batch_invariance.invariance_diff.schedule import DispatchKind, Entry, PassSchedule

MOST_WAVES = 3
KINDS = (DivergenceKind.SCORE, DivergenceKind.TOKEN, DivergenceKind.LOGPROB)
SLOT_CLASS = "slot_allocation"


@dataclass(frozen=True, slots=True)
class Start:
    """One diverging trial and what may show it again; `what` says where the shape comes from."""

    what: str
    seen: Seen
    shape: CaseShape


@dataclass(frozen=True, slots=True)
class ItemStarts:
    """An item that diverges in arm C: the kind, in how many of its trials, and its starts in the
    order in which to try them."""

    item: Item
    kind: DivergenceKind
    n_trials: int
    n_divergent: int
    starts: tuple[Start, ...]

    @property
    def share(self) -> float:
        """The share of its trials that diverge."""
        return self.n_divergent / self.n_trials

    @property
    def in_waves(self) -> bool:
        """Whether it diverges in a wave."""
        return self.starts[0].shape.kind is DispatchKind.WAVES


class _Tally:
    """What arm C showed of one item, by kind."""

    def __init__(self) -> None:
        self.n_trials = 0
        self.counts: dict[DivergenceKind, int] = {}
        self.waves: dict[DivergenceKind, list[Start]] = {}
        self.beside: dict[DivergenceKind, Start] = {}
        self.whole: dict[DivergenceKind, Start] = {}

    def starts(self, kind: DivergenceKind) -> tuple[Start, ...]:
        """Single waves, then what was in flight beside one, then a whole pass."""
        beside = [self.beside[kind]] if kind in self.beside else []
        return (*self.waves.get(kind, ()), *beside, self.whole[kind])


class _Pass:
    """The open pass of arm C: its trials' times, and those that diverge."""

    def __init__(self, start: PassStart) -> None:
        self.start = start
        self.spans: dict[tuple[int, int], tuple[float, float]] = {}
        self.divergent: list[tuple[Trial, DivergenceKind, Seen]] = []


def find_starts(records: Iterable[Record], kind: DivergenceKind | None = None) -> list[ItemStarts]:
    """Every item that diverges in arm C, in work-set order, as score before tokens before logprobs,
    or as `kind` alone. Logprobs are looked at only where `kind` or the run asks for them.

    Raises EvidenceError where the records do not begin with a header.
    """
    iterator = iter(records)
    header = next(iterator, None)
    if not isinstance(header, Header):
        raise EvidenceError("evidence", ["the file is empty or does not begin with a header"])
    reader = _Reader(header, kind)
    for record in iterator:
        reader.feed(record)
    reader.close()
    return reader.found()


class _Reader:
    def __init__(self, header: Header, kind: DivergenceKind | None) -> None:
        drift = header.plan.logit_drift
        kinds: tuple[DivergenceKind, ...] = KINDS if kind is None else (kind,)
        if kind is None and drift is None:
            kinds = KINDS[:2]
        self._wanted = [wanted_of(one, drift) for one in kinds]
        self._header = header
        self._alone: dict[int, Trial] = {}
        self._tallies: dict[int, _Tally] = {}
        self._open: _Pass | None = None

    def feed(self, record: Record) -> None:
        if isinstance(record, PassStart):
            self.close()
            self._open = _Pass(record) if record.arm is Arm.C else None
        elif isinstance(record, Trial):
            if record.key.arm is Arm.A:
                # A pass that was interrupted runs again whole: its last answer counts.
                self._alone[record.key.item] = record
            elif record.key.arm is Arm.C and self._open is not None:
                self._trial(record, self._open)

    def _trial(self, trial: Trial, opened: _Pass) -> None:
        key = trial.key
        opened.spans[key.item, key.occurrence] = (trial.dispatch_ts, trial.complete_ts)
        alone = self._alone.get(key.item)
        if alone is None:
            return
        self._tallies.setdefault(key.item, _Tally()).n_trials += 1
        seen = ((wanted.kind, wanted.seen(alone, trial)) for wanted in self._wanted)
        first = next(((kind, one) for kind, one in seen if one is not None), None)
        if first is not None:
            opened.divergent.append((trial, *first))

    def close(self) -> None:
        """Turns the divergences of the open pass into starts."""
        opened, self._open = self._open, None
        if opened is None:
            return
        schedule = opened.start.schedule
        for trial, kind, seen in opened.divergent:
            tally = self._tallies[trial.key.item]
            tally.counts[kind] = tally.counts.get(kind, 0) + 1
            if kind not in tally.whole:
                tally.whole[kind] = self._whole(opened, trial, seen)
            if schedule.kind is DispatchKind.WAVES:
                waves = tally.waves.setdefault(kind, [])
                if len(waves) < MOST_WAVES:
                    waves.append(self._wave(opened, trial, seen))
            elif kind not in tally.beside:
                tally.beside[kind] = self._beside(opened, trial, seen)

    def found(self) -> list[ItemStarts]:
        items = []
        for index, tally in sorted(self._tallies.items()):
            kind = next((w.kind for w in self._wanted if w.kind in tally.counts), None)
            if kind is None:
                continue
            item, n_divergent = self._header.workset.items[index], tally.counts[kind]
            items.append(ItemStarts(item, kind, tally.n_trials, n_divergent, tally.starts(kind)))
        return items

    def _wave(self, opened: _Pass, trial: Trial, seen: Seen) -> Start:
        entries = [e for e in opened.start.schedule.entries() if e.wave == trial.wave]
        what = f"wave {trial.wave} of pass {trial.key.pass_index}"
        return Start(what, seen, self._shape(opened.start.schedule, entries, trial, one_wave=True))

    def _beside(self, opened: _Pass, trial: Trial, seen: Seen) -> Start:
        """The requests that were in flight while the trial was."""
        begin, end = trial.dispatch_ts, trial.complete_ts
        beside = {key for key, (a, b) in opened.spans.items() if a < end and b > begin}
        entries = [e for e in opened.start.schedule.entries() if (e.item, e.occurrence) in beside]
        what = f"requests in flight beside it in pass {trial.key.pass_index}"
        return Start(what, seen, self._shape(opened.start.schedule, entries, trial))

    def _whole(self, opened: _Pass, trial: Trial, seen: Seen) -> Start:
        entries = list(opened.start.schedule.entries())
        what = f"the whole of pass {trial.key.pass_index}"
        return Start(what, seen, self._shape(opened.start.schedule, entries, trial))

    def _shape(
        self,
        schedule: PassSchedule,
        entries: Sequence[Entry],
        trial: Trial,
        one_wave: bool = False,
    ) -> CaseShape:
        items, sampling = self._header.workset.items, self._header.plan.sampling
        requests = []
        target = 0
        for place, entry in enumerate(entries):
            item = items[entry.item]
            if (entry.item, entry.occurrence) == (trial.key.item, trial.key.occurrence):
                target = place
            item = replace(item, max_tokens=max_tokens_of(item, sampling))
            wave = 0 if one_wave else entry.wave or 0
            requests.append(CaseRequest(item, wave, entry.lane, entry.delay_ms))
        return CaseShape(schedule.kind, schedule.lanes, tuple(requests), target)


def choose(found: Sequence[ItemStarts], item_id: str | None) -> ItemStarts:
    """The item that is asked for, else the one that diverges most often: the better kind first, and
    what diverges in a wave before what needs a saturated pass, which takes far longer to try.

    Raises UsageError where there is none.
    """
    if item_id is not None:
        chosen = next((one for one in found if one.item.id == item_id), None)
        if chosen is None:
            ids = ", ".join(one.item.id for one in found[:8]) or "none"
            raise UsageError(f"--item {item_id}: it does not diverge in arm C; these do: {ids}")
        return chosen
    if not found:
        raise UsageError(
            "nothing diverges in arm C of this certificate, so there is nothing to make small"
        )
    return min(found, key=lambda one: (KINDS.index(one.kind), not one.in_waves, -one.share))


def reference_for(divergence_class: str | None) -> Reference:
    """What to compare with: where slots alone change answers, a server of one slot."""
    slots = divergence_class is not None and divergence_class.startswith(SLOT_CLASS)
    return Reference.ONE_SLOT if slots else Reference.SAME_SERVER
