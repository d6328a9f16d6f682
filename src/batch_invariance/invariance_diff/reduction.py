"""Making a case small: what is left out, in which order, and what is tried in vain no more.

The order: companions, schedule, slots, generated tokens, whole messages, parts of texts, and
generated tokens once more, because a shorter prompt may part earlier. Whether a candidate still
shows the divergence is asked of a `Probe`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from batch_invariance.invariance_diff.case import CaseShape, Seen
from batch_invariance.invariance_diff.ddmin import Indexes, ddmin, smallest
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.schedule import DispatchKind

MOST_TEXT_PARTS = 4
"""A text is cut into halves, then quarters: finer cuts cost more attempts than they save words."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a candidate's attempts showed: whether it is kept, and the ways in which it differed."""

    kept: bool
    seen: tuple[Seen, ...] = ()


class Probe(Protocol):
    """Tries candidates. It may raise to end the search: the best so far stands."""

    def stage(self, name: str, n_left: int) -> None:
        """A part of the search begins; about `n_left` candidates are left in all."""

    def shows(self, shape: CaseShape) -> Shown:
        """Whether this candidate still shows the divergence."""


class Reducer:
    """The search. `best` is the smallest shape that was kept so far, at any moment."""

    def __init__(self, start: CaseShape, seen: Sequence[Seen], probe: Probe, serial: bool) -> None:
        """`seen`: how the start differs. `serial`: whether requests one after the other may show
        it, as where slots alone change answers."""
        self.best = start
        self.n_kept = 0
        self._seen = tuple(seen)
        self._probe = probe
        self._serial = serial
        self._refused: set[CaseShape] = set()

    def run(self) -> CaseShape:
        """Runs all stages and returns the best shape."""
        stages = self._stages()
        for i, (name, stage, _) in enumerate(stages):
            left = sum(cost() for _, _, cost in stages[i:])
            self._probe.stage(name, left)
            stage()
        return self.best

    def _stages(self) -> list[tuple[str, Callable[[], None], Callable[[], int]]]:
        return [
            ("companions", self._companions, lambda: 2 * len(self.best.companions) + 1),
            ("schedule", self._schedule, lambda: 3),
            ("slots", self._slots, lambda: 2),
            ("generated tokens", self.fewer_tokens, self._token_cost),
            ("messages", self._messages, self._message_cost),
            ("texts", self._texts, self._text_cost),
            ("generated tokens", self.fewer_tokens, self._token_cost),
            ("companions", self._companions, lambda: len(self.best.companions)),
        ]

    def attempt(self, shape: CaseShape) -> bool:
        """Tries one candidate, which becomes the best where it is kept; none is tried twice."""
        if shape == self.best:
            return True
        if shape in self._refused:
            return False
        shown = self._probe.shows(shape)
        if shown.kept:
            self.best, self._seen = shape, shown.seen or self._seen
            self.n_kept += 1
        else:
            self._refused.add(shape)
        return shown.kept

    def _companions(self) -> None:
        whole = self.best
        companions = whole.companions
        ddmin(len(companions), lambda kept: self.attempt(whole.only(_pick(companions, kept))))

    def _schedule(self) -> None:
        for simpler in simpler_schedules(self.best, self._serial):
            if self.attempt(simpler):
                break
        self.attempt(packed_lanes(self.best))

    def _slots(self) -> None:
        needed = lanes_needed(self.best)
        for lanes in (needed, 2 * needed):
            if lanes < self.best.lanes and self.attempt(replace(self.best, lanes=lanes)):
                break

    def fewer_tokens(self) -> None:
        """The target's to where it parts, or by bisection from there; each companion's likewise."""
        target = self.best.target
        indexes = [one.token_index for one in self._seen if one.token_index is not None]
        low, limit = min(indexes, default=0) + 1, _limit(self.best, target)
        if low < limit and not self.attempt(_limited(self.best, target, low)):
            self._fewest(target, low + 1)
        for companion in self.best.companions:
            self._fewest(companion, 1)

    def _fewest(self, index: int, low: int) -> None:
        limit = _limit(self.best, index)
        smallest(low, limit, lambda n: self.attempt(_limited(self.best, index, n)))

    def _order(self) -> tuple[int, ...]:
        """Companions first: what they say seldom matters."""
        return (*self.best.companions, self.best.target)

    def _messages(self) -> None:
        for index in self._order():
            shape, item = self.best, self.best.requests[index].item
            if len(item.messages) > 1:
                self._fewer_messages(shape, index, item)

    def _fewer_messages(self, shape: CaseShape, index: int, item: Item) -> None:
        def shows(kept: Indexes) -> bool:
            messages = tuple(item.messages[i] for i in kept)
            return self.attempt(shape.with_item(index, replace(item, messages=messages)))

        ddmin(len(item.messages), shows, least=1)

    def _texts(self) -> None:
        for index in self._order():
            for number in range(len(self.best.requests[index].item.messages)):
                self._text(index, number)

    def _text(self, index: int, number: int) -> None:
        shape, item = self.best, self.best.requests[index].item
        parts = pieces(item.messages[number].content)

        def shows(kept: Indexes) -> bool:
            text = "".join(parts[i] for i in kept)
            return self.attempt(shape.with_item(index, _with_text(item, number, text)))

        ddmin(len(parts), shows, most_parts=MOST_TEXT_PARTS, least=1)

    def _token_cost(self) -> int:
        limits = [_limit(self.best, i) for i in self.best.companions]
        return 1 + sum(math.ceil(math.log2(limit)) for limit in limits if limit > 1)

    def _message_cost(self) -> int:
        counts = [len(request.item.messages) for request in self.best.requests]
        return sum(2 * n for n in counts if n > 1)

    def _text_cost(self) -> int:
        texts = [m.content for request in self.best.requests for m in request.item.messages]
        return sum(2 * MOST_TEXT_PARTS for text in texts if len(text) > 1)


def simpler_schedules(shape: CaseShape, serial: bool) -> list[CaseShape]:
    """Shapes that send the same requests in a simpler way, the simplest first."""
    n = len(shape.requests)
    found = []
    if serial and shape.kind is not DispatchKind.SERIAL:
        found.append(_spread(shape, DispatchKind.SERIAL, 1))
    if n <= shape.lanes and shape.kind is not DispatchKind.SERIAL:
        found.append(_spread(shape, DispatchKind.WAVES, n))
    if shape.kind is DispatchKind.SATURATE:
        found.append(_spread(shape, DispatchKind.WAVES, shape.lanes))
    if any(request.delay_ms for request in shape.requests):
        calm = tuple(replace(request, delay_ms=0) for request in shape.requests)
        found.append(replace(shape, requests=calm))
    return [simpler for simpler in found if simpler != shape]


def _spread(shape: CaseShape, kind: DispatchKind, together: int) -> CaseShape:
    """The requests in their order, `together` of them in each wave, on the lanes that they have
    where those are known and free."""
    requests = []
    for start in range(0, len(shape.requests), together):
        group = shape.requests[start : start + together]
        lanes = [request.lane for request in group]
        own = None not in lanes and len(set(lanes)) == len(lanes)
        for place, request in enumerate(group):
            lane = request.lane if own else place
            requests.append(replace(request, wave=start // together, lane=lane, delay_ms=0))
    return replace(shape, kind=kind, requests=tuple(requests))


def packed_lanes(shape: CaseShape) -> CaseShape:
    """The shape on the first slots, in the order of the lanes that it uses, its waves numbered
    without gaps."""
    used = sorted({r.lane for r in shape.requests if r.lane is not None})
    lanes = {lane: place for place, lane in enumerate(used)}
    waves = {w: place for place, w in enumerate(sorted({r.wave for r in shape.requests}))}
    requests = tuple(
        replace(r, lane=None if r.lane is None else lanes[r.lane], wave=waves[r.wave])
        for r in shape.requests
    )
    return replace(shape, requests=requests)


def lanes_needed(shape: CaseShape) -> int:
    """The fewest slots that the schedule can run on; 2 where one slot would be the reference."""
    used = [r.lane for r in shape.requests if r.lane is not None]
    return max(2, *(lane + 1 for lane in used)) if used else 2


def pieces(text: str) -> list[str]:
    """A text cut so that any selection of the pieces is a text: words with the space before them,
    or characters where there is but one word."""
    words = re.findall(r"\s*\S+|\s+$", text)
    return words if len(words) > 1 else list(text)


def _pick(indexes: Indexes, kept: Indexes) -> Indexes:
    return tuple(indexes[i] for i in kept)


def _limit(shape: CaseShape, index: int) -> int:
    limit = shape.requests[index].item.max_tokens
    assert limit is not None
    return limit


def _limited(shape: CaseShape, index: int, max_tokens: int) -> CaseShape:
    item = shape.requests[index].item
    return shape.with_item(index, replace(item, max_tokens=max_tokens))


def _with_text(item: Item, number: int, text: str) -> Item:
    messages = list(item.messages)
    messages[number] = Message(messages[number].role, text)
    return replace(item, messages=tuple(messages))
