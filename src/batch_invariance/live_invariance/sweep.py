"""Many cells, one after the other: shared arms once, what is finished kept, a failure only its own.

A sweep keeps its state in the index, which is written before and after each run. So whatever ends
it, the same sweep goes on: a finished cell stays where the index lists its certificate and the
evidence bears it out, and one that was cut off goes on in its own evidence where that is possible.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from batch_invariance.errors import BatchInvarianceError, EvidenceError, UsageError
from batch_invariance.invariance_diff.matrix_index import (
    INDEX_NAME,
    ArmEntry,
    CellEntry,
    MatrixIndex,
    RunState,
)
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.shared_arm import comparable, shared_header
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.live_invariance.produce import Conduct, Produced, resume
from batch_invariance.live_invariance.produce_shared import (
    produce_shared,
    produce_sharing,
    resume_shared,
)
from batch_invariance.live_invariance.resume import Interruption, read_interrupted
from batch_invariance.live_invariance.shared_arm import Origin, check_shareable, read_origin
from batch_invariance.live_invariance.signing import set_aside_signed
from batch_invariance.live_invariance.store import (
    OutDirLock,
    cell_paths,
    prepare_out_dir,
    set_aside,
)
from batch_invariance.live_invariance.sweep_plan import Costs, Task, tasks_of
from batch_invariance.live_invariance.sweep_state import (
    Ledger,
    SweepGroup,
    finished,
    standing_of,
)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a sweep is when a run begins: the number of the cell (from 1) of how many, and the
    seconds that this run and all that is left may take. `arm`: arms A and A2 are run for it."""

    number: int
    total: int
    seconds_left: float
    arm: bool


class SweepObserver(Protocol):
    """Is told how a sweep goes, for a person to read."""

    def begins(self, header: Header, folder: str, position: Position) -> Conduct:
        """A run begins; how it is to be conducted."""

    def ended(self, entry: CellEntry | ArmEntry, produced: Produced | None) -> None:
        """The run that began last has ended, well or not, or a cell has ended without one."""

    def note(self, text: str) -> None:
        """A remark."""


@dataclass(frozen=True, slots=True)
class SweepRules:
    """How a sweep is run: seconds that it may take (None: as long as it takes), whether nothing of
    an earlier one is kept, and what certificates are signed with."""

    budget_s: float | None = None
    fresh: bool = False
    key: SigningKey | None = None


class Sweep:
    """Runs the cells of `groups` in `out_dir`.

    With a `budget_s` the cell that takes the least time is next, until none fits into what is left;
    the rest is left out. A run that has begun is not cut short.
    """

    def __init__(
        self,
        groups: Sequence[SweepGroup],
        out_dir: Path,
        observer: SweepObserver,
        sweep_rules: SweepRules = SweepRules(),
    ) -> None:
        self._groups = groups
        self._out_dir = out_dir
        self._observer = observer
        self._rules = sweep_rules
        self._began = time.monotonic()
        self._headers: dict[str, tuple[Header, ...]] = {}
        self._origins: dict[str, Origin] = {}
        self._failed: dict[str, str] = {}
        self._cut_off: set[str] = set()
        self._ledger: Ledger
        self._costs: Costs

    def run(self) -> MatrixIndex:
        """Runs what is not there yet and returns the index as it is in the end.

        Raises UsageError where another sweep is at work in the folder, Interrupted when a signal
        ends it; the index is true then too.
        """
        prepare_out_dir(self._out_dir)
        with OutDirLock(self._out_dir):
            rules = self._rules
            standing = standing_of(self._groups, self._out_dir, rules.fresh, rules.key)
            for note in standing.notes:
                self._observer.note(note)
            if standing.replaces:
                set_aside([self._out_dir / INDEX_NAME])
            tasks = tasks_of(self._groups)
            self._ledger = Ledger(self._out_dir, standing)
            self._costs = Costs(standing, tasks)
            self._cut_off = set(standing.cut_off)
            self._ledger.put()
            waiting = [t for t in tasks if self._ledger.cell(t.file).state is RunState.WAITING]
            for unfinished in waiting:
                self._set_aside(unfinished)
            while waiting:
                task = self._next(waiting)
                if task is None:
                    break
                self._cell(task, waiting)
                waiting.remove(task)
            return self._ledger.index()

    def _next(self, waiting: Sequence[Task]) -> Task | None:
        """The next cell; None where the budget leaves out all that wait."""
        budget_s = self._rules.budget_s
        if budget_s is None:
            return waiting[0]
        costs, there = self._costs, self._ledger.arms_there
        seconds = [costs.together([task], there) for task in waiting]
        least = min(seconds)
        left = budget_s - (time.monotonic() - self._began)
        # A guess alone leaves nothing out: the first run shows what the machine takes.
        if left > 0 and (least <= left or not costs.known):
            return waiting[seconds.index(least)]
        for task, needed in zip(waiting, seconds, strict=True):
            why = f"about {needed:.0f} s, {max(0.0, left):.0f} s of the time budget left"
            entry = replace(self._ledger.cell(task.file), state=RunState.LEFT_OUT, why=why)
            self._ledger.put(entry)
            self._observer.ended(entry, None)
        return None

    def _cell(self, task: Task, waiting: Sequence[Task]) -> None:
        entry = self._ledger.cell(task.file)
        produced: Produced | None = None
        try:
            produced, seconds, whole = self._produced(task, waiting)
            data = produced.certificate.to_bytes()
            entry = finished(entry, produced.certificate, data, seconds)
            if whole:
                self._costs.measured(task.file, seconds)
        except BatchInvarianceError as error:
            entry = replace(entry, state=RunState.NO_VERDICT, why=str(error))
        self._ledger.put(entry)
        self._observer.ended(entry, produced)

    def _produced(self, task: Task, waiting: Sequence[Task]) -> tuple[Produced, float, bool]:
        """What the run came to, its seconds, and whether all of the cell ran in them."""
        group, folder = task.group, self._out_dir / task.group.folder
        launcher = group.launcher(task.header.cell.dispatch_n)
        header = self._final(task)
        cut_off = self._interruption(task.file, self._ledger.cell(task.file).evidence, header)
        if cut_off is None:
            origin = self._origin(task, waiting)
            run = partial(produce_sharing, header, launcher, group.scorer, folder, origin=origin)
        else:
            run = partial(resume, cut_off, launcher, group.scorer, folder)
        self._ledger.put(replace(self._ledger.cell(task.file), state=RunState.RUNNING))
        conduct = replace(self._begins(header, task, waiting, arm=False), key=self._rules.key)
        began = time.monotonic()
        produced = run(conduct=conduct)
        return produced, time.monotonic() - began, cut_off is None

    def _begins(self, header: Header, task: Task, waiting: Sequence[Task], arm: bool) -> Conduct:
        seconds = self._costs.together(waiting, self._ledger.arms_there)
        total = len(self._ledger.cells)
        position = Position(total - len(waiting) + 1, total, seconds, arm)
        return self._observer.begins(header, task.group.folder, position)

    def _set_aside(self, task: Task) -> None:
        """Older files stand for a cell of this sweep no more, whether or not its turn comes: one
        that is left out by the budget, or never reached, has no certificate."""
        cell = task.header.cell
        folder = self._out_dir / task.group.folder
        paths = cell_paths(folder, cell.model, cell.ctx, cell.dispatch_n)
        if task.file in self._cut_off or not folder.is_dir():
            return
        try:
            with OutDirLock(folder):
                set_aside_signed(paths.certificate, [paths.evidence])
        except UsageError as error:
            # Another run is at work there; the cell says so when its turn comes, the others run.
            self._observer.note(str(error))

    def _final(self, task: Task) -> Header:
        """The header to run with. What fails here fails for the whole group."""
        key = task.arm_file
        if key in self._failed:
            raise BatchInvarianceError(self._failed[key])
        if key not in self._headers:
            try:
                self._headers[key] = task.group.final()
            except BatchInvarianceError as error:
                self._failed[key] = str(error)
                raise
        return self._headers[key][task.place]

    def _origin(self, task: Task, waiting: Sequence[Task]) -> Origin:
        """The shared arm of the cell's group, run now where it is not there."""
        key = task.arm_file
        if key not in self._origins:
            try:
                self._origins[key] = self._kept_origin(task) or self._run_origin(task, waiting)
            except BatchInvarianceError as error:
                why = f"arms A and A2: {error}"
                self._failed[key] = why
                entry = replace(self._ledger.arm(key), state=RunState.NO_VERDICT, why=str(error))
                self._ledger.put(entry)
                self._observer.ended(entry, None)
                raise BatchInvarianceError(why) from error
        return self._origins[key]

    def _kept_origin(self, task: Task) -> Origin | None:
        entry = self._ledger.arm(task.arm_file)
        if entry.state is not RunState.DONE:
            return None
        try:
            origin = read_origin(self._out_dir / entry.file)
            check_shareable(self._final(task), origin)
            task.group.check_libraries(origin.libraries)
        except EvidenceError as error:
            self._observer.note(f"arms A and A2 run again: {error}")
            return None
        if origin.record.sha256 != entry.sha256:
            self._observer.note(f"arms A and A2 run again: {entry.file} was changed")
            return None
        return origin

    def _run_origin(self, task: Task, waiting: Sequence[Task]) -> Origin:
        group, entry = task.group, self._ledger.arm(task.arm_file)
        folder, launcher = self._out_dir / group.folder, group.launcher(1)
        header = self._final(task)
        alone = shared_header(header)
        cut_off = self._interruption(entry.file, entry.file, alone)
        self._ledger.put(replace(entry, state=RunState.RUNNING))
        conduct = self._begins(alone, task, waiting, arm=True)
        began = time.monotonic()
        if cut_off is not None:
            origin = resume_shared(cut_off, launcher, group.scorer, folder, conduct)
        else:
            origin = produce_shared(header, launcher, group.scorer, folder, conduct)
        seconds = time.monotonic() - began
        done = replace(
            entry, state=RunState.DONE, sha256=origin.record.sha256, seconds=seconds, why=None
        )
        if cut_off is None:
            self._costs.measured(entry.file, seconds)
        self._ledger.put(done)
        self._observer.ended(done, None)
        return origin

    def _interruption(self, file: str, evidence: str, header: Header) -> Interruption | None:
        """The run that was cut off there, where it is this one and can go on."""
        if file not in self._cut_off:
            return None
        self._cut_off.discard(file)
        try:
            found = read_interrupted(self._out_dir / evidence)
        except BatchInvarianceError as error:
            self._observer.note(f"{evidence} is run again: {error}")
            return None
        if comparable(found.header) != comparable(header):
            self._observer.note(f"{evidence} is run again: it was begun with other inputs")
            return None
        return found
