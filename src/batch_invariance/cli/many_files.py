"""The same work over many files, on all processors where that is worth the start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
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
    context = multiprocessing.get_context(_start_method())
    size = max(1, len(tasks) // (processes * 8))
    parts = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    executor = ProcessPoolExecutor(processes, context, _leave_signals)
    try:
        futures = [executor.submit(_each, work, part) for part in parts]
        return [result for future in futures for result in future.result()]
    except BaseException:
        # The futures are not cancelled: the executor's thread fails on one that is, and says so.
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        executor.shutdown()


def _each(work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    return [work(task) for task in tasks]


def _start_method() -> str:
    """A forked child has all modules already, but can hang where its parent had threads, and on
    other systems where their libraries have some; a spawned one starts from nothing."""
    alone = sys.platform == "linux" and threading.active_count() == 1
    return "fork" if alone else "spawn"


def _leave_signals() -> None:
    """An interrupt from the terminal reaches every process; this one's parent ends it, and what
    the parent does at a signal is not its child's to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def _processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
