"""The index of a sweep: which cells it has, where their files are, and what became of each.

It is no certificate: no key at its top is one that certificates must have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from batch_invariance.errors import EvidenceError, FileFormatError
from batch_invariance.invariance_diff.codec import from_json, to_json
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.model import Source, Status, Verdict
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.shared_arm import comparable
from batch_invariance.invariance_diff.strict_json import parse_json

SCHEMA = "matrix/1"
INDEX_NAME = "matrix.json"


class RunState(str, Enum):
    """Where a cell or a shared arm stands. `RUNNING` in a sweep that has ended: it was cut off.
    `NO_VERDICT`: it could not be run, or not to a verdict. `LEFT_OUT`: by the time budget."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    NO_VERDICT = "no_verdict"
    LEFT_OUT = "left_out"


@dataclass(frozen=True, slots=True)
class ArmEntry:
    """Arms A and A2 of some cells. `file` is relative to the index; `sha256` digests it, None until
    it is done; `seconds` is what it took; `why` says what stood in its way."""

    file: str
    inputs_sha256: str
    state: RunState
    sha256: str | None = None
    seconds: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class CellEntry:
    """One cell. Files are relative to the index; `sha256` digests the certificate. `inputs_sha256`
    digests all that the cell was to be measured with, machine included. `status`, `verdict` and
    `promotable` are the certificate's, None without one; `seconds` is what the cell took, less its
    shared arm; `why` says what stood in its way."""

    folder: str
    model: str
    ctx: int
    dispatch_n: int
    source: Source
    server_flags: tuple[str, ...]
    file: str
    evidence: str
    shared_arm: str
    inputs_sha256: str
    state: RunState
    status: Status | None = None
    verdict: Verdict | None = None
    promotable: bool | None = None
    sha256: str | None = None
    seconds: float | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class MatrixIndex:
    """A sweep as a whole. `complete`: no cell waits, was cut off or was left out."""

    schema: str
    tool: str
    began_utc: str
    updated_utc: str
    complete: bool
    cells: tuple[CellEntry, ...]
    shared_arms: tuple[ArmEntry, ...]

    def to_bytes(self) -> bytes:
        """The file's bytes: sorted keys, two spaces, one newline at the end."""
        return json.dumps(to_json(self), sort_keys=True, indent=2).encode("ascii") + b"\n"

    def cell(self, file: str) -> CellEntry | None:
        """The entry of a certificate's file."""
        return next((entry for entry in self.cells if entry.file == file), None)

    def arm(self, file: str) -> ArmEntry | None:
        """The entry of a shared arm's file."""
        return next((entry for entry in self.shared_arms if entry.file == file), None)


def is_complete(cells: Iterable[CellEntry]) -> bool:
    """Whether nothing is left to do."""
    return all(entry.state in (RunState.DONE, RunState.NO_VERDICT) for entry in cells)


def parse_index(data: bytes, name: str) -> MatrixIndex:
    """Reads an index; `name` is the file's in an error. Raises FileFormatError for another file."""
    try:
        value: Any = parse_json(data)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise ValueError
        return from_json(MatrixIndex, value, "index")
    except (ValueError, RecursionError):
        raise FileFormatError(name, [f"is no index of a sweep ({SCHEMA})"]) from None
    except EvidenceError as error:
        raise FileFormatError(name, error.issues) from None


def inputs_sha256(header: Header) -> str:
    """Digest of all that a run is to be measured with and on: two runs with the same are the same
    run at two times."""
    observer = header.observer
    machine = (observer.machine, observer.processor, observer.cpu_count)
    return digest_of({"inputs": comparable(header), "machine": machine})
