"""Two certificates of one cell, before and after a change: what differs between them.

The cell is what `CellName` says, with its source. What else could change its arithmetic (build,
model file, flags, device, environment) may differ: that is what is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.cert_reading import CellName
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.gates import GateResult
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.invariance_diff.pairs import DriftReport
from batch_invariance.invariance_diff.report_lines import some
from batch_invariance.invariance_diff.sections import Row
from batch_invariance.invariance_diff.subject_facts import (
    SAMPLING,
    SCORER,
    WORK_SET,
    Agreement,
    FactChange,
    Run,
    agreement_of,
    compare_facts,
    facts_of,
)
from batch_invariance.invariance_diff.verdict import colour_of

NEEDED_FOR_IDS = (WORK_SET, SAMPLING, SCORER)
"""Where one of these differs, the same id is not the same question."""
RANK = {verdict: rank for rank, verdict in enumerate(Verdict)}
"""From best to worst."""


class Kind(str, Enum):
    """What of an id differs under load: a scored field, or what was generated alone."""

    SCORE = "score"
    TOKEN = "token"


class IdChange(str, Enum):
    """What became of an id that diverges in one of two certificates. `UNPROVED`: it diverged
    before, and afterwards it was not compared in a trial that is proved co-batched."""

    NEW = "new"
    KIND_CHANGED = "kind_changed"
    IN_BOTH = "in_both"
    UNPROVED = "unproved"
    GONE = "gone"


class Outcome(str, Enum):
    """What two certificates come to. `UNPROVED`: nothing shows that it is not worse."""

    NOT_WORSE = "not_worse"
    WORSE = "worse"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class DivergentId:
    """One id, and how it diverges on either side, None for not at all."""

    id: str
    change: IdChange
    before: Kind | None
    after: Kind | None


@dataclass(frozen=True, slots=True)
class GateChange:
    """One gate on two sides; None where that certificate has no such gate."""

    gate: str
    before: GateResult | None
    after: GateResult | None

    @property
    def agreement(self) -> Agreement:
        """Whether the outcomes agree."""
        return agreement_of(self.before and self.before.outcome, self.after and self.after.outcome)


@dataclass(frozen=True, slots=True)
class Reference:
    """The serial answers of two runs, by the digest of their text: how many are the same, which
    are not, and which are not on both sides. Ids are in work-set order."""

    n_same: int
    changed: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """How logprobs moved under load: of `n_positions` compared `n_moved`, by up to `max_abs` nats;
    trials without usable logprobs count in `n_unknown`."""

    n_positions: int
    n_moved: int
    max_abs: float
    n_unknown: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure on two sides; None where that run does not give it."""

    name: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """After over before."""
        if self.before is None or self.after is None or self.before <= 0.0:
            return None
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class Side:
    """One certificate in short. `drift` is None where no logprobs could be compared."""

    verdict: Verdict
    promotable: bool
    divergence_class: str | None
    ts_utc: str
    cell_sha256: str
    evidence_sha256: str
    n_compared: int
    n_contaminated: int
    drift: Drift | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ids` and `reference` are None where `incomparable` names why ids cannot be compared.
    `reasons` say why the outcome is not NOT_WORSE."""

    cell: CellName
    source: Source
    before: Side
    after: Side
    outcome: Outcome
    reasons: tuple[str, ...]
    facts: tuple[FactChange, ...]
    incomparable: tuple[str, ...]
    ids: tuple[DivergentId, ...] | None
    reference: Reference | None
    gates: tuple[GateChange, ...]
    figures: tuple[Figure, ...]

    def with_change(self, change: IdChange) -> tuple[str, ...]:
        """The ids that this became of."""
        return tuple(entry.id for entry in self.ids or () if entry.change is change)


def compare_runs(before: Run, after: Run) -> Comparison:
    """Compares two runs of one cell.

    Raises UsageError for two cells, naming what differs, and for one run given twice.
    """
    x, y = before.certificate, after.certificate
    _check_one_cell(x, y)
    facts = compare_facts(facts_of(before), facts_of(after))
    incomparable = tuple(
        change.name
        for change in facts
        if change.name in NEEDED_FOR_IDS and change.agreement is not Agreement.SAME
    )
    ids = None if incomparable else _divergent_ids(x, y)
    outcome, reasons = _judge(x, y, incomparable, ids or ())
    return Comparison(
        cell=_cell_of(x),
        source=x.source,
        before=_side(x),
        after=_side(y),
        outcome=outcome,
        reasons=reasons,
        facts=facts,
        incomparable=incomparable,
        ids=ids,
        reference=None if incomparable else _reference(x.rows, y.rows),
        gates=_gates(x, y),
        figures=_figures(x, y),
    )


def _cell_of(cert: Certificate) -> CellName:
    return CellName(cert.model, cert.ctx, cert.dispatch_n)


def _check_one_cell(x: Certificate, y: Certificate) -> None:
    pairs = (
        ("model", x.model, y.model),
        ("context per slot", x.ctx, y.ctx),
        ("slots", x.dispatch_n, y.dispatch_n),
        ("source", x.source.value, y.source.value),
    )
    differing = [f"{name} {u} and {v}" for name, u, v in pairs if u != v]
    if differing:
        raise UsageError(f"these are two cells, not one before and after: {'; '.join(differing)}")
    if x.evidence.sha256 == y.evidence.sha256:
        raise UsageError("both derive from the same evidence: that is one run, not two")


def _side(cert: Certificate) -> Side:
    ac = cert.divergence_report["AC"]
    return Side(
        cert.verdict,
        cert.promotable,
        cert.divergence_class,
        cert.ts_utc,
        cert.cell_sha256,
        cert.evidence.sha256,
        ac.n_ids_compared,
        len(cert.contamination),
        _drift(ac.logit_drift),
    )


def _drift(report: DriftReport) -> Drift | None:
    if not report.n_trials:
        return None
    return Drift(report.n_positions, report.n_moved, report.max_abs, report.n_unknown)


def _kinds(cert: Certificate) -> dict[str, Kind]:
    tokens = dict.fromkeys(cert.token_divergence_ids, Kind.TOKEN)
    return {**tokens, **dict.fromkeys(cert.mismatch, Kind.SCORE)}


def _divergent_ids(x: Certificate, y: Certificate) -> tuple[DivergentId, ...]:
    """The ids that diverge on either side, in work-set order."""
    before, after = _kinds(x), _kinds(y)
    found = []
    for row in y.rows:
        u, v = before.get(row.id), after.get(row.id)
        if u is not None or v is not None:
            found.append(DivergentId(row.id, _change(u, v, row), u, v))
    return tuple(found)


def _change(before: Kind | None, after: Kind | None, row: Row) -> IdChange:
    if after is None:
        return IdChange.GONE if row.covered else IdChange.UNPROVED
    if before is None:
        return IdChange.NEW
    return IdChange.IN_BOTH if before is after else IdChange.KIND_CHANGED


def _judge(
    x: Certificate, y: Certificate, incomparable: tuple[str, ...], ids: tuple[DivergentId, ...]
) -> tuple[Outcome, tuple[str, ...]]:
    """WORSE over UNPROVED over NOT_WORSE; runs of other questions are neither better nor worse.

    A RED beside which a gate proved nothing, and a run with fewer passes, do not show that no more
    differs now.
    """
    if incomparable:
        others = " and ".join(incomparable)
        return Outcome.UNPROVED, (f"{others} not the same: other questions were asked",)
    worse, unproved = [], []
    if RANK[y.verdict] > RANK[x.verdict]:
        worse.append(f"the verdict went from {x.verdict.value} to {y.verdict.value}")
    new = tuple(entry.id for entry in ids if entry.change is IdChange.NEW)
    if new:
        worse.append(f"divergent now and not before: {some(new)} ({len(new)})")
    deeper = tuple(e.id for e in ids if (e.before, e.after) == (Kind.TOKEN, Kind.SCORE))
    if deeper:
        worse.append(f"differing in score, before in tokens alone: {some(deeper)} ({len(deeper)})")
    if len(y.contamination) > len(x.contamination):
        worse.append(
            f"answers with text of another request: {len(x.contamination)} before, "
            f"{len(y.contamination)} now"
        )
    if y.verdict is Verdict.UNVERIFIED:
        unproved.append("the verdict after the change is UNVERIFIED: it proves nothing")
    elif gaps := tuple(row.gate for row in y.gates if colour_of(row) is Verdict.UNVERIFIED):
        unproved.append(
            f"after the change {some(gaps)} proved nothing: more may differ than was seen"
        )
    if y.n_passes < x.n_passes:
        unproved.append(f"{y.n_passes} passes under load now, {x.n_passes} before: a shorter look")
    lost = tuple(entry.id for entry in ids if entry.change is IdChange.UNPROVED)
    if lost:
        unproved.append(f"divergent before, not proved co-batched now: {some(lost)} ({len(lost)})")
    outcome = Outcome.UNPROVED if unproved else Outcome.NOT_WORSE
    return Outcome.WORSE if worse else outcome, (*worse, *unproved)


def _reference(before: tuple[Row, ...], after: tuple[Row, ...]) -> Reference:
    earlier = {row.id: row.content_sha for row in before}
    states = {row.id: agreement_of(earlier.get(row.id), row.content_sha) for row in after}

    def having(agreement: Agreement) -> tuple[str, ...]:
        return tuple(name for name, state in states.items() if state is agreement)

    n_same = len(having(Agreement.SAME))
    return Reference(n_same, having(Agreement.CHANGED), having(Agreement.UNKNOWN))


def _gates(x: Certificate, y: Certificate) -> tuple[GateChange, ...]:
    before, after = ({row.gate: row for row in cert.gates} for cert in (x, y))
    return tuple(
        GateChange(name, before.get(name), after.get(name)) for name in {**before, **after}
    )


def _figures(x: Certificate, y: Certificate) -> tuple[Figure, ...]:
    u, v = x.throughput, y.throughput
    return (
        Figure("serial tokens/s", u.serial_tokens_per_s, v.serial_tokens_per_s),
        Figure("batched tokens/s", u.concurrent_tokens_per_s, v.concurrent_tokens_per_s),
        Figure("speed-up", u.speedup, v.speedup),
    )
