"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 30.0


def wait_until(
    condition: Callable[[], object],
    limit_s: float = DEADLINE_S,
    what: str = "the condition did not come true in time",
) -> None:
    """Wait for a condition; the limit only bounds a failing test."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie that waits for somebody to reap it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return not Path("/proc").is_dir()
    return stat.rpartition(b")")[2].split()[0] != b"Z"
