"""Signals become one exception in the main thread, so that every `finally` runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from batch_invariance.errors import Interrupted

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled(BaseException):
    """A signal on its way out of the run.

    No `Exception`: code that handles faults, such as a scorer's caller or the standard library
    while it starts a thread, must not take it for one of theirs.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it the first signal unwinds the run and ends as `Interrupted`; a second one ends the
    process at once.

    Ending at once leaves nothing behind either: the guardian sees the driver go and brings the
    server down.
    """
    seen = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            os._exit(128 + signum)
        seen = True
        raise Signalled(signum)

    before = {signum: signal.signal(signum, handle) for signum in HANDLED}
    try:
        yield
    except Signalled as signalled:
        raise Interrupted(signalled.signum) from None
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
