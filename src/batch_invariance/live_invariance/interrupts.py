"""Signals become one exception in the main thread, raised only where nothing is half done.

A handler that raises wherever the main thread happens to be can strike while a lock is being
taken, and the lock then stays taken. While a run owns lanes and a server, a signal is therefore
kept and raised at the next safe place: inside `wait_for`, or at `check`.
"""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from batch_invariance.errors import Interrupted

T = TypeVar("T")
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _State:
    """Signals belong to the process, and so does this."""

    received: int | None = None
    deferred = False


_state = _State()


def _handle(signum: int, frame: FrameType | None) -> None:
    if _state.received is not None:
        # Ending at once leaves nothing behind: the guardian sees the driver go and brings the
        # server down.
        os._exit(128 + signum)
    _state.received = signum
    if not _state.deferred:
        raise Interrupted(signum)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it the first signal raises `Interrupted`; a second one ends the process at once.

    A signal that the caller has this process ignore, as `nohup` does, stays ignored.
    """
    heeded = [signum for signum in HANDLED if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, _handle) for signum in heeded}
    _state.received = None
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Within it a signal is raised only by `check` and `wait_for`."""
    _state.deferred = True
    try:
        yield
    finally:
        _state.deferred = False


def check() -> None:
    """Raises the signal that has come in, if one has."""
    if _state.received is not None:
        raise Interrupted(_state.received)


def wait_for(source: queue.SimpleQueue[T]) -> T:
    """The next entry of `source`; a signal ends the wait at once.

    The wait is one call into C that holds no lock of Python's, so raising there is safe.
    """
    held = _state.deferred
    _state.deferred = False
    try:
        check()
        return source.get()
    finally:
        _state.deferred = held
