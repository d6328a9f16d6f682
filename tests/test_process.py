"""An owned server as the driver sees it: its life, its end, its log, and that it never stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from batch_invariance.errors import ServerError, UsageError
from batch_invariance.live_invariance import procfs, store
from batch_invariance.live_invariance.process import ExitStatus, OwnedProcess
from batch_invariance.live_invariance.procfs import owns_listening_socket
from batch_invariance.live_invariance.text import printable, printable_lines
from waiting import runs, wait_until

DEADLINE_S = 20.0
SOURCES = str(Path(__file__).resolve().parent.parent / "src")
PAUSE = "print('up', flush=True); import signal; signal.pause()"
IGNORES_TERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {PAUSE}"
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def spawn(scratch: Path, script: str, log_name: str = "server.log") -> OwnedProcess:
    return OwnedProcess.spawn(
        [sys.executable, "-c", script], os.environ, scratch / log_name, scratch
    )


def logged(process: OwnedProcess, text: str) -> None:
    wait_until(lambda: text in process.log_tail(), what=f"{text!r} in the log")


def test_a_server_lives_until_stopped_and_its_log_is_private(tmp_path: Path) -> None:
    with spawn(tmp_path, PAUSE) as process:
        logged(process, "up")
        assert process.alive
        assert process.exit_status is None
        assert process.wait_exit(0.0) is None
        assert process.log_path.stat().st_mode & 0o777 == 0o600
        assert process.stop(3600.0) == ExitStatus(None, signal.SIGTERM)
    assert not process.alive
    assert not runs(process.pid)
    assert tmp_path.is_dir()


def test_death_wakes_whoever_waits_and_tells_the_code(tmp_path: Path) -> None:
    called = threading.Event()
    with spawn(tmp_path, "input()") as process:
        process.on_exit(called.set)
        assert process.wait_exit(DEADLINE_S) == ExitStatus(1, None)
        assert called.wait(DEADLINE_S)
        late = threading.Event()
        process.on_exit(late.set)
        assert late.is_set()
        assert not process.guardian_lost
        assert "EOFError" in process.log_tail()
        assert process.stop() == ExitStatus(1, None)
    assert process.stop() == ExitStatus(1, None)


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = spawn(tmp_path, IGNORES_TERM)
    logged(process, "up")
    assert process.stop(0.05) == ExitStatus(None, signal.SIGKILL)
    assert not runs(process.pid)


def test_a_program_that_cannot_start_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"/nonexistent/llama-server.*No such file"):
        OwnedProcess.spawn(["/nonexistent/llama-server"], {}, tmp_path / "server.log", tmp_path)
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(ServerError, match="Permission denied"):
        OwnedProcess.spawn([str(tmp_path / "text")], {}, tmp_path / "other.log", tmp_path)


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("of an earlier launch")
    with pytest.raises(ServerError, match=r"server\.log: File exists"):
        spawn(tmp_path, PAUSE)
    assert (tmp_path / "server.log").read_text() == "of an earlier launch"


def test_the_server_gets_exactly_the_environment_it_is_given(tmp_path: Path) -> None:
    script = "import os; print(sorted(k for k in os.environ if k != 'LC_CTYPE'))"
    argv = [sys.executable, "-c", script]
    with OwnedProcess.spawn(argv, {"ONLY": "this"}, tmp_path / "server.log", tmp_path) as process:
        process.wait_exit(DEADLINE_S)
        assert process.log_tail() == "['ONLY']\n"


def test_two_megabytes_of_log_block_nobody_and_the_tail_is_bounded(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for n in range(20000): print('x' * 100, n, file=sys.stderr)\n"
        "sys.stderr.buffer.write(b'\\x1b[31mlast \\xff\\r\\n')\n"
    )
    with spawn(tmp_path, script) as process:
        assert process.wait_exit(DEADLINE_S) == ExitStatus(0, None)
        assert process.log_path.stat().st_size > 2_000_000
        tail = process.log_tail(200)
    assert len(tail) <= 220
    assert tail.endswith("19999\n\\x1b[31mlast \ufffd\\r\n")


def test_the_tail_of_a_huge_log_is_read_without_reading_the_log(tmp_path: Path) -> None:
    with spawn(tmp_path, PAUSE) as process:
        logged(process, "up")
        os.truncate(process.log_path, 1 << 40)
        assert process.log_tail(8) == "\\x00" * 8
        process.log_path.unlink()
        assert process.log_tail() == ""


def test_text_for_a_terminal_has_no_control_characters() -> None:
    text = "a\tb\x1b[0m\u202e\n日本"
    assert printable(text) == "a\\tb\\x1b[0m\\u202e\\n日本"
    assert printable_lines(text) == "a\\tb\\x1b[0m\\u202e\n日本"


def test_a_wrapper_without_exec_leaves_nothing_behind(tmp_path: Path) -> None:
    wrapper = f'{sys.executable} -c "{IGNORES_TERM}" & echo "pid $!"; wait; exit 4'
    with OwnedProcess.spawn(
        ["/bin/sh", "-c", wrapper], os.environ, tmp_path / "w.log", tmp_path
    ) as process:
        logged(process, "pid ")
        logged(process, "up")
        child = int(process.log_tail().split("pid ")[1].split()[0])
        process.stop(0.05)
        assert not runs(child)


def guardian_of(process: OwnedProcess) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("PPid:")[1].split()[0])


@linux_only
def test_a_lost_guardian_is_noticed_and_its_server_killed(tmp_path: Path) -> None:
    called = threading.Event()
    with spawn(tmp_path, IGNORES_TERM) as process:
        process.on_exit(called.set)
        logged(process, "up")
        os.kill(guardian_of(process), signal.SIGKILL)
        assert called.wait(DEADLINE_S)
        assert process.guardian_lost
        assert not process.alive
        assert process.exit_status == ExitStatus(None, None)
        wait_until(lambda: not runs(process.pid), what="the server is gone")


@linux_only
def test_stop_returns_even_when_the_guardian_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_invariance.live_invariance.process.SETTLE_LIMIT_S", 0.2)
    process = spawn(tmp_path, IGNORES_TERM)
    logged(process, "up")
    os.kill(guardian_of(process), signal.SIGSTOP)
    process.stop(0.05)
    wait_until(lambda: process.guardian_lost, what="the guardian is given up")
    wait_until(lambda: not runs(process.pid), what="the server is gone")


@linux_only
def test_a_process_id_that_now_is_a_strangers_is_not_killed() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        procfs.kill_tree(stranger.pid, start_ticks=1)
        assert runs(stranger.pid)
    finally:
        stranger.communicate()


@pytest.mark.parametrize("killed", [True, False])
def test_a_driver_that_ends_takes_the_server_and_the_scratch_directory(
    tmp_path: Path, killed: bool
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    driver_script = textwrap.dedent(f"""
        import os, sys
        from pathlib import Path
        from batch_invariance.live_invariance.process import OwnedProcess
        argv = [sys.executable, "-c", {IGNORES_TERM!r}]
        scratch = Path({str(scratch)!r})
        process = OwnedProcess.spawn(argv, os.environ, scratch / "server.log", scratch)
        print(process.pid, flush=True)
        sys.stdin.read()
    """)
    neighbour = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    driver = subprocess.Popen(
        [sys.executable, "-c", driver_script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert driver.stdout is not None
    server = int(driver.stdout.readline())
    assert runs(server)
    if killed:
        driver.kill()
    driver.communicate()
    assert driver.returncode == (-signal.SIGKILL if killed else 0)
    wait_until(lambda: not runs(server), what="the server is gone")
    wait_until(lambda: not scratch.exists(), what="the scratch directory is gone")
    assert neighbour.poll() is None
    neighbour.communicate(b"\n")


LISTENS = (
    "import socket, signal; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
    "print('port', s.getsockname()[1], flush=True); signal.pause()"
)


@linux_only
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_listening_socket_is_told_to_be_the_servers_or_not(tmp_path: Path, wrapped: bool) -> None:
    argv = [sys.executable, "-c", LISTENS]
    if wrapped:
        argv = ["/bin/sh", "-c", f'{sys.executable} -c "{LISTENS}"; exit 3']
    with OwnedProcess.spawn(argv, os.environ, tmp_path / "server.log", tmp_path) as process:
        logged(process, "port")
        port = int(process.log_tail().split()[1])
        assert owns_listening_socket(process.pid, port) is True
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", 0))
            stranger.listen()
            assert owns_listening_socket(process.pid, stranger.getsockname()[1]) is False
    assert owns_listening_socket(process.pid, port) is False


@linux_only
def test_a_port_shared_with_a_stranger_is_not_the_servers(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        script = (
            "import socket, signal; s = socket.socket();"
            "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
            f"s.bind(('127.0.0.1', {port})); s.listen(); print('up', flush=True); signal.pause()"
        )
        with spawn(tmp_path, script) as process:
            logged(process, "up")
            assert owns_listening_socket(process.pid, port) is False


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Windows:
        name = "nt"

    monkeypatch.setattr(store, "os", Windows)
    with pytest.raises(UsageError, match="needs Linux or macOS"):
        store.require_posix("Starting a server")
