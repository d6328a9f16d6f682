"""Where a sweep stands: its entries, what an earlier run of it left, and the index that says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batch_invariance import __version__
from batch_invariance.errors import BatchInvarianceError, EvidenceError, UsageError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.matrix_index import (
    INDEX_NAME,
    SCHEMA,
    ArmEntry,
    CellEntry,
    MatrixIndex,
    RunState,
    inputs_sha256,
    is_complete,
    parse_index,
)
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.shared_arm import shared_header
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.invariance_diff.verify import verify_certificate
from batch_invariance.live_invariance.binaries import replaced_libraries
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.signing import check_signature
from batch_invariance.live_invariance.store import (
    cell_paths,
    shared_arm_path,
    write_atomic,
)
from batch_invariance.scorer_api import Scorer


@dataclass(frozen=True, slots=True)
class SweepGroup:
    """The cells that share arms A and A2: all of a model, a context and a flag set.

    `folder` is the flag set's, under the sweep's. `planned` holds one header for each N. `final`
    gives the headers to run with; it may start a server to fit a work-set, and raises what that
    raises. `launcher` gives that of a number of slots, or raises GuardRefused. `beside` is the
    folder of the server's executable, where its libraries may lie; None for a mock.
    """

    folder: str
    planned: tuple[Header, ...]
    final: Callable[[], tuple[Header, ...]]
    launcher: Callable[[int], Launcher]
    scorer: Scorer
    beside: Path | None = None

    def check_libraries(self, libraries: Iterable[tuple[str, str]]) -> None:
        """Raises EvidenceError where a server of these libraries, name and digest, would have
        others now: a build may change them and nothing else."""
        replaced = [] if self.beside is None else replaced_libraries(libraries, self.beside)
        if replaced:
            raise EvidenceError(
                "the server that ran", [f"{name} was replaced" for name in replaced]
            )


@dataclass(frozen=True, slots=True)
class Standing:
    """A sweep before it goes on. `cells` and `arms` are what is planned, with what is kept;
    `cut_off` are the files of runs that can go on; `measured` holds the seconds of earlier runs by
    file; `notes` say why something that was there is not kept; `replaces` says that an index of
    other cells is there."""

    cells: tuple[CellEntry, ...]
    arms: tuple[ArmEntry, ...]
    cut_off: frozenset[str] = frozenset()
    measured: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()
    replaces: bool = False


def arm_file(group: SweepGroup) -> str:
    """The evidence of a group's shared arm, relative to the sweep's folder."""
    cell = group.planned[0].cell
    return shared_arm_path(Path(group.folder), cell.model, cell.ctx).as_posix()


def cell_files(group: SweepGroup, header: Header) -> tuple[str, str]:
    """A cell's certificate and evidence, relative to the sweep's folder."""
    cell = header.cell
    paths = cell_paths(Path(group.folder), cell.model, cell.ctx, cell.dispatch_n)
    return paths.certificate.as_posix(), paths.evidence.as_posix()


def _arm_entry(group: SweepGroup) -> ArmEntry:
    inputs = inputs_sha256(shared_header(group.planned[0]))
    return ArmEntry(arm_file(group), inputs, RunState.WAITING)


def _cell_entry(group: SweepGroup, header: Header) -> CellEntry:
    cell = header.cell
    file, evidence = cell_files(group, header)
    return CellEntry(
        folder=group.folder,
        model=cell.model,
        ctx=cell.ctx,
        dispatch_n=cell.dispatch_n,
        source=header.source,
        server_flags=cell.server_flags,
        file=file,
        evidence=evidence,
        shared_arm=arm_file(group),
        inputs_sha256=inputs_sha256(header),
        state=RunState.WAITING,
    )


def standing_of(
    groups: Sequence[SweepGroup], out_dir: Path, fresh: bool, key: SigningKey | None = None
) -> Standing:
    """What is planned, and what of it an earlier run of the sweep has done.

    `fresh` keeps nothing, and with a `key` nothing is kept that it did not sign. Raises UsageError
    for two cells with one name, and FileFormatError for an index that is none.
    """
    planned = [(group, _cell_entry(group, header)) for group in groups for header in group.planned]
    cells = tuple(entry for _, entry in planned)
    arms = tuple(_arm_entry(group) for group in groups)
    _check_names([entry.file for entry in cells], [entry.file for entry in arms])
    older = read_index(out_dir)
    if older is None:
        return Standing(cells, arms)
    replaces = {entry.file for entry in older.cells} != {entry.file for entry in cells}
    if fresh:
        return Standing(cells, arms, replaces=replaces)
    kept = _Kept(out_dir, key)
    now_planned: tuple[CellEntry | ArmEntry, ...] = (*cells, *arms)
    then: tuple[CellEntry | ArmEntry, ...] = (*older.cells, *older.shared_arms)
    before = {entry.file: entry for entry in then}
    same = {
        now.file: before[now.file]
        for now in now_planned
        if now.file in before and before[now.file].inputs_sha256 == now.inputs_sha256
    }
    return Standing(
        cells=tuple(kept.entry(group, entry, older.cell(entry.file)) for group, entry in planned),
        arms=tuple(_kept_arm(entry, older.arm(entry.file)) for entry in arms),
        cut_off=frozenset(f for f, was in same.items() if was.state is RunState.RUNNING),
        measured=tuple(
            (file, was.seconds)
            for file, was in same.items()
            if was.state is RunState.DONE and was.seconds is not None
        ),
        notes=tuple(kept.notes),
        replaces=replaces,
    )


def read_index(out_dir: Path) -> MatrixIndex | None:
    """The index in a folder; None where there is none.

    Raises FileFormatError for a file of that name which is no index.
    """
    path = out_dir / INDEX_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; choose another --out-dir"
        ) from error
    return parse_index(data, str(path))


def _check_names(cells: Sequence[str], arms: Sequence[str]) -> None:
    twice = {file for file in (*cells, *arms) if (*cells, *arms).count(file) > 1}
    if twice:
        raise UsageError(
            f"two cells would both write {min(twice)}: give one model's file another name, or "
            "leave it out"
        )


def _kept_arm(entry: ArmEntry, was: ArmEntry | None) -> ArmEntry:
    if was is None or was.state is not RunState.DONE or was.inputs_sha256 != entry.inputs_sha256:
        return entry
    return replace(was, why=None)


class _Kept:
    """Finds what is kept of an earlier run. `notes` say why something is not."""

    def __init__(self, out_dir: Path, key: SigningKey | None) -> None:
        self._out_dir = out_dir
        self._key = key
        self.notes: list[str] = []

    def entry(self, group: SweepGroup, entry: CellEntry, was: CellEntry | None) -> CellEntry:
        """The finished entry where its certificate is there and stands for what is planned now."""
        if was is None or was.state is not RunState.DONE:
            return entry
        why = "it was measured with other inputs"
        if was.inputs_sha256 == entry.inputs_sha256:
            try:
                return self._finished(group, was)
            except OSError as error:
                why = f"{error.strerror}"
            except BatchInvarianceError as error:
                why = str(error)
        self.notes.append(f"{entry.file} is not kept and runs again: {why}")
        return entry

    def _finished(self, group: SweepGroup, was: CellEntry) -> CellEntry:
        """Raises BatchInvarianceError with the reason for which it is not kept."""
        path = self._out_dir / was.file
        data = path.read_bytes()
        result = verify_certificate(data, read_lines(self._out_dir / was.evidence))
        if not result.borne_out or result.derived is None or sha256_hex(data) != was.sha256:
            another = "it is another certificate than the sweep wrote"
            raise BatchInvarianceError("; ".join(result.problems) or another)
        signature = check_signature(path, data, self._key)
        if not signature.holds:
            # Nothing shows who wrote it, so it is not signed after the fact.
            raise BatchInvarianceError(signature.text)
        for life in result.derived.lifetimes:
            group.check_libraries(life.start.libraries.items())
        return finished(was, result.derived, data, was.seconds or 0.0)


def finished(entry: CellEntry, cert: Certificate, data: bytes, seconds: float) -> CellEntry:
    """The entry of a cell that has a certificate, whose file holds `data`."""
    return replace(
        entry,
        state=RunState.DONE,
        status=cert.status,
        verdict=cert.verdict,
        promotable=cert.promotable,
        sha256=sha256_hex(data),
        seconds=seconds,
        why=None,
    )


class Ledger:
    """The entries of a sweep that is at work. Every change is in the index at once."""

    def __init__(self, out_dir: Path, standing: Standing) -> None:
        self._path = out_dir / INDEX_NAME
        self._began = _now()
        self._cells = {entry.file: entry for entry in standing.cells}
        self._arms = {entry.file: entry for entry in standing.arms}

    @property
    def arms_there(self) -> frozenset[str]:
        """The shared arms that are done."""
        return frozenset(f for f, arm in self._arms.items() if arm.state is RunState.DONE)

    @property
    def cells(self) -> tuple[CellEntry, ...]:
        """The cells, in the plan's order."""
        return tuple(self._cells.values())

    def cell(self, file: str) -> CellEntry:
        """One cell by its certificate's file."""
        return self._cells[file]

    def arm(self, file: str) -> ArmEntry:
        """One shared arm by its file."""
        return self._arms[file]

    def put(self, *entries: CellEntry | ArmEntry) -> None:
        """Takes entries in the place of those of the same file, and writes the index."""
        for entry in entries:
            if isinstance(entry, CellEntry):
                self._cells[entry.file] = entry
            else:
                self._arms[entry.file] = entry
        write_atomic(self._path, self.index().to_bytes())

    def index(self) -> MatrixIndex:
        """The index as it is now."""
        return MatrixIndex(
            schema=SCHEMA,
            tool=f"batch-invariance {__version__}",
            began_utc=self._began,
            updated_utc=_now(),
            complete=is_complete(self.cells),
            cells=self.cells,
            shared_arms=tuple(self._arms.values()),
        )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
