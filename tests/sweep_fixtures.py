"""Sweeps of mock cells: groups without a command line, and an observer that remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from batch_invariance.errors import Interrupted
from batch_invariance.invariance_diff.matrix_index import ArmEntry, CellEntry
from batch_invariance.invariance_diff.model import Trial
from batch_invariance.invariance_diff.records import Event, Header
from batch_invariance.live_invariance.binaries import RunningBinary
from batch_invariance.live_invariance.mock_answer import MockBehaviour
from batch_invariance.live_invariance.mock_launch import MockLauncher, MockRunning
from batch_invariance.live_invariance.produce import Conduct, Produced
from batch_invariance.live_invariance.recording import StopRules
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.sweep import Position, Sweep, SweepRules
from batch_invariance.live_invariance.sweep_state import SweepGroup
from batch_invariance.scorer_api import ExactMatch
from driver_fixtures import CTX, mock_header

SCORER = ExactMatch()


@dataclass
class Launches:
    """Gives every group launchers that note their launches, `(folder, slots)`."""

    made: list[tuple[str, int]] = field(default_factory=list)
    libraries: dict[str, str] = field(default_factory=dict)
    """What every server says it has loaded: name -> digest."""

    def of(self, folder: str, behaviour: MockBehaviour) -> Callable[[int], Launcher]:
        return lambda parallel: _Noting(self, folder, behaviour)


class _Noting:
    def __init__(self, launches: Launches, folder: str, behaviour: MockBehaviour) -> None:
        self._launches = launches
        self._folder = folder
        self._mock = MockLauncher(CTX, behaviour)

    def launch(self, parallel: int) -> MockRunning:
        self._launches.made.append((self._folder, parallel))
        running = self._mock.launch(parallel)
        binary = RunningBinary("e" * 64, dict(self._launches.libraries))
        running.facts = replace(running.facts, binary=binary)
        return running


@dataclass
class Watcher:
    """Both a sweep's observer and each run's. Interrupts at the trial number `after`."""

    after: int | None = None
    n_trials: int = 0
    begun: list[tuple[str, str, int, Position]] = field(default_factory=list)
    entries: list[CellEntry | ArmEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def begins(self, header: Header, folder: str, position: Position) -> Conduct:
        self.begun.append((folder, header.cell.model, header.cell.dispatch_n, position))
        return Conduct(self, 30.0, StopRules())

    def ended(self, entry: CellEntry | ArmEntry, produced: Produced | None) -> None:
        self.entries.append(entry)

    def stage(self, text: str) -> None: ...

    def trial(self, trial: Trial, divergent: bool) -> None:
        self.n_trials += 1
        if self.n_trials == self.after:
            raise Interrupted(15)

    def event(self, event: Event) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


QUICK = MockBehaviour(gather_s=0.0)
"""Does not wait for companions, so a cell comes to a verdict soon and to no particular one."""


def mock_group(
    launches: Launches,
    folder: str = "default",
    parallel: Sequence[int] = (2, 4),
    behaviour: MockBehaviour = QUICK,
    flags: tuple[str, ...] = (),
) -> SweepGroup:
    """Mock cells of one flag set, written as if live: three items and one pass of C where they are
    quick, else eight and two."""
    n_items, passes = (3, 1) if behaviour is QUICK else (8, 2)
    headers = tuple(mock_header(n_items, passes, parallel=n) for n in parallel)
    flagged = tuple(replace(h, cell=replace(h.cell, server_flags=flags)) for h in headers)
    return SweepGroup(folder, flagged, lambda: flagged, launches.of(folder, behaviour), SCORER)


def sweep(
    groups: Sequence[SweepGroup],
    out_dir: Path,
    watcher: Watcher | None = None,
    budget_s: float | None = None,
    fresh: bool = False,
) -> Sweep:
    return Sweep(groups, out_dir, watcher or Watcher(), SweepRules(budget_s, fresh))
