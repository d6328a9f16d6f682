"""Runs a schedule: the only place that owns request threads.

One thread per lane, and lane i pins slot i. Answers come back to the caller's thread, which parses
and records them while the server computes the next ones.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from batch_invariance.invariance_diff.model import FailureKind
from batch_invariance.invariance_diff.schedule import DispatchKind, Entry, PassSchedule
from batch_invariance.live_invariance.http import Client, Exchange
from batch_invariance.live_invariance.telemetry import read_busy_slots

CHAT_PATH = "/v1/chat/completions"
IDLE_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of a schedule with its lane and what came back."""

    entry: Entry
    lane: int
    exchange: Exchange


class LaneLost(Exception):
    """A timed-out request still occupies its slot: no further trial on it would be clean."""

    def __init__(self, lane: int) -> None:
        super().__init__(f"slot {lane} is still busy after its request timed out")
        self.lane = lane


class Dispatcher:
    """Sends requests to one server of `lanes` slots; a context manager.

    `dead` is set when the server dies: nothing is sent after that. `halt` may be called to stop
    before the next request.
    """

    def __init__(self, client: Client, lanes: int, timeout_s: float, dead: threading.Event) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._dead = dead
        self._halted = threading.Event()
        self._barrier: threading.Barrier | None = None
        self._pool = ThreadPoolExecutor(max_workers=lanes, thread_name_prefix="lane")

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.halt()
        if self._barrier is not None:
            self._barrier.abort()
        # After an error the lanes may still wait for answers; they end with the server, which
        # is brought down next.
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def halt(self) -> None:
        """Send nothing more."""
        self._halted.set()

    @property
    def stopped(self) -> bool:
        """Whether nothing more will be sent."""
        return self._halted.is_set() or self._dead.is_set()

    def run(
        self, schedule: PassSchedule, body_for: Callable[[Entry, int], bytes]
    ) -> Iterator[Answered | int]:
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

    def _post(self, entry: Entry, lane: int, body: bytes) -> Answered:
        return Answered(entry, lane, self._client.post(CHAT_PATH, body, self._timeout_s))

    def _release(
        self, group: Sequence[Entry], body_for: Callable[[Entry, int], bytes]
    ) -> Iterator[Answered]:
        """Sends a group at one moment and yields each answer as it comes."""
        planned = [(e, e.lane if e.lane is not None else i) for i, e in enumerate(group)]
        ready = [(entry, lane, body_for(entry, lane)) for entry, lane in planned]
        if len(ready) == 1:
            answers: Iterator[Answered] = iter([self._post(*ready[0])])
        else:
            barrier = self._barrier = threading.Barrier(len(ready))

            def released(entry: Entry, lane: int, body: bytes) -> Answered:
                barrier.wait()
                return self._post(entry, lane, body)

            futures = [self._pool.submit(released, *one) for one in ready]
            answers = (future.result() for future in as_completed(futures))
        for answer in answers:
            yield answer
            self._settle(answer)

    def _saturate(
        self, entries: list[Entry], lanes: int, body_for: Callable[[Entry, int], bytes]
    ) -> Iterator[Answered]:
        """Keeps every lane busy; each takes the next entry as it falls free."""
        waiting = deque(entries)
        done: queue.SimpleQueue[Answered | Exception | None] = queue.SimpleQueue()

        def work(lane: int) -> None:
            try:
                while not self.stopped:
                    try:
                        entry = waiting.popleft()
                    except IndexError:
                        break
                    answer = self._post(entry, lane, body_for(entry, lane))
                    done.put(answer)
                    self._settle(answer)
            except Exception as error:
                done.put(error)
            finally:
                done.put(None)

        for lane in range(lanes):
            self._pool.submit(work, lane)
        working, trouble = lanes, None
        while working:
            answer = done.get()
            if answer is None:
                working -= 1
            elif isinstance(answer, Exception):
                trouble = answer
                self.halt()
            else:
                yield answer
        if trouble is not None:
            raise trouble

    def _settle(self, answer: Answered) -> None:
        """After a time-out, waits until the slot is idle again."""
        failure = answer.exchange.failure
        if failure is None or failure.kind is not FailureKind.TIMEOUT:
            return
        polls = max(1, int(self._timeout_s / IDLE_POLL_S))
        for _ in range(polls):
            if self._dead.is_set():
                return
            busy = read_busy_slots(self._client)
            if busy is not None and answer.lane not in busy:
                return
            self._dead.wait(IDLE_POLL_S)
        raise LaneLost(answer.lane)
