"""The guardian script by itself: what it reports, and that nothing outlives the control pipe."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_invariance.live_invariance import guardian
from waiting import runs, wait_until

DEADLINE_S = 20.0
IGNORES_TERM = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
    "signal.pause()"
)


class Guard:
    """A guardian under test, spoken to as the driver does."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        scratch.mkdir()
        self.log = scratch / "server.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, str(scratch)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # `select` cannot see a report that a buffer has taken in with the one before.
                bufsize=0,
                start_new_session=True,
            )

    def tell(self, **command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], "no report came"
        heard = json.loads(self.process.stdout.readline())
        assert isinstance(heard, dict)
        return heard

    def start(self, *argv: str) -> int:
        self.tell(argv=list(argv))
        pid = self.hear()["pid"]
        assert isinstance(pid, int)
        return pid

    def logged(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text(), what=f"{text!r} in the log")

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    guard = Guard(tmp_path / "scratch")
    yield guard
    guard.hang_up()
    guard.process.wait(DEADLINE_S)
    assert guard.process.stdout is not None
    guard.process.stdout.close()


def test_an_exit_code_is_reported_and_quit_keeps_the_scratch_directory(guard: Guard) -> None:
    guard.start(sys.executable, "-c", "raise SystemExit(7)")
    assert guard.hear() == {"exit": 7, "left": 0}
    guard.tell(quit=True)
    assert guard.process.wait(DEADLINE_S) == 0
    assert guard.scratch.is_dir()


def test_the_signal_that_killed_the_server_is_reported(guard: Guard) -> None:
    pid = guard.start(sys.executable, "-c", IGNORES_TERM)
    os.kill(pid, signal.SIGKILL)
    assert guard.hear() == {"exit": -signal.SIGKILL, "left": 0}


def test_a_program_that_cannot_start_is_reported(guard: Guard) -> None:
    guard.tell(argv=["/nonexistent/llama-server"])
    assert "No such file" in str(guard.hear()["spawn_error"])


def test_stop_ends_a_server_that_obeys_long_before_its_grace(guard: Guard) -> None:
    guard.start(sys.executable, "-c", "print('up', flush=True); import signal; signal.pause()")
    guard.logged("up")
    guard.tell(stop=3600.0)
    assert guard.hear() == {"exit": -signal.SIGTERM, "left": 0}


def test_stop_kills_a_server_that_ignores_sigterm(guard: Guard) -> None:
    pid = guard.start(sys.executable, "-c", IGNORES_TERM)
    guard.logged("up")
    guard.tell(stop=0.05)
    assert guard.hear() == {"exit": -signal.SIGKILL, "left": 0}
    assert not runs(pid)


def test_a_second_sigterm_is_sent(guard: Guard) -> None:
    script = (
        "import signal, sys\n"
        "seen = []\n"
        "def term(*_):\n"
        "    seen.append(1)\n"
        "    if len(seen) > 1: sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, term)\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()\n"
    )
    guard.start(sys.executable, "-c", script)
    guard.logged("up")
    guard.tell(stop=1.0)
    assert guard.hear() == {"exit": 5, "left": 0}


def test_the_end_of_the_control_pipe_kills_even_the_stubborn_and_removes_scratch(
    guard: Guard,
) -> None:
    pid = guard.start(sys.executable, "-c", IGNORES_TERM)
    guard.logged("up")
    guard.hang_up()
    assert guard.process.wait(DEADLINE_S) == 0
    assert not runs(pid)
    assert not guard.scratch.exists()


def test_a_driver_that_goes_before_naming_a_server_leaves_nothing(guard: Guard) -> None:
    guard.hang_up()
    assert guard.process.wait(DEADLINE_S) == 0
    assert not guard.scratch.exists()


def test_signals_of_a_terminal_do_not_end_the_guardian_and_are_not_ignored_by_the_server(
    guard: Guard,
) -> None:
    script = (
        "import signal\n"
        "names = ('SIGINT', 'SIGHUP', 'SIGTERM')\n"
        "print([n for n in names if signal.getsignal(getattr(signal, n)) == signal.SIG_IGN],"
        " flush=True)\n"
        "signal.pause()\n"
    )
    pid = guard.start(sys.executable, "-c", script)
    guard.logged("[]")
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(guard.process.pid, signum)
    guard.tell(stop=3600.0)
    assert guard.hear() == {"exit": -signal.SIGTERM, "left": 0}
    assert not runs(pid)


def test_a_wrapper_without_exec_that_exits_leaves_no_child_behind(guard: Guard) -> None:
    guard.start("/bin/sh", "-c", f'{sys.executable} -c "{IGNORES_TERM}" & echo "pid $!"; exit 4')
    assert guard.hear() == {"exit": 4, "left": 1}
    child = int(guard.log.read_text().split("pid ")[1].split()[0])
    assert not runs(child)


def test_a_wrapper_without_exec_is_stopped_together_with_its_child(guard: Guard) -> None:
    guard.start(
        "/bin/sh", "-c", f'{sys.executable} -c "{IGNORES_TERM}" & echo "pid $!"; wait; exit 4'
    )
    guard.logged("pid ")
    guard.logged("up")
    child = int(guard.log.read_text().split("pid ")[1].split()[0])
    guard.tell(stop=0.05)
    guard.hear()
    assert not runs(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a child subreaper")
def test_a_server_that_leaves_for_a_session_of_its_own_is_found(guard: Guard) -> None:
    script = (
        "import os, signal\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print('pid', os.getpid(), flush=True)\n"
        "        signal.pause()\n"
        "    os._exit(0)\n"
        "os.wait(); signal.pause()\n"
    )
    guard.start(sys.executable, "-c", script)
    guard.logged("pid ")
    daemon = int(guard.log.read_text().split("pid ")[1].split()[0])
    assert runs(daemon)
    guard.hang_up()
    guard.process.wait(DEADLINE_S)
    assert not runs(daemon)


def test_the_server_holds_neither_pipe(guard: Guard) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    pid = guard.start(sys.executable, "-c", IGNORES_TERM)
    guard.logged("up")
    held = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    assert held == {"/dev/null", str(guard.log)}
    guard.tell(stop=0.05)
    guard.hear()
