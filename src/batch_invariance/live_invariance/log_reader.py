"""Follows the log of an owned server and gives the forward passes that it shows.

The server writes its log from a thread of its own, so lines may lag behind an answer or a counter
that has already come. `DecodeLogReader.drain_until` therefore waits for a condition: as many passes
in the log as the server's counter says, every task that began has ended, and nothing is half read.

A log at `-lv 5` grows by kilobytes per pass. What was read is given back to the file system by
punching a hole: offsets and the end of the file stay, and nothing that the server appends meanwhile
is lost, as it would be by truncating. Where that is not possible (no Linux, or a file system
without holes), the file keeps its size and `reclaims` is False.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.decode_log import DecodeLogParser, DecodeStep
from batch_invariance.live_invariance.interrupts import check

CHUNK_BYTES = 1 << 20
GROWTH_POLL_S = 0.005
HEAD_KEPT_BYTES = 1 << 20
"""The start of the log, where the server names its build and settings."""
TAIL_KEPT_BYTES = 64 * 1024
"""The end of the log, which is shown when the server dies."""
PUNCH_BYTES = 4 << 20
"""Fewer bytes than this are not worth a hole."""

_PUNCH_MODE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of `linux/falloc.h`."""


class DecodeLogReader:
    """Reads `log_path` from its beginning and hands every `DecodeStep` to `on_step`, in order.

    Nothing is read but within `drain` and `drain_until`, on the caller's thread. `dead` is set when
    the server is gone. A context manager; `ServerError` when the log cannot be opened.
    """

    def __init__(
        self, log_path: Path, on_step: Callable[[DecodeStep], None], dead: threading.Event
    ) -> None:
        try:
            self._fd = os.open(log_path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ServerError(
                f"cannot open the server's log {log_path}: {error.strerror}; "
                "check the scratch directory"
            ) from error
        self._on_step = on_step
        self._dead = dead
        self._punched = HEAD_KEPT_BYTES
        self.parser = DecodeLogParser()
        self.offset = 0
        """Bytes of the log that were read."""
        self.reclaims = _FALLOCATE is not None
        """Whether the room of what was read is given back, as far as tried."""

    def __enter__(self) -> DecodeLogReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the log; the file itself stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def drain(self) -> None:
        """Reads what the log holds now, in pieces of `CHUNK_BYTES`.

        After a fault of the parser the log is passed over: there is nothing to be had from it.
        """
        while True:
            if self.parser.fault is not None:
                self.offset = os.fstat(self._fd).st_size
                self._reclaim()
                return
            data = os.pread(self._fd, CHUNK_BYTES, self.offset)
            if not data:
                return
            self.offset += len(data)
            for step in self.parser.feed(data):
                self._on_step(step)
            self._reclaim()

    def drain_until(self, n_decodes: int, timeout_s: float) -> str | None:
        """Reads until the log shows all that the server's counter has counted since its start.

        `n_decodes` is `n_decode_total`, read while no request was in flight. None when the log
        agrees with it and every task has ended; the log is then complete up to here. Otherwise why
        it is not, in words: it is not understood, it shows more passes than that, the server is
        dead, or `timeout_s` seconds went by. What there was has then been read.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Asked before reading: what a dead server wrote is all there by then.
            dead = self._dead.is_set()
            self.drain()
            parser = self.parser
            if parser.fault is not None:
                return parser.fault
            if parser.agrees(n_decodes) and parser.idle:
                return None
            if dead or parser.n_steps > n_decodes or time.monotonic() > deadline:
                return _shortfall(parser, n_decodes)
            check()
            self._dead.wait(GROWTH_POLL_S)

    def _reclaim(self) -> None:
        end = (self.offset - TAIL_KEPT_BYTES) // PUNCH_BYTES * PUNCH_BYTES
        if not self.reclaims or end <= self._punched:
            return
        self.reclaims = punch_hole(self._fd, self._punched, end - self._punched)
        self._punched = end


def _shortfall(parser: DecodeLogParser, n_decodes: int) -> str:
    if not parser.agrees(n_decodes):
        if parser.n_steps == 0:
            return f"the log shows no forward pass in a known form, the counter {n_decodes}"
        return f"the log shows {parser.n_steps} forward passes, the counter {n_decodes}"
    return f"the log does not show the end of {len(parser.running)} tasks"


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Gives back the room of a part of a file, which then reads as zeros; False where impossible.

    `fallocate(2)` with FALLOC_FL_PUNCH_HOLE, which the standard library does not offer.
    """
    return _FALLOCATE is not None and _FALLOCATE(fd, _PUNCH_MODE, offset, length) == 0


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    # `off_t` has 64 bits without further ado only where a pointer has.
    if not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        return None
    with contextlib.suppress(OSError, AttributeError):
        function = ctypes.CDLL(None, use_errno=True).fallocate
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        function.restype = ctypes.c_int
        found: Callable[[int, int, int, int], int] = function
        return found
    return None


_FALLOCATE = _find_fallocate()
