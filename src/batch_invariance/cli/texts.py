"""The two texts of a divergence, looked up in the evidence: the certificate holds none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Arm, Completion, Trial
from batch_invariance.invariance_diff.pairs import IdReport
from batch_invariance.invariance_diff.records import LifetimeEnd
from batch_invariance.live_invariance.evidence_file import read_lines

BEFORE, AFTER = 40, 60


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A divergence around the first character that differs: what both share, then each side."""

    shared: str
    a: str
    c: str


def first_divergence(certificate: Certificate) -> IdReport | None:
    """The divergence to show: the first scored one, else the first of the tokens alone."""
    ids = certificate.divergence_report["AC"].per_id
    scored = [entry for entry in ids if entry.n_score_divergent]
    return next(iter(scored or ids), None)


def side_by_side(entry: IdReport, evidence: Path) -> SideBySide | None:
    """Both texts of one divergence; None where the evidence cannot be read any more."""
    wanted = entry.first_divergence
    texts: dict[Arm, str] = {}
    try:
        for record in EvidenceReader(read_lines(evidence)):
            if not isinstance(record, Trial) or record.key.item != entry.item:
                continue
            key, result = record.key, record.result
            if not isinstance(result, Completion):
                continue
            if key.arm is Arm.A:
                texts.setdefault(Arm.A, result.text)
            elif key.arm is Arm.C and (key.pass_index, key.occurrence) == (
                wanted.pass_index,
                wanted.occurrence,
            ):
                texts[Arm.C] = result.text
                break
    except BatchInvarianceError:
        return None
    if len(texts) < 2:
        return None
    a, c = texts[Arm.A], texts[Arm.C]
    n = 0
    while n < min(len(a), len(c)) and a[n] == c[n]:
        n += 1
    start = max(0, n - BEFORE)
    shared = ("..." if start else "") + a[start:n]
    return SideBySide(shared, _clip(a[n:]), _clip(c[n:]))


def log_tail(evidence: Path, lines: int = 8) -> list[str]:
    """The last lines of the log of a server that died, from the evidence."""
    tail = ""
    try:
        for record in EvidenceReader(read_lines(evidence)):
            if isinstance(record, LifetimeEnd) and record.exit is not None:
                tail = record.exit.log_tail or tail
    except BatchInvarianceError:
        return []
    return tail.splitlines()[-lines:]


def _clip(text: str) -> str:
    return text if len(text) <= AFTER else text[:AFTER] + "..."
