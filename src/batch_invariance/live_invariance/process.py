"""One owned server, seen from the driver: start it, watch it, read its log, bring it down.

`OwnedProcess` talks to a guardian (see `guardian.py`) that in turn owns the server. A small thread
reads the guardian's reports, so the server's death is known at once, without polling.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from batch_invariance.errors import ServerError
from batch_invariance.live_invariance import guardian
from batch_invariance.live_invariance.procfs import kill_tree
from batch_invariance.live_invariance.store import require_posix
from batch_invariance.live_invariance.text import printable_lines

START_LIMIT_S = 30.0
STOP_GRACE_S = 3.0
# What the guardian may still need after the last escalation, and what follows when it hangs.
SETTLE_LIMIT_S = guardian.SWEEP_LIMIT_S + 5.0
LOG_TAIL_BYTES = 4096

_GUARDIAN = os.path.abspath(guardian.__file__)


def guardian_command(scratch: Path) -> list[str]:
    """The command line of a guardian that removes `scratch` when this process vanishes."""
    return [sys.executable, "-I", "-S", _GUARDIAN, os.fspath(scratch)]


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the server ended: an exit `code`, or the number of the `signal` that killed it.

    Both are None when it is gone, or beyond killing, and nobody saw how it ended.
    """

    code: int | None
    signal: int | None

    def __str__(self) -> str:
        if self.signal is not None:
            try:
                return f"killed by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"killed by signal {self.signal}"
        return "exit status unknown" if self.code is None else f"exit code {self.code}"


class OwnedProcess:
    """A server that cannot outlive the driver. Use it as a context manager, or call `stop`.

    `pid` is the server's, and the id of its process group. `log_path` is the file that holds its
    standard output and error, mode 0600. `n_left` is how many processes it left running when it
    ended, as far as the system shows them; they are gone by then.
    """

    def __init__(self, guard: subprocess.Popen[bytes], log_path: Path) -> None:
        self.pid = 0
        self.log_path = log_path
        self.guardian_lost = False
        self.n_left = 0
        assert guard.stdin is not None
        assert guard.stdout is not None
        self._guard = guard
        self._control = guard.stdin
        self._reports = guard.stdout
        self._start_ticks: int | None = None
        self._status: ExitStatus | None = None
        self._spawn_error: str | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Lock()
        self._started = threading.Event()
        self._gone = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._reader = threading.Thread(target=self._read_reports, daemon=True)

    @classmethod
    def spawn(
        cls, argv: Sequence[str], env: Mapping[str, str], log_path: Path, scratch: Path
    ) -> OwnedProcess:
        """Start `argv` under a guardian, with exactly the environment `env`.

        `log_path` names a new file for the server's output; `scratch` is an existing directory
        that the guardian removes if the driver vanishes. Raises `ServerError` when the server
        cannot be started.
        """
        require_posix("Starting a server")
        try:
            log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError as error:
            raise ServerError(
                f"cannot create the server's log {log_path}: {error.strerror}; "
                "check the scratch directory"
            ) from error
        try:
            guard = subprocess.Popen(
                guardian_command(scratch),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_fd,
                env=dict(env),
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(
                f"cannot start the guardian of the server with {sys.executable!r}: "
                f"{error.strerror}; check the Python installation"
            ) from error
        finally:
            os.close(log_fd)
        owned = cls(guard, log_path)
        try:
            owned._begin(argv)
        except BaseException:
            owned.stop(0.0)
            raise
        return owned

    def _begin(self, argv: Sequence[str]) -> None:
        self._reader.start()
        self._tell(argv=list(argv))
        if not self._started.wait(START_LIMIT_S):
            raise ServerError(
                f"the guardian of {argv[0]} gave no sign within {START_LIMIT_S:g} s; "
                "check the load of this machine and run again"
            )
        if self.pid == 0:
            reason = self._spawn_error or f"the guardian died: {self.log_tail(500).strip()}"
            raise ServerError(
                f"cannot start the server {argv[0]}: {reason}; "
                "check that the path is an executable file for this machine"
            )

    @property
    def alive(self) -> bool:
        """Whether the server runs, as far as the reports that have come in say. Never blocks."""
        return not self._gone.is_set()

    @property
    def exit_status(self) -> ExitStatus | None:
        """How the server ended; None while it runs."""
        return self._status

    @property
    def ending(self) -> str:
        """How the server ended, in words for a person; what was asked of it does not matter."""
        if self.guardian_lost:
            return "its guardian process was killed, and it with its whole group after that"
        status = self._status or ExitStatus(None, None)
        if status.code == 0 and self.n_left:
            left = f"leaving {self.n_left} of its processes behind"
            return f"{status}, {left}: it put itself into the background"
        return str(status)

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once, from another thread, when the server or its guardian dies.

        When that has already happened, it is called at once, from this thread. It must be short
        and must not call `stop`.
        """
        with self._lock:
            if not self._gone.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def wait_exit(self, timeout: float | None) -> ExitStatus | None:
        """Wait up to `timeout` seconds (None: without end) for the end; None if it still runs."""
        return self._status if self._gone.wait(timeout) else None

    def log_tail(self, max_bytes: int = LOG_TAIL_BYTES) -> str:
        """The last `max_bytes` of the log as safe text; empty when the log cannot be read.

        Bytes that are not UTF-8 become U+FFFD and control characters are escaped, so that the
        text can go to a terminal. The cost does not depend on the size of the log.
        """
        try:
            with open(self.log_path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - max_bytes))
                data = file.read(max_bytes)
        except OSError:
            return ""
        return printable_lines(data.decode("utf-8", "replace"))

    def stop(self, grace_s: float = STOP_GRACE_S) -> ExitStatus:
        """Bring the server and its group down: TERM, TERM after `grace_s`, KILL after `grace_s`.

        Returns as soon as they are gone, and in any case soon after the last escalation. Calling it
        again is harmless.
        """
        with self._stopping:
            if self.alive:
                self._tell(stop=grace_s)
                if not self._gone.wait(2 * grace_s + SETTLE_LIMIT_S):
                    # A guardian that hangs is lost; the reader then kills the group itself.
                    self._guard.kill()
                    self._gone.wait(SETTLE_LIMIT_S)
            self._close()
            return self._status or ExitStatus(None, None)

    def __enter__(self) -> OwnedProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _tell(self, **command: object) -> None:
        try:
            self._control.write(json.dumps(command).encode() + b"\n")
            self._control.flush()
        except (OSError, ValueError):
            # The reader learns of a guardian that is gone from the end of its reports.
            return

    def _close(self) -> None:
        self._tell(quit=True)
        with contextlib.suppress(OSError):
            self._control.close()
        try:
            self._guard.wait(SETTLE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._reader.join(SETTLE_LIMIT_S)

    def _read_reports(self) -> None:
        with self._reports as reports:
            for line in reports:
                self._take_report(json.loads(line))
        if not self._gone.is_set():
            self._guardian_died()

    def _take_report(self, report: dict[str, object]) -> None:
        pid, start, error = report.get("pid"), report.get("start"), report.get("spawn_error")
        if isinstance(pid, int):
            self._start_ticks = start if isinstance(start, int) else None
            self.pid = pid
            self._started.set()
        elif error is not None:
            self._spawn_error = str(error)
            self._end(ExitStatus(None, None))
        elif "exit" in report:
            value, left = report["exit"], report.get("left")
            self.n_left = left if isinstance(left, int) else 0
            if not isinstance(value, int):
                self._end(ExitStatus(None, None))
            else:
                self._end(ExitStatus(None, -value) if value < 0 else ExitStatus(value, None))

    def _guardian_died(self) -> None:
        self.guardian_lost = True
        if self.pid:
            kill_tree(self.pid, self._start_ticks)
        self._end(ExitStatus(None, None))

    def _end(self, status: ExitStatus) -> None:
        with self._lock:
            self._status = status
            self._gone.set()
            callbacks, self._callbacks = self._callbacks, []
        self._started.set()
        for callback in callbacks:
            callback()
