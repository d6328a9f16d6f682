"""Ways in which a run is ended from outside, all started before any is ended.

Most of their time is waiting for stubborn servers, so they wait together.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fault_cases import BEFORE_C
from fault_runs import LEAST
from reports_fixtures import Cell, Outcome, cli_environment, make_cell, start_cli
from waiting import wait_until

HANGS_IN_C: Mapping[str, object] = {"fail_nth_concurrent": {"hang_busy": 4}}
STUBBORN = {**HANGS_IN_C, "ignore_sigterm": True, "spare_reference": True}
LIMIT_S = 120.0
GO = "go"


class Terminal:
    """The side of a terminal where a person sits."""

    def __init__(self) -> None:
        self._fd, self._other = os.openpty()
        self.name = os.ttyname(self._other)
        self.shown = bytearray()
        self._leaves = threading.Event()
        self._person = threading.Thread(target=self._look, daemon=True)

    def look(self) -> None:
        """Begin to look, once a process has opened the terminal."""
        os.close(self._other)
        self._person.start()

    def _look(self) -> None:
        # A read that is under way would keep the terminal open beyond its close.
        while not self._leaves.is_set():
            if select.select([self._fd], [], [], 0.05)[0]:
                try:
                    self.shown.extend(os.read(self._fd, 4096))
                except OSError:
                    return

    def close(self) -> None:
        self._leaves.set()
        self._person.join()
        os.close(self._fd)


@dataclass
class Run:
    """A command line that runs in a process of its own, and what it has said."""

    cell: Cell
    process: subprocess.Popen[bytes]
    terminal: Terminal | None = None

    @property
    def tmp_dir(self) -> Path:
        return self.cell.folder / "tmp"

    @property
    def stderr(self) -> str:
        return (self.cell.folder / "stderr").read_text()

    @property
    def said(self) -> str:
        return self.stderr if self.terminal is None else self.terminal.shown.decode()

    @property
    def outcome(self) -> Outcome:
        assert self.process.returncode is not None
        return Outcome(self.process.returncode, "", self.stderr, self.cell.out_dir)

    def until_said(self, text: str) -> None:
        wait_until(lambda: text in self.said or self.process.poll() is not None, LIMIT_S)
        assert self.process.poll() is None, self.said

    def until_noted(self, key: str, times: int = 1) -> None:
        """Until the fakes have noted something so often."""
        wait_until(
            lambda: (
                sum(key in entry for entry in self.cell.journal()) >= times
                or self.process.poll() is not None
            ),
            LIMIT_S,
        )
        assert self.process.poll() is None, self.said


def in_arm_c(run: Run) -> None:
    """It cannot go on from there, because the fake hangs in the first wave of two."""
    run.until_said("arm C, pass 0")
    run.until_noted("body", 1 + 2 * 8 + BEFORE_C + 2)


def while_starting(run: Run) -> None:
    run.until_noted("pid")


def in_arm_a(run: Run) -> None:
    run.until_noted("body", 3)


def sends(signum: int) -> Callable[[Run], None]:
    return lambda run: run.process.send_signal(signum)


def twice(run: Run) -> None:
    """The second one comes while the first is still stopping the server."""
    stopped = sum("signal" in entry for entry in run.cell.journal())
    run.process.send_signal(signal.SIGINT)
    run.until_noted("signal", stopped + 1)
    run.process.send_signal(signal.SIGINT)


def close_terminal(run: Run) -> None:
    assert run.terminal is not None
    run.terminal.close()


def close_pipe_and_hang_up(run: Run) -> None:
    assert run.process.stderr is not None
    run.process.stderr.close()
    run.process.send_signal(signal.SIGHUP)
    (run.cell.folder / GO).touch()


def start_plainly(cell: Cell) -> Run:
    words = cell.words(*LEAST)
    return Run(cell, start_cli(words, cell.folder / "tmp", cell.folder / "stderr"))


def _command(cell: Cell) -> str:
    return shlex.join([sys.executable, "-m", "batch_invariance", *cell.words(*LEAST)])


def start_in_terminal(cell: Cell) -> Run:
    """The run leads the session of a terminal, as one that was typed in."""
    terminal, opened = Terminal(), cell.folder / "opened"
    (cell.folder / "tmp").mkdir()
    (cell.folder / "stderr").write_text("")
    # A session leader that opens a terminal makes it its own.
    tty = terminal.name
    script = f"exec <{tty} >{tty} 2>&1; : >{shlex.quote(str(opened))}; exec {_command(cell)}"
    process = subprocess.Popen(
        ["/bin/sh", "-c", script],
        env=cli_environment(cell.folder / "tmp"),
        start_new_session=True,
    )
    wait_until(opened.exists)
    terminal.look()
    return Run(cell, process, terminal)


def start_under_nohup(cell: Cell) -> Run:
    """It ignores SIGHUP, and speaks into a pipe."""
    (cell.folder / "tmp").mkdir()
    (cell.folder / "stderr").write_text("")
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' HUP; exec {_command(cell)}"],
        env=cli_environment(cell.folder / "tmp"),
        stdout=(cell.folder / "stderr").open("wb"),
        stderr=subprocess.PIPE,
    )
    return Run(cell, process)


@dataclass(frozen=True)
class Ending:
    """One run: what is planted, how it starts, when it is ended and how. `cases`: the entries of
    the list of faults that it stands for."""

    cases: tuple[str, ...]
    plant: Mapping[str, object]
    when: Callable[[Run], None]
    end: Callable[[Run], None]
    start: Callable[[Cell], Run] = start_plainly


ENDINGS = (
    Ending(
        ("sigint", "busy_server"),
        {**HANGS_IN_C, "busy_ignores_sigterm": True},
        in_arm_c,
        sends(signal.SIGINT),
    ),
    Ending(("sigterm",), HANGS_IN_C, in_arm_c, sends(signal.SIGTERM)),
    Ending(
        ("sighup", "early_signal"), {"ready_delay_s": 3600.0}, while_starting, sends(signal.SIGHUP)
    ),
    Ending(("closed_terminal",), HANGS_IN_C, in_arm_c, close_terminal, start_in_terminal),
    Ending(("stubborn_server",), STUBBORN, in_arm_c, sends(signal.SIGTERM)),
    Ending(("sigint_twice",), STUBBORN, in_arm_c, twice),
    Ending(("sigkill",), STUBBORN, in_arm_c, sends(signal.SIGKILL)),
    Ending(
        ("lost_stderr", "ignored_hangup"),
        {"hold_until": GO},
        in_arm_a,
        close_pipe_and_hang_up,
        start_under_nohup,
    ),
)


def end_all(folder: Callable[[str], Path]) -> dict[str, Run]:
    """All of them, by the first of their cases."""
    runs = {}
    for ending in ENDINGS:
        name = ending.cases[0]
        runs[name] = ending.start(make_cell(folder(name), **ending.plant))
    for ending in ENDINGS:
        run = runs[ending.cases[0]]
        ending.when(run)
        ending.end(run)
    for run in runs.values():
        run.process.wait(60)
    return runs
