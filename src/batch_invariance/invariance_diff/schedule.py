"""Schedules: which item goes when, in which lane, with which companions.

A schedule is plain data over item indexes, apart from the work-set, with a digest of its own. One
`PassSchedule` is a list of groups:

- `serial`: every group holds one item; the next starts when the last has ended. The lane is the
  group's position modulo `lanes`, so that a serial pass uses every slot.
- `waves`: every group holds at most `lanes` items that are released together and all awaited; an
  item's lane is its position in the group.
- `saturate`: one group; `lanes` requests are always in flight and whichever lane is free takes the
  next item, so the lane is known only from the trial.

In the first two kinds `pinned` may name a lane for each request instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from batch_invariance.errors import ScheduleError
from batch_invariance.invariance_diff.digest import digest_of, seeded_order
from batch_invariance.invariance_diff.rules import MAX_SLOTS

MAX_DELAY_MS = 600_000


class DispatchKind(str, Enum):
    """How the requests of a pass are released."""

    SERIAL = "serial"
    WAVES = "waves"
    SATURATE = "saturate"


class Ordering(str, Enum):
    """Where a pass's order comes from: a seed, the answer lengths of arm A, or the file's order."""

    SEEDED = "seeded"
    BY_LENGTH = "by_length"
    LISTED = "listed"


@dataclass(frozen=True, slots=True)
class Entry:
    """One planned request. `lane` is None where the first free lane takes it; `delay_ms` is the
    time from its group's release, or from its lane's falling free, to its own."""

    item: int
    occurrence: int
    lane: int | None
    wave: int | None
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class PassSchedule:
    """One pass: its kind, the number of lanes, the groups of item indexes, and for each request in
    order of dispatch a lane and a delay, where they are not the kind's own."""

    kind: DispatchKind
    lanes: int
    groups: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...] | None = None
    delays_ms: tuple[int, ...] | None = None

    def entries(self) -> Iterator[Entry]:
        """The planned requests in order of dispatch."""
        seen: dict[int, int] = {}
        number = 0
        for position, group in enumerate(self.groups):
            for place, item in enumerate(group):
                occurrence = seen.get(item, 0)
                seen[item] = occurrence + 1
                lane: int | None = None
                if self.kind is not DispatchKind.SATURATE:
                    own = place if self.kind is DispatchKind.WAVES else position % self.lanes
                    lane = self.pinned[number] if self.pinned else own
                wave = position if self.kind is DispatchKind.WAVES else None
                delay = self.delays_ms[number] if self.delays_ms else 0
                yield Entry(item, occurrence, lane, wave, delay)
                number += 1

    @property
    def n_requests(self) -> int:
        """How many requests the pass sends."""
        return sum(len(group) for group in self.groups)

    def to_json(self) -> dict[str, object]:
        """The JSON form, which `digest` is taken over."""
        return {
            "kind": self.kind.value,
            "lanes": self.lanes,
            "groups": [list(group) for group in self.groups],
            "pinned": None if self.pinned is None else list(self.pinned),
            "delays_ms": None if self.delays_ms is None else list(self.delays_ms),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form."""
        return digest_of(self.to_json())


def serial_pass(n_items: int, lanes: int) -> PassSchedule:
    """All items in their own order, one at a time, over `lanes` slots.

    With fewer items than lanes the first items go out again, so that every slot is exercised.
    """
    return PassSchedule(
        DispatchKind.SERIAL, lanes, tuple((i % n_items,) for i in range(max(n_items, lanes)))
    )


def pinned_pass(pairs: Sequence[tuple[int, int]], lanes: int) -> PassSchedule:
    """The given (item, lane) pairs one at a time: the confirm trials."""
    return PassSchedule(
        DispatchKind.SERIAL,
        lanes,
        tuple((item,) for item, _ in pairs),
        tuple(lane for _, lane in pairs),
    )


def wave_pass(order: Sequence[int], lanes: int) -> PassSchedule:
    """Waves of `lanes` along `order`; a short last wave is filled from the order's beginning."""
    waves = []
    for start in range(0, len(order), lanes):
        waves.append(tuple(order[(start + i) % len(order)] for i in range(lanes)))
    return PassSchedule(DispatchKind.WAVES, lanes, tuple(waves))


def saturated_pass(order: Sequence[int], lanes: int) -> PassSchedule:
    """`lanes` requests always in flight along `order`."""
    return PassSchedule(DispatchKind.SATURATE, lanes, (tuple(order),))


def pass_order(n_items: int, seed: int, pass_index: int) -> list[int]:
    """The seeded order of one concurrent pass; passes differ, so companions differ."""
    return seeded_order(n_items, f"batch-invariance/order/{seed}/{pass_index}")


def order_by_length(lengths: Sequence[int], tie_break: Sequence[int]) -> list[int]:
    """Items sorted by answer length, equal lengths in the order of `tie_break`.

    Waves of equal length finish together, which is what lets a decode counter prove that all N
    were in one batch.
    """
    rank = {item: place for place, item in enumerate(tie_break)}
    return sorted(range(len(lengths)), key=lambda item: (lengths[item], rank[item]))


def concurrent_kind(pass_index: int) -> DispatchKind:
    """Built-in alternation of arm C: waves on even passes, saturation on odd ones."""
    return DispatchKind.WAVES if pass_index % 2 == 0 else DispatchKind.SATURATE


def concurrent_pass(order: Sequence[int], lanes: int, kind: DispatchKind) -> PassSchedule:
    """A pass of arm C along `order`.

    Raises ScheduleError for a serial kind.
    """
    if kind is DispatchKind.WAVES:
        return wave_pass(order, lanes)
    if kind is DispatchKind.SATURATE:
        return saturated_pass(order, lanes)
    raise ScheduleError("schedule", ["a pass of arm C is dispatched in waves or saturated"])


def check_schedule(schedule: PassSchedule, n_items: int, what: str) -> None:
    """Raises ScheduleError naming what does not fit the work-set or the lanes."""
    lanes = schedule.lanes
    issues = []
    if not 1 <= lanes <= MAX_SLOTS:
        raise ScheduleError(what, [f"{lanes} lanes, not 1 to {MAX_SLOTS}"])
    for group in schedule.groups:
        issues += [f"item {i} is not in the work-set" for i in group if not 0 <= i < n_items]
        if not group:
            issues.append("a group is empty")
        if schedule.kind is DispatchKind.WAVES and len(group) > lanes:
            issues.append(f"a wave of {len(group)} does not fit {lanes} lanes")
        if schedule.kind is DispatchKind.SERIAL and len(group) != 1:
            issues.append("a serial group holds one item")
    issues += _request_faults(schedule)
    if issues:
        raise ScheduleError(what, issues)


def _request_faults(schedule: PassSchedule) -> list[str]:
    """What is wrong with the lanes and delays given to single requests."""
    n, lanes, issues = schedule.n_requests, schedule.lanes, []
    pinned, delays = schedule.pinned, schedule.delays_ms
    if pinned is not None:
        if schedule.kind is DispatchKind.SATURATE:
            issues.append("a saturated pass has no pinned lanes: any free one takes a request")
        elif len(pinned) != n:
            issues.append(f"{len(pinned)} pinned lanes for {n} requests")
        issues += [f"lane {lane} does not exist" for lane in pinned if not 0 <= lane < lanes]
        start = 0
        for group in schedule.groups:
            used = pinned[start : start + len(group)]
            if len(set(used)) != len(used):
                issues.append("a lane is pinned twice in one wave")
            start += len(group)
    if delays is not None:
        if len(delays) != n:
            issues.append(f"{len(delays)} delays for {n} requests")
        wrong = [d for d in delays if not 0 <= d <= MAX_DELAY_MS]
        issues += [f"a delay of {d} ms is not 0 to {MAX_DELAY_MS}" for d in wrong[:3]]
    return issues
