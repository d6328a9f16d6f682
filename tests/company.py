"""Lets the mock's engines of this process wait for what was released together.

What shares a batch then does not hang on how busy the machine is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from unittest.mock import patch

from batch_invariance.invariance_diff.schedule import Entry
from batch_invariance.live_invariance.dispatch import Answered, BodyFor, Dispatcher
from batch_invariance.live_invariance.mock_answer import GenerationRequest
from batch_invariance.live_invariance.mock_engine import Job, MockEngine

LIMIT_S = 0.5
"""The longest wait for a request that never comes."""


class Company:
    """How many requests the dispatchers of this process have released that no engine has seen.

    A server that answers without its engine says `arrived`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._missing = 0
        self._lanes = 0

    def expect(self, n: int, lanes: int) -> None:
        with self._lock:
            self._missing, self._lanes = n, lanes

    def arrived(self) -> None:
        with self._lock:
            self._missing = max(0, self._missing - 1)

    def is_there(self, n_queued: int) -> bool:
        """Whether an idle engine with so many requests need wait for none."""
        return not self._missing or n_queued >= self._lanes


COMPANY = Company()


@contextlib.contextmanager
def gathered() -> Iterator[None]:
    """Within it, every engine waits for its company."""
    release, saturate = Dispatcher._release, Dispatcher._saturate
    start, submit, gather = MockEngine.start, MockEngine.submit, MockEngine._gather

    def counted_release(
        dispatcher: Dispatcher, group: Sequence[Entry], body_for: BodyFor
    ) -> Iterator[Answered]:
        COMPANY.expect(len(group), len(group))
        return release(dispatcher, group, body_for)

    def counted_saturate(
        dispatcher: Dispatcher, entries: list[Entry], lanes: int, body_for: BodyFor
    ) -> Iterator[Answered]:
        COMPANY.expect(len(entries), lanes)
        return saturate(dispatcher, entries, lanes, body_for)

    def start_alone(engine: MockEngine) -> None:
        COMPANY.expect(0, 0)
        start(engine)

    def counted_submit(engine: MockEngine, request: GenerationRequest) -> Job:
        job = submit(engine, request)
        COMPANY.arrived()
        return job

    def gather_all(engine: MockEngine) -> None:
        gather(engine)
        deadline = time.monotonic() + LIMIT_S
        while not engine._stopping.is_set() and time.monotonic() < deadline:
            if COMPANY.is_there(len(engine._queue)):
                return
            engine._changed.wait(0.01)

    with (
        patch.multiple(Dispatcher, _release=counted_release, _saturate=counted_saturate),
        patch.multiple(MockEngine, start=start_alone, submit=counted_submit, _gather=gather_all),
    ):
        yield
