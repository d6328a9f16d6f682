"""How a sweep goes and what it came to, for a person."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from batch_invariance.cli.columns import clipped, one_line, padded
from batch_invariance.cli.progress import Progress
from batch_invariance.cli.run_options import conduct_from
from batch_invariance.cli.style import Speaker, Style
from batch_invariance.invariance_diff.matrix_index import (
    ArmEntry,
    CellEntry,
    MatrixIndex,
    RunState,
)
from batch_invariance.invariance_diff.records import Header
from batch_invariance.live_invariance.produce import Conduct, Produced
from batch_invariance.live_invariance.sweep import Position
from batch_invariance.live_invariance.sweep_plan import Costs, Task

MINUTE_S = 60
LONGEST_WHY = 60
WORDS = {
    RunState.WAITING: "waiting",
    RunState.RUNNING: "cut off",
    RunState.NO_VERDICT: "no verdict",
    RunState.LEFT_OUT: "left out",
}
"""What stands in the place of a colour."""


class SweepProgress:
    """A `SweepObserver` that prints on stderr, and keeps what the runs produced."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._speaker = Speaker(sys.stderr)
        self._progress: Progress | None = None
        self.produced: dict[str, Produced] = {}

    def begins(self, header: Header, folder: str, position: Position) -> Conduct:
        """Says which cell of how many begins, and how long all that is left may take."""
        what = "arms A and A2 of" if position.arm else "cell"
        cell = header.cell
        size = "" if position.arm else f", N {cell.dispatch_n}"
        self._remark(
            f"[{position.number}/{position.total}] {what} {cell.model}, ctx {cell.ctx}{size}, "
            f"{folder}; about {duration(position.seconds_left)} left in all"
        )
        conduct, self._progress = conduct_from(self._args, header)
        return conduct

    def ended(self, entry: CellEntry | ArmEntry, produced: Produced | None) -> None:
        """Says what it came to."""
        self.close()
        if isinstance(entry, CellEntry):
            if produced is not None:
                self.produced[entry.file] = produced
            word = WORDS.get(entry.state) or (entry.verdict.value if entry.verdict else "")
            why = f": {entry.why}" if entry.why else ""
            name = f"{entry.model}, ctx {entry.ctx}, N {entry.dispatch_n}, {entry.folder}"
            self._remark(f"{word:10} {name}{why}")
        elif entry.why:
            self._remark(f"arms A and A2, {entry.file}: {entry.why}")

    def note(self, text: str) -> None:
        """A remark of the sweep."""
        self._remark(text)

    def close(self) -> None:
        """Ends the line of a run's progress."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def _remark(self, text: str) -> None:
        if not self._args.quiet:
            self._speaker.say(one_line(text) + "\n")


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes."""
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE_S:.0f} min"


def plan_lines(tasks: Sequence[Task], costs: Costs) -> Iterator[str]:
    """What a sweep would run, in its order."""
    arms = {task.arm_file for task in tasks}
    yield f"{len(tasks)} cells in {len(arms)} groups, {len(tasks) + len(arms)} server launches"
    before = ""
    for task in tasks:
        if task.arm_file != before:
            before = task.arm_file
            cell = task.header.cell
            flags = " ".join(cell.server_flags) or "no flags"
            about = duration(costs.of(task.arm_file))
            name = f"{cell.model}, ctx {cell.ctx}, {task.group.folder}"
            yield one_line(f"{name} ({flags}): arms A and A2 about {about}")
        yield one_line(
            f"  N {task.header.cell.dispatch_n:<4} about {duration(costs.of(task.file))}"
        )
    yield f"about {duration(costs.together(tasks, ()))} in all, a guess until the first run"


def result_lines(index: MatrixIndex, style: Style) -> Iterator[str]:
    """One line for each cell, then what they took."""
    names = [one_line(entry.model) for entry in index.cells]
    folders = [one_line(entry.folder) for entry in index.cells]
    wide, wider = max(map(len, names), default=0), max(map(len, folders), default=0)
    for entry, name, folder in zip(index.cells, names, folders, strict=True):
        if entry.verdict is None:
            word = f"{WORDS.get(entry.state, ''):10}"
        else:
            word = style.verdict(entry.verdict, f"{entry.verdict.value:10}")
        took = "" if entry.seconds is None else f"{entry.seconds:7.1f} s"
        why = "" if entry.why is None else f"  {clipped(one_line(entry.why), LONGEST_WHY)}"
        yield (
            f"{word}  {padded(name, wide)}  ctx {entry.ctx:<6} N {entry.dispatch_n:<3} "
            f"{padded(folder, wider)}  {took}{why}"
        )
    cells = sum(entry.seconds or 0.0 for entry in index.cells)
    arms = sum(entry.seconds or 0.0 for entry in index.shared_arms)
    yield f"shared arms A and A2 {arms:.1f} s, the cells' own arms {cells:.1f} s"
