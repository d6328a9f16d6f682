"""The cells of a sweep as tasks, and what each will take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from batch_invariance.invariance_diff.matrix_cost import Pace, guessed_seconds
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.shared_arm import SHARED, shared_header
from batch_invariance.live_invariance.sweep_state import (
    Standing,
    SweepGroup,
    arm_file,
    cell_files,
)

OWN_ARMS = (Arm.B, Arm.C)
"""What every N runs for itself, beside confirm trials and the control."""


@dataclass(frozen=True, slots=True)
class Task:
    """One cell of a sweep: its group, which N of it, its certificate and the shared arm that it
    needs, both relative to the index."""

    group: SweepGroup
    place: int
    file: str
    arm_file: str

    @property
    def header(self) -> Header:
        """The cell as planned."""
        return self.group.planned[self.place]


def tasks_of(groups: Sequence[SweepGroup]) -> list[Task]:
    """All cells in the plan's order, those of one shared arm together.

    A server is started for each shared arm once and for each cell once. No order needs fewer, since
    no two cells run on the same number of slots with the same model, context and flags.
    """
    return [
        Task(group, place, cell_files(group, header)[0], arm_file(group))
        for group in groups
        for place, header in enumerate(group.planned)
    ]


class Costs:
    """What each run will take in seconds: guessed, and set right by what was measured."""

    def __init__(self, standing: Standing, tasks: Sequence[Task]) -> None:
        self._pace = Pace()
        self._guesses: dict[str, tuple[str, float]] = {}
        for task in tasks:
            model, alone = task.header.cell.model, shared_header(task.header)
            self._guesses[task.file] = model, guessed_seconds(task.header, OWN_ARMS)
            self._guesses[task.arm_file] = model, guessed_seconds(alone, SHARED)
        for file, seconds in standing.measured:
            self.measured(file, seconds)

    @property
    def known(self) -> bool:
        """Whether anything was measured yet."""
        return self._pace.measured

    def measured(self, file: str, seconds: float) -> None:
        """A whole run of `file` took so long."""
        model, guess = self._guesses[file]
        self._pace.add(model, guess, seconds)

    def of(self, file: str) -> float:
        """Seconds for a run of `file`."""
        return self._pace.seconds(*self._guesses[file])

    def together(self, tasks: Sequence[Task], arms_there: Collection[str]) -> float:
        """Seconds for some cells, each shared arm that is not there counted once."""
        arms = {task.arm_file for task in tasks} - set(arms_there)
        return sum(self.of(task.file) for task in tasks) + sum(self.of(arm) for arm in arms)
