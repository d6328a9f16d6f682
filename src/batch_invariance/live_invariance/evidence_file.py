"""The evidence file as it is written: one line at a time, on the disk at the end of each pass."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError, EvidenceError
from batch_invariance.invariance_diff.evidence import EvidenceEncoder
from batch_invariance.invariance_diff.model import Trial
from batch_invariance.invariance_diff.records import Record
from batch_invariance.live_invariance.store import open_evidence, reopen_evidence

MAX_LINE_BYTES = 1 << 29
"""Room for a work-set or an answer of the largest size that is read, every byte of it escaped."""


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

    Raises BatchInvarianceError when the file cannot be read or is no regular one, EvidenceError for
    a line that no evidence can have.
    """
    try:
        # Whoever made a certificate chose this name: a pipe would be waited for without end.
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BatchInvarianceError(f"cannot read the evidence {path}: no regular file")
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    most = MAX_LINE_BYTES >> 20
                    raise EvidenceError("evidence", [f"line {number}: longer than {most} MiB"])
                yield line
    except OSError as error:
        raise BatchInvarianceError(f"cannot read the evidence {path}: {error.strerror}") from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
