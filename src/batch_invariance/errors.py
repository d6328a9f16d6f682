"""The exception tree.

Every error carries what happened, on what, and what to do next; `str(error)` is one line that the
command line prints as it is. A divergence, a failed request or a dead server is never an
exception: those are data in the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence


class BatchInvarianceError(Exception):
    """Root of every error this package raises on purpose.

    `exit_code` is what the command line ends with when the error reaches it.
    """

    exit_code = 1


class UsageError(BatchInvarianceError):
    """The arguments cannot be carried out as given. Nothing was started or written."""

    exit_code = 2


class GuardRefused(UsageError):
    """A safety guard (memory, footprint, port, disk) refused the run before it started."""

    def __init__(self, guard: str, figures: str, remedy: str) -> None:
        super().__init__(f"{guard} guard: {figures}. {remedy}")
        self.guard = guard


class FileFormatError(BatchInvarianceError):
    """A file is not what it claims to be. `issues` lists every fault that was found."""

    def __init__(self, what: str, issues: Sequence[str]) -> None:
        self.what = what
        self.issues = tuple(issues)
        super().__init__(f"{what}: " + "; ".join(self.issues))


class WorkSetError(FileFormatError):
    """A work-set cannot be used. All faults of the file are listed at once."""


class RegistryError(FileFormatError):
    """A model registry cannot be used. All faults of its tables are listed at once."""


class GgufError(FileFormatError):
    """A file is not a GGUF model, or its header is truncated or absurd."""


class EvidenceError(FileFormatError):
    """A file cannot be read as evidence: a bad line, a broken chain, an unknown schema."""


class CertificateError(FileFormatError):
    """A certificate file cannot be read as a certificate."""


class CaseError(FileFormatError):
    """A file cannot be read as a case that shows a divergence."""


class ScheduleError(FileFormatError):
    """A schedule does not fit the work-set or the number of slots."""


class ScorerError(BatchInvarianceError):
    """A scorer cannot be found, or failed at its very first call."""


class ServerError(BatchInvarianceError):
    """The server could not be launched, died before the cell's load, or is not what was asked."""


class Interrupted(BaseException):
    """A signal ended the run. The partial evidence is kept.

    Like `KeyboardInterrupt` it is no error of the package: whoever makes a result of an error, such
    as a file that cannot be read or a cell that cannot be run, must not make one of a signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by signal {signum}; evidence that was written is kept")
        self.signum = signum
        self.exit_code = 128 + signum
