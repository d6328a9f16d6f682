"""Arms A and A2 in an evidence file of their own, and their copies in the cells of a sweep."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Arm, Completion, Trial
from batch_invariance.invariance_diff.records import (
    Footer,
    Header,
    LifetimeStart,
    PassEnd,
    Record,
    SharedArm,
)
from batch_invariance.invariance_diff.shared_arm import sharing_faults
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.recording import Recorder
from batch_invariance.live_invariance.run import Earlier


@dataclass(frozen=True, slots=True)
class Origin:
    """A finished run of arms A and A2: its file, its header, the record that binds a copy to it,
    what a cell that takes the copy has done, and the name and digest of each library that ran."""

    path: Path
    header: Header
    record: SharedArm
    earlier: Earlier
    libraries: tuple[tuple[str, str], ...]

    @property
    def ended(self) -> str:
        """How it ended, as its footer says."""
        return self.record.footer.ended


def read_origin(path: Path) -> Origin:
    """Reads a shared arm and checks its chain.

    Raises EvidenceError for a file that is not there, that is no evidence, or that has no end.
    """
    if not os.path.lexists(path):
        raise EvidenceError(f"shared arm {path}", ["is not there; run it again"])
    reader = EvidenceReader(read_lines(path))
    header: Header | None = None
    footer: Record | None = None
    done: set[tuple[Arm, int]] = set()
    libraries: set[tuple[str, str]] = set()
    n_lifetimes = 0
    for record in reader:
        footer = record
        if isinstance(record, Header):
            header = record
        elif isinstance(record, LifetimeStart):
            n_lifetimes = max(n_lifetimes, record.index + 1)
            libraries.update(record.libraries.items())
        elif isinstance(record, PassEnd):
            done.add((record.arm, record.pass_index))
    if header is None or not isinstance(footer, Footer):
        raise EvidenceError(f"shared arm {path}", ["has no end: its run was interrupted"])
    bound = SharedArm(
        file=path.name,
        sha256=reader.sha256,
        n_records=reader.n_records - 2,
        ts_utc=header.ts_utc,
        observer=header.observer,
        model_sha256_from=header.subject.model.sha256_from,
        footer=footer,
    )
    earlier = Earlier(frozenset(done), n_lifetimes)
    return Origin(path, header, bound, earlier, tuple(sorted(libraries)))


def check_shareable(header: Header, origin: Origin) -> None:
    """Raises EvidenceError unless `origin` is the shared arm of the cell of `header`."""
    faults = sharing_faults(header, origin.header)
    if faults:
        raise EvidenceError(f"shared arm {origin.path.name}", ["of another cell:", *faults])


def copy_origin(recorder: Recorder, origin: Origin) -> None:
    """Writes the shared arm's records into a cell's evidence, and gives the recorder arm A.

    Raises EvidenceError where the origin has changed since it was read.
    """
    recorder.write(origin.record)
    reader = EvidenceReader(read_lines(origin.path))
    for record in reader:
        if isinstance(record, (Header, Footer)):
            continue
        recorder.write(record)
        if isinstance(record, Trial) and isinstance(record.result, Completion):
            recorder.remember(record)
    if reader.sha256 != origin.record.sha256:
        raise EvidenceError(f"shared arm {origin.path.name}", ["changed while it was copied"])
    recorder.sync()
