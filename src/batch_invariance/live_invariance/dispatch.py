"""Runs a schedule: the only place that owns request threads.

One thread per lane, and lane i pins slot i. Answers come back to the caller's thread, which parses
and records them while the server computes the next ones.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from batch_invariance.invariance_diff.model import FailureKind
from batch_invariance.invariance_diff.request import Body
from batch_invariance.invariance_diff.schedule import DispatchKind, Entry, PassSchedule
from batch_invariance.live_invariance.http import Client, Exchange
from batch_invariance.live_invariance.interrupts import check, wait_for
from batch_invariance.live_invariance.telemetry import read_busy_slots

CHAT_PATH = "/v1/chat/completions"
IDLE_POLL_S = 0.1

BodyFor = Callable[[Entry], Body]


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of a schedule with its lane, the body that was sent, and what came back."""

    entry: Entry
    lane: int
    body: Body
    exchange: Exchange


class LaneLost(Exception):
    """A timed-out request still occupies its slot: no further trial on it would be clean."""

    def __init__(self, lane: int) -> None:
        super().__init__(f"slot {lane} is still busy after its request timed out")
        self.lane = lane


class Dispatcher:
    """Sends requests to one server of `lanes` slots; a context manager.

    `dead` is set when the server dies: nothing is sent after that. `is_idle` says of a lane whether
    the server has let go of it, by default from its slots. `halt` may be called to stop
    before the next request. The lanes are daemons: one that still waits for an answer ends with
    its server and never holds the process up.
    """

    def __init__(
        self,
        client: Client,
        lanes: int,
        timeout_s: float,
        dead: threading.Event,
        is_idle: Callable[[int], bool] | None = None,
    ) -> None:
        self._client = client
        self._is_idle = is_idle or self._slot_is_idle
        self._timeout_s = timeout_s
        self._dead = dead
        self._halted = threading.Event()
        self._inboxes = [queue.SimpleQueue[Callable[[], None] | None]() for _ in range(lanes)]
        for number, inbox in enumerate(self._inboxes):
            name = f"lane-{number}"
            threading.Thread(target=_work, args=(inbox,), name=name, daemon=True).start()

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.halt()
        for inbox in self._inboxes:
            inbox.put(None)

    def halt(self) -> None:
        """Send nothing more."""
        self._halted.set()

    @property
    def stopped(self) -> bool:
        """Whether nothing more will be sent."""
        return self._halted.is_set() or self._dead.is_set()

    def run(self, schedule: PassSchedule, body_for: BodyFor) -> Iterator[Answered | int]:
        """Answers as they come in; after each wave its number, once all of it is answered.

        Ends early, without a word, when the server dies or after `halt`. Raises LaneLost when a
        timed-out request does not let go of its slot.
        """
        if schedule.kind is DispatchKind.SATURATE:
            yield from self._saturate(list(schedule.entries()), schedule.lanes, body_for)
            return
        groups: dict[int, list[Entry]] = {}
        for position, entry in enumerate(schedule.entries()):
            groups.setdefault(position if entry.wave is None else entry.wave, []).append(entry)
        for number, group in groups.items():
            if self.stopped:
                return
            yield from self._release(group, body_for)
            if schedule.kind is DispatchKind.WAVES and not self._dead.is_set():
                yield number

    def _release(self, group: Sequence[Entry], body_for: BodyFor) -> Iterator[Answered]:
        """Sends a group at one moment and yields each answer as it comes."""
        ready = [(entry, entry.lane or 0, body_for(entry)) for entry in group]
        barrier = threading.Barrier(len(ready))
        done: queue.SimpleQueue[Answered | Exception] = queue.SimpleQueue()

        def send(entry: Entry, lane: int, body: Body) -> None:
            try:
                barrier.wait()
                self._wait(entry)
                done.put(self._post(entry, lane, body))
            except Exception as error:
                done.put(error)

        for request in ready:
            self._inboxes[request[1]].put(partial(send, *request))
        for _ in ready:
            answer = wait_for(done)
            if isinstance(answer, Exception):
                raise answer
            yield answer
            self._settle(answer)

    def _saturate(self, entries: list[Entry], lanes: int, body_for: BodyFor) -> Iterator[Answered]:
        """Keeps every lane busy; each takes the next entry as it falls free."""
        waiting = deque(entries)
        done: queue.SimpleQueue[Answered | Exception | None] = queue.SimpleQueue()

        def drain(lane: int) -> None:
            try:
                while not self.stopped:
                    try:
                        entry = waiting.popleft()
                    except IndexError:
                        break
                    self._wait(entry)
                    answer = self._post(entry, lane, body_for(entry))
                    done.put(answer)
                    self._settle(answer)
            except Exception as error:
                done.put(error)
            finally:
                done.put(None)

        for lane in range(lanes):
            self._inboxes[lane].put(partial(drain, lane))
        working, trouble = lanes, None
        while working:
            answer = wait_for(done)
            if answer is None:
                working -= 1
            elif isinstance(answer, Exception):
                trouble = answer
                self.halt()
            else:
                yield answer
        if trouble is not None:
            raise trouble

    def _wait(self, entry: Entry) -> None:
        """Lets the request's delay pass, or the server die."""
        if entry.delay_ms:
            self._dead.wait(entry.delay_ms / 1000)

    def _post(self, entry: Entry, lane: int, body: Body) -> Answered:
        exchange = self._client.post(CHAT_PATH, body.for_slot(lane), self._timeout_s)
        return Answered(entry, lane, body, exchange)

    def _settle(self, answer: Answered) -> None:
        """After a time-out, waits until the slot is idle again, as long as for an answer."""
        failure = answer.exchange.failure
        if failure is None or failure.kind is not FailureKind.TIMEOUT:
            return
        deadline = time.monotonic() + self._timeout_s
        while True:
            check()
            if self._dead.is_set():
                return
            if self._is_idle(answer.lane):
                return
            if time.monotonic() > deadline:
                raise LaneLost(answer.lane)
            self._dead.wait(IDLE_POLL_S)

    def _slot_is_idle(self, lane: int) -> bool:
        busy = read_busy_slots(self._client)
        return busy is not None and lane not in busy


def _work(inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """A lane's thread: one job after the other until there are no more."""
    while (job := inbox.get()) is not None:
        job()
