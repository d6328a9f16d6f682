"""The same work over many files, on all processors where that is worth the start."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
WORTH_BYTES = 16 << 20
"""Below so much to read, starting other processes takes longer than they save."""
MOST_PROCESSES = 8


def over_files(work: Callable[[T], R], tasks: Sequence[T], n_bytes: int) -> list[R]:
    """`work` of each task, in their order. `n_bytes` is what they will read in all.

    Where this system starts no processes, or one of them dies, all of it is done in this one.
    """
    processes = min(_processors(), len(tasks), MOST_PROCESSES)
    if processes < 2 or n_bytes < WORTH_BYTES:
        return [work(task) for task in tasks]
    try:
        return _in_processes(work, tasks, processes)
    except (BrokenProcessPool, OSError, ImportError):
        return [work(task) for task in tasks]


def _in_processes(work: Callable[[T], R], tasks: Sequence[T], processes: int) -> list[R]:
    # Forked children of a process with threads can hang; spawned ones start from nothing.
    context = multiprocessing.get_context("spawn")
    chunk = max(1, len(tasks) // (processes * 8))
    executor = ProcessPoolExecutor(processes, context, _leave_signals)
    try:
        return list(executor.map(work, tasks, chunksize=chunk))
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        executor.shutdown()


def _leave_signals() -> None:
    """An interrupt from the terminal reaches every process; this one's parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
