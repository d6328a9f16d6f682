"""The evidence file as it is written: one line at a time, on the disk at the end of each pass."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.invariance_diff.evidence import EvidenceEncoder
from batch_invariance.invariance_diff.model import Trial
from batch_invariance.invariance_diff.records import Record
from batch_invariance.live_invariance.store import open_evidence, reopen_evidence


@dataclass(frozen=True, slots=True)
class Written:
    """What an evidence file holds already: its bytes, lines, trials, and the digest of the last
    line."""

    size: int
    n_records: int
    n_trials: int
    last_line_sha256: str


class EvidenceWriter:
    """Appends records to an evidence file of mode 0600, a new one unless `written` says what it
    holds; a context manager.

    Raises BatchInvarianceError when the disk refuses; what was written before stays.
    """

    def __init__(self, path: Path, written: Written | None = None) -> None:
        self.path = path
        self.n_trials = 0 if written is None else written.n_trials
        if written is None:
            self._encoder = EvidenceEncoder()
            self._file = open_evidence(path)
        else:
            self._encoder = EvidenceEncoder(written.n_records, written.last_line_sha256)
            self._file = reopen_evidence(path, written.size)

    def __enter__(self) -> EvidenceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise self._refused(error) from error

    def write(self, record: Record) -> None:
        """Appends one record and hands it to the operating system."""
        self.n_trials += isinstance(record, Trial)
        try:
            self._file.write(self._encoder.encode(record))
            self._file.flush()
        except OSError as error:
            raise self._refused(error) from error

    def sync(self) -> None:
        """Has the system put everything written so far on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> BatchInvarianceError:
        remedy = "free some space" if error.errno == errno.ENOSPC else "check the folder"
        return BatchInvarianceError(
            f"cannot write the evidence {self.path}: {error.strerror}; {remedy} and run again. "
            "What was written before is kept"
        )


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of an evidence file, newline included, one at a time.

    Raises BatchInvarianceError when the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            yield from file
    except OSError as error:
        raise BatchInvarianceError(f"cannot read the evidence {path}: {error.strerror}") from error
