"""What a policy asks of certificates, what is held against it, and what comes of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.cert_reading import CellName, CertView
from batch_invariance.invariance_diff.model import Source

DEFAULT_SOURCES = (Source.LIVE,)


class Rule(str, Enum):
    """What a violation is a violation of."""

    EVIDENCE = "evidence"
    SIGNATURE = "signature"
    REQUIRED = "required"
    FOREIGN = "foreign"
    DUPLICATE = "duplicate"
    RUNS = "runs"
    SOURCE = "source"
    VERDICT = "verdict"
    AGE = "age"
    MODEL = "model_sha256"
    SERVER = "server_sha256"
    CELL = "cell_sha256"
    BOUND = "bound"
    HORIZON = "horizon"


@dataclass(frozen=True, slots=True)
class CellPattern:
    """Cells by `MODEL/CTX/N`; `*` stands for any characters, `?` for one."""

    model: str
    ctx: str
    dispatch_n: str

    def __str__(self) -> str:
        return f"{self.model}/{self.ctx}/{self.dispatch_n}"

    def matches(self, cell: CellName) -> bool:
        """Whether the cell is one of these."""
        return (
            _fits(self.model, cell.model)
            and _fits(self.ctx, str(cell.ctx))
            and _fits(self.dispatch_n, str(cell.dispatch_n))
        )


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One AMBER cell that somebody answers for. `expires` is its last day, as YYYY-MM-DD. With
    `cell_sha256` it is for that cell alone, and for no other of the same name."""

    cell: CellName
    reason: str
    signed_off_by: str
    expires: str | None = None
    cell_sha256: str | None = None

    def __str__(self) -> str:
        until = f", until {self.expires}" if self.expires else ""
        return f"accepted by {self.signed_off_by}{until}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What certificates must show. None, or an empty tuple of digests, asks for nothing.

    `max_age_days` counts from the start of the run and of its shared arms, `max_bound` is a rate
    from 0 to 1, `min_horizon_tokens` counts token positions compared in co-batched trials. With
    `min_runs` a cell may have several certificates, at least so many, each of a run of its own.
    """

    required: tuple[CellPattern, ...]
    sources: tuple[Source, ...] = DEFAULT_SOURCES
    max_age_days: int | None = None
    model_sha256: tuple[str, ...] = ()
    server_sha256: tuple[str, ...] = ()
    cell_sha256: tuple[str, ...] = ()
    max_bound: float | None = None
    min_horizon_tokens: int | None = None
    min_runs: int | None = None
    accept_amber: tuple[Acceptance, ...] = ()

    def requires(self, cell: CellName) -> bool:
        """Whether an entry of `required` names the cell."""
        return any(pattern.matches(cell) for pattern in self.required)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One certificate file. `view` is None where it cannot be read; `problems` is empty only where
    its evidence bears it out; `signature_fault` says what a signature that was asked for lacks."""

    file: str
    view: CertView | None
    problems: tuple[str, ...]
    signature_fault: str | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """One way in which the policy is not fulfilled. `file` is None for a cell without any."""

    rule: Rule
    cell: str | None
    file: str | None
    text: str

    def __str__(self) -> str:
        at = f" ({self.file})" if self.cell and self.file else ""
        return f"{self.cell or self.file}: {self.rule.value}: {self.text}{at}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of it. `accepted`: file -> the acceptance that its AMBER rests on."""

    violations: tuple[Violation, ...]
    accepted: Mapping[str, Acceptance]

    @property
    def passed(self) -> bool:
        """Whether the policy is fulfilled."""
        return not self.violations

    def of(self, file: str) -> tuple[Violation, ...]:
        """The violations by one file."""
        return tuple(v for v in self.violations if v.file == file)


def _fits(pattern: str, text: str) -> bool:
    """In time that grows with the product of both lengths: a star that took too little takes one
    more character."""
    p = at = taken = 0
    star = -1
    while at < len(text):
        if pattern[p : p + 1] == "*":
            star, taken = p, at
            p += 1
        elif p < len(pattern) and pattern[p] in ("?", text[at]):
            p += 1
            at += 1
        elif star >= 0:
            taken += 1
            p, at = star + 1, taken
        else:
            return False
    return not pattern[p:].strip("*")
