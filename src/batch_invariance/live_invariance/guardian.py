"""The guardian: a small process that owns one server and outlives the driver just long enough.

The driver runs this file as a script (`python -I -S guardian.py SCRATCH`); it imports nothing of
the package, so it starts in a few hundredths of a second. Standard input is the control pipe,
standard output carries the reports, standard error is the server's log. All are JSON Lines:

    control:  {"argv": [...]}       first line; the server's command line
              {"stop": grace_s}     TERM, after grace_s TERM again, after grace_s more KILL
              {"quit": true}        leave without touching the scratch directory
              end of file           the driver is gone: TERM, after 2 s KILL, remove SCRATCH
    reports:  {"pid": n, "start": ticks or null}  or  {"spawn_error": text}
              {"exit": code, or minus the signal, "left": n}
                                    n: processes that it left running when it ended

The exit is seen without reaping it, so that the process id, and with it the group id, still belongs
to the server while what is left of its group is killed. On Linux the guardian is also the
subreaper of its descendants: a process that left the group is handed to it when its parent dies,
and is killed as well. Elsewhere a server that starts a session of its own cannot be held.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

DRIVER_GONE_GRACE_S = 2.0
SWEEP_LIMIT_S = 5.0
PR_SET_CHILD_SUBREAPER = 36


class ProcStat:
    """Four fields of `/proc/<pid>/stat`; `start` is in clock ticks since boot (field 22)."""

    __slots__ = ("ended", "parent", "session", "start")

    def __init__(self, ended: bool, parent: int, session: int, start: int) -> None:
        self.ended = ended
        self.parent = parent
        self.session = session
        self.start = start


def proc_stat(pid: int) -> ProcStat | None:
    """Read one process from `/proc`; None where it does not exist, or has no `/proc`."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command name is in parentheses and may itself hold spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return ProcStat(fields[0] in (b"Z", b"X"), int(fields[1]), int(fields[3]), int(fields[19]))


def all_pids() -> list[int]:
    """Every process id that `/proc` shows; empty where there is none."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


class Control:
    """The control pipe together with the wake-up pipe of SIGCHLD: one place to wait."""

    def __init__(self, wake_fd: int) -> None:
        self.eof = False
        self._wake_fd = wake_fd
        self._buffer = b""

    def wait(self, timeout: float | None) -> None:
        """Sleep until the driver says something, a child changes, or `timeout` seconds pass."""
        watched = [self._wake_fd] if self.eof else [self._wake_fd, 0]
        ready = select.select(watched, [], [], timeout)[0]
        if self._wake_fd in ready:
            os.read(self._wake_fd, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            self.eof = not data
            self._buffer += data

    def take(self) -> dict[str, object] | None:
        """The next whole command, or None."""
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        command = json.loads(line)
        return command if isinstance(command, dict) else {}


def report(**fields: object) -> None:
    """Write one report. A driver that no longer listens shows as the end of the control pipe."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def catch_signals() -> int:
    """Make this process deaf to terminal signals; return the descriptor that SIGCHLD wakes.

    Handlers, not SIG_IGN: an ignored signal would stay ignored in the server after exec.
    """
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(signum, lambda *_: None)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return read_fd


def become_subreaper() -> None:
    """Ask Linux to hand orphaned descendants to this process; without it only the group is held."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def signal_group(pid: int, signum: int) -> None:
    """Signal the group that `pid` leads; a group that is already gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


class Ward:
    """The server: started once, watched, brought down with everything it left behind."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.left: set[int] = set()
        """Processes of its own that ran on when it had ended, as far as `/proc` shows them."""
        # Referenced and never polled: a forgotten or polled Popen would reap behind our back.
        self._process = process
        self._status: int | None = None

    def gone(self) -> bool:
        """Whether the server has ended; where the system can, without reaping it."""
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self._reap()

    def _reap(self) -> bool:
        if self._status is None:
            pid, raw = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(raw)
        return self._status is not None

    def _others(self) -> dict[int, ProcStat]:
        """The processes that are this server's: those of its session, and orphans of its making."""
        me = os.getpid()
        stats = {pid: proc_stat(pid) for pid in all_pids() if pid != self.pid}
        return {
            pid: stat
            for pid, stat in stats.items()
            if stat is not None and (stat.parent == me or stat.session == self.pid)
        }

    def finish(self, control: Control) -> int | None:
        """Kill what the ended server left, wait until that is gone, reap, return the status."""
        deadline = time.monotonic() + SWEEP_LIMIT_S
        self._note_running()
        signal_group(self.pid, signal.SIGKILL)
        while time.monotonic() < deadline:
            strays = [pid for pid, stat in self._note_running() if stat.parent == os.getpid()]
            if not strays:
                break
            reaped = 0
            for pid in strays:
                with contextlib.suppress(PermissionError):
                    os.kill(pid, signal.SIGKILL)
                reaped += os.waitpid(pid, os.WNOHANG)[0] != 0
            if not reaped:
                control.wait(max(0.0, deadline - time.monotonic()))
        self._reap()
        return self._status

    def _note_running(self) -> list[tuple[int, ProcStat]]:
        others = self._others()
        self.left |= {pid for pid, stat in others.items() if not stat.ended}
        return list(others.items())


def supervise(ward: Ward, control: Control) -> None:
    """Return once the server has ended, escalating when told to or when the driver is gone."""
    steps: list[tuple[int, float]] = []
    due: float | None = None
    driver_gone = False
    while not ward.gone():
        while (command := control.take()) is not None:
            grace = command.get("stop")
            if isinstance(grace, (int, float)):
                steps = [(signal.SIGTERM, grace), (signal.SIGTERM, grace), (signal.SIGKILL, 0.0)]
                due = time.monotonic()
        if control.eof and not driver_gone:
            driver_gone = True
            steps = [(signal.SIGTERM, DRIVER_GONE_GRACE_S), (signal.SIGKILL, 0.0)]
            due = time.monotonic()
        if due is not None and time.monotonic() >= due:
            signum, grace_s = steps.pop(0)
            signal_group(ward.pid, signum)
            due = time.monotonic() + grace_s if steps else None
        control.wait(None if due is None else max(0.0, due - time.monotonic()))


def launch(argv: list[str]) -> Ward | None:
    """Start the server in a session of its own; a failure is reported and gives None."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True
        )
    except (OSError, ValueError) as error:
        report(spawn_error=str(error))
        return None
    stat = proc_stat(process.pid)
    report(pid=process.pid, start=None if stat is None else stat.start)
    return Ward(process)


def main(scratch: str) -> None:
    """Run one server from its start to its end; `scratch` is removed if the driver vanishes."""
    control = Control(catch_signals())
    become_subreaper()
    while (first := control.take()) is None and not control.eof:
        control.wait(None)
    argv = (first or {}).get("argv")
    if isinstance(argv, list):
        ward = launch(argv)
        if ward is not None:
            supervise(ward, control)
            status = ward.finish(control)
            report(exit=status, left=len(ward.left))
    while not control.eof:
        command = control.take()
        if command is None:
            control.wait(None)
        elif "quit" in command:
            return
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
