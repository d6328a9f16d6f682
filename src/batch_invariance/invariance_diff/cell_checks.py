"""One cell as a list of checks, the form in which a CI system shows it.

Every gate is a check, the verdict is one, and so is whether the evidence bears the file out. What
a colour means there:

| outcome of the gate | mark |
|---|---|
| PASS | passed |
| FAIL that makes a cell RED | failed |
| FAIL that makes a cell AMBER | failed; skipped where a policy accepts the cell's AMBER |
| FAIL that makes a cell UNVERIFIED, UNKNOWN | error |
| FAIL that only bars promotion, NOT_APPLICABLE | skipped |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from batch_invariance.invariance_diff.cert_reading import CertView
from batch_invariance.invariance_diff.gates import GateResult
from batch_invariance.invariance_diff.model import Outcome, Verdict
from batch_invariance.invariance_diff.verdict import colour_of

EVIDENCE_CHECK = "evidence"
VERDICT_CHECK = "verdict"
MEANING = {
    Verdict.GREEN: "batching changed nothing that was scored or generated",
    Verdict.AMBER: "the scores hold, something beneath them does not",
    Verdict.UNVERIFIED: "no divergence was proved, and neither was its absence",
    Verdict.RED: "scored outputs changed under concurrent load",
}
"""The four colours in words."""


class Mark(str, Enum):
    """What a CI system makes of a check. `ERROR`: nothing is proved either way."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"


class Finding(str, Enum):
    """What a check that is not passed costs: a colour of the cell, or the policy's consent."""

    RED = "RED"
    UNVERIFIED = "UNVERIFIED"
    AMBER = "AMBER"
    VIOLATION = "violation"


FINDING_OF = {
    Verdict.RED: Finding.RED,
    Verdict.UNVERIFIED: Finding.UNVERIFIED,
    Verdict.AMBER: Finding.AMBER,
}
MARK_OF = {
    Verdict.GREEN: Mark.PASSED,
    Verdict.AMBER: Mark.FAILED,
    Verdict.UNVERIFIED: Mark.ERROR,
    Verdict.RED: Mark.FAILED,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found in one line, what is asked, what it costs (None for nothing), why a
    policy accepts it (None where none does). `rule` is what it is a case of, by default its
    name."""

    name: str
    mark: Mark
    found: str
    required: str = ""
    finding: Finding | None = None
    accepted: str | None = None
    rule: str = ""

    @property
    def rule_name(self) -> str:
        """What it is a case of."""
        return self.rule or self.name


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """The checks of one certificate.

    `name`: the cell as `MODEL/CTX/N`, or the file's name where it cannot be read. `file`: the
    certificate's path as given, `uri` the same as a relative reference or a `file:` URI.
    `lines`: gate -> line of the file. `seconds`: what the verb took for this cell.
    """

    name: str
    file: str
    uri: str
    checks: tuple[Check, ...]
    verdict: Verdict | None = None
    properties: tuple[tuple[str, str], ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)
    timestamp: str | None = None
    seconds: float = 0.0

    def count(self, mark: Mark) -> int:
        """How many checks have this mark."""
        return sum(check.mark is mark for check in self.checks)


def cell_checks(view: CertView, accepted: str | None = None) -> tuple[Check, ...]:
    """The checks of a certificate that its evidence bears out.

    `accepted` says by whom and why an AMBER is accepted; it changes no other colour.
    """
    if view.verdict is not Verdict.AMBER:
        accepted = None
    evidence = Check(EVIDENCE_CHECK, Mark.PASSED, "the evidence bears the certificate out")
    return (evidence, _verdict(view, accepted), *(_gate(row, accepted) for row in view.gates))


def refused_checks(problems: Iterable[str]) -> tuple[Check, ...]:
    """The one check of a file that cannot be read or that its evidence does not bear out."""
    found = "; ".join(problems) or "nothing bears the certificate out"
    required = "the certificate that its evidence gives"
    return (Check(EVIDENCE_CHECK, Mark.ERROR, found, required, Finding.UNVERIFIED),)


def cell_properties(view: CertView) -> tuple[tuple[str, str], ...]:
    """What a reader of the report wants beside the marks; what is unknown is left out."""
    bound = view.power.bound_95
    pairs = {
        "verdict": view.verdict.value,
        "source": view.source.value,
        "promotable": "true" if view.promotable else "false",
        "divergence_class": view.divergence_class,
        "model": view.cell.model,
        "ctx": str(view.cell.ctx),
        "dispatch_n": str(view.cell.dispatch_n),
        "prompt_rate_upper_bound_95": None if bound is None else f"{bound:.6g}",
        "cell_sha256": view.cell_sha256,
        "model_sha256": view.subject.model_sha256,
        "server_sha256": view.subject.server_sha256,
        "workset_sha256": view.inputs.workset_sha256,
        "tool": view.tool,
    }
    return tuple((name, value) for name, value in pairs.items() if value is not None)


def _verdict(view: CertView, accepted: str | None) -> Check:
    mark = Mark.PASSED if accepted else MARK_OF[view.verdict]
    words = [f"{view.verdict.value}: {MEANING[view.verdict]}"]
    if view.divergence_class:
        words.append(f"class {view.divergence_class}")
    words += view.reasons
    finding = FINDING_OF.get(view.verdict)
    return Check(VERDICT_CHECK, mark, "; ".join(words), Verdict.GREEN.value, finding, accepted)


def _gate(row: GateResult, accepted: str | None) -> Check:
    colour = colour_of(row)
    found = f"{row.reason}: {row.measured}" if row.reason else row.measured
    if row.outcome is Outcome.PASS:
        return Check(row.gate, Mark.PASSED, found, row.required)
    if colour is None:
        return Check(row.gate, Mark.SKIPPED, found, row.required)
    if colour is Verdict.AMBER and accepted:
        return Check(row.gate, Mark.SKIPPED, found, row.required, Finding.AMBER, accepted)
    return Check(row.gate, MARK_OF[colour], found, row.required, FINDING_OF[colour])
