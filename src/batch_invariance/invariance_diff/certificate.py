"""The certificate: one JSON object per cell, derived from evidence and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.endpoint_report import EndpointReport, report_of
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.facts import ContaminatedTrial, Facts, Lifetime, LostTrial
from batch_invariance.invariance_diff.gates import OK_MODE, Examined, GateResult, evaluate, examine
from batch_invariance.invariance_diff.gates_endpoint import table_of
from batch_invariance.invariance_diff.impact import Closeness, ScoreImpact, closeness_of, impact_of
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import (
    Arm,
    Outcome,
    ScorerInfo,
    Source,
    Status,
    Verdict,
)
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.pairs import PairReport
from batch_invariance.invariance_diff.proof import Coverage, Overlap
from batch_invariance.invariance_diff.records import (
    Event,
    Header,
    Identity,
    LifetimeStart,
    Observer,
    Resumed,
    Subject,
)
from batch_invariance.invariance_diff.schedule_space import ScheduleSpace
from batch_invariance.invariance_diff.sections import (
    Claims,
    Controls,
    Horizon,
    PromotionScope,
    Row,
    Sensitivity,
    Throughput,
    claims_of,
    controls_of,
    horizon_of,
    rows_of,
    scope_of,
    sensitivity_of,
    throughput_of,
)
from batch_invariance.invariance_diff.shared_arm import SharedArmRef, reference_of
from batch_invariance.invariance_diff.verdict import decide_status, divergence_class, promotable

LOST_EVENT = "lost_trial"
"""Repeats what `lost_trials` lists, with the server's words; kept out of the certificate."""
FLOOR_GATE = "F2_completion_floor"


@dataclass(frozen=True, slots=True)
class ArmB:
    """The slot-allocation control in short: score-identical to A, and to C."""

    ab_passed: bool
    bc_passed: bool


@dataclass(frozen=True, slots=True)
class CompletionFloor:
    """Gate F2's figures: answered and non-answered trials by failure mode, per arm."""

    n_ok_a: int
    n_ok_b: int
    n_ok_c: int
    n_failure_a: Mapping[str, int]
    n_failure_b: Mapping[str, int]
    n_failure_c: Mapping[str, int]
    min_ok_fraction: float
    completion_floor_ok: bool


@dataclass(frozen=True, slots=True)
class WorkSetRef:
    """The work-set by name, digest and size."""

    name: str
    sha256: str
    n_items: int


@dataclass(frozen=True, slots=True)
class ScheduleRef:
    """The schedules by digest: the file they come from (None: built in), their seed, and one line
    per planned pass."""

    file: str | None
    seed: int
    digest: str
    passes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LifetimeReport:
    """One launch of the server, as asked and as it ended. The end of a dead server's log may hold
    prompts and stays in the evidence."""

    start: LifetimeStart
    identity_at_end: Identity | None
    cut_off: bool
    exit_code: int | None
    exit_signal: int | None


@dataclass(frozen=True, slots=True)
class EvidenceRef:
    """The evidence this certificate derives from: file name beside it, digest, records."""

    file: str
    sha256: str
    records: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """The verdict about one cell. Field by field: docs/output-contract.md."""

    schema_version: int
    rules_version: int
    gate: str
    model: str
    ctx: int
    dispatch_n: int
    status: Status
    verdict: Verdict
    source: Source
    promotable: bool
    decision_reasons: tuple[str, ...]
    gates: tuple[GateResult, ...]
    divergence_class: str | None
    anomaly: str | None
    mismatch: tuple[str, ...]
    token_divergence_ids: tuple[str, ...]
    arm_b: ArmB
    per_pass_ac_divergent: Mapping[str, tuple[str, ...]]
    per_pass_ac_token_only: Mapping[str, tuple[str, ...]]
    divergence_report: Mapping[str, PairReport]
    overlap: Overlap
    overlap_ok: bool
    completion_floor: CompletionFloor
    cobatch_coverage: Coverage
    sensitivity: Sensitivity
    promotion_scope: PromotionScope
    invariant_fields: tuple[str, ...]
    kv_label: str
    n_passes: int
    ts_utc: str
    cell_sha256: str
    subject: Subject
    observer: Observer
    workset: WorkSetRef
    workset_sha256: str
    scorer: ScorerInfo
    schedule: ScheduleRef
    claims: Claims
    horizon: Horizon
    throughput: Throughput
    score_impact: ScoreImpact
    closeness: Closeness
    schedule_space: ScheduleSpace
    controls: Controls
    contamination: tuple[ContaminatedTrial, ...]
    lost_trials: tuple[LostTrial, ...]
    untested_ids: tuple[str, ...]
    events: tuple[Event, ...]
    lifetimes: tuple[LifetimeReport, ...]
    shared_arms: tuple[SharedArmRef, ...]
    resumed: tuple[Resumed, ...]
    n_void_passes: int
    evidence: EvidenceRef
    rows: tuple[Row, ...]
    endpoint: EndpointReport | None = None

    def to_json(self) -> dict[str, Any]:
        """The certificate as a JSON object; `endpoint` is there for such a source alone."""
        result: dict[str, Any] = to_json(self)
        if not self.shared_arms:
            # So the file of a run that shares nothing is the same as before there were sweeps.
            del result["shared_arms"]
        if self.endpoint is None:
            del result["endpoint"]
        return result

    def to_bytes(self) -> bytes:
        """The file's bytes: sorted keys, two spaces, one newline at the end."""
        text = json.dumps(self.to_json(), sort_keys=True, indent=2, allow_nan=False)
        return text.encode("ascii") + b"\n"


def certify(
    lines: Iterable[bytes], evidence_file: str, onlooker: Onlooker | None = None
) -> Certificate:
    """Derives the certificate from the lines of one evidence file.

    The only way to a certificate; `run-live` uses it on the bytes it has just written. `onlooker`
    sees what the facts are made of. Raises EvidenceError where the lines are not evidence.
    """
    reader = EvidenceReader(lines)
    facts = measure(reader, onlooker)
    return build_cert(examine(facts), EvidenceRef(evidence_file, reader.sha256, reader.n_records))


def cell_sha256(facts: Facts) -> str:
    """Digest of everything that could change the cell's arithmetic."""
    header = facts.header
    starts = [life.start for life in facts.lifetimes]
    address = {} if header.endpoint is None else {"url": header.endpoint.url}
    return digest_of(
        {
            **address,
            "cell": to_json(header.cell),
            "model_sha256": header.subject.model.sha256,
            "server_version": header.subject.server_version,
            "builds": sorted({str(s.identity.build) for s in starts}),
            "executables": sorted({str(s.executable_sha256) for s in starts}),
            "libraries": sorted({n + "=" + d for s in starts for n, d in s.libraries.items()}),
            "sampling": header.plan.sampling.to_json(),
        }
    )


def build_cert(examined: Examined, evidence: EvidenceRef) -> Certificate:
    """Puts the certificate together from examined facts."""
    facts = examined.facts
    header = facts.header
    results = evaluate(examined, table_of(facts))
    decision = decide_status(results)
    claims = claims_of(examined, results, decision.verdict)
    gate = rules.PRODUCER_GATE if header.endpoint is None else rules.ENDPOINT_GATE
    pairs = facts.pairs
    cell = header.cell
    return Certificate(
        schema_version=rules.CERTIFICATE_SCHEMA,
        rules_version=rules.RULES_VERSION,
        gate=gate,
        model=cell.model,
        ctx=cell.ctx,
        dispatch_n=cell.dispatch_n,
        status=decision.status,
        verdict=decision.verdict,
        source=header.source,
        promotable=promotable(results, decision.verdict, header.source, gate),
        decision_reasons=decision.reasons,
        gates=results,
        divergence_class=divergence_class(examined, results, decision.verdict),
        anomaly=decision.anomaly,
        mismatch=pairs["AC"].divergent_ids,
        token_divergence_ids=pairs["AC"].token_divergence_ids,
        arm_b=ArmB(pairs["AB"].passed, pairs["BC"].passed),
        per_pass_ac_divergent={str(i): tuple(s) for i, (s, _) in facts.per_pass.items() if s},
        per_pass_ac_token_only={str(i): tuple(t) for i, (_, t) in facts.per_pass.items() if t},
        divergence_report=pairs,
        overlap=examined.overlap,
        overlap_ok=examined.overlap.overlap_ok,
        completion_floor=_completion_floor(examined, results),
        cobatch_coverage=examined.coverage,
        sensitivity=sensitivity_of(examined),
        promotion_scope=scope_of(header),
        invariant_fields=rules.INVARIANT_FIELDS,
        kv_label=kv_label(header),
        n_passes=sum(p.arm is Arm.C for p in header.plan.passes),
        ts_utc=header.ts_utc,
        cell_sha256=cell_sha256(facts),
        subject=header.subject,
        observer=header.observer,
        workset=WorkSetRef(header.workset.name, header.workset.sha256, len(facts.items)),
        workset_sha256=header.workset.sha256,
        scorer=header.scorer,
        schedule=_schedule(header),
        claims=claims,
        horizon=horizon_of(examined),
        throughput=throughput_of(facts),
        score_impact=impact_of(facts),
        closeness=closeness_of(facts),
        schedule_space=facts.space.report(cell.dispatch_n, cell.n_ubatch),
        controls=controls_of(facts),
        contamination=tuple(facts.contaminated),
        lost_trials=tuple(facts.lost),
        untested_ids=tuple(facts.untested),
        events=tuple(e for e in facts.events if e.what != LOST_EVENT),
        lifetimes=tuple(_lifetime(life) for life in facts.lifetimes),
        shared_arms=tuple(reference_of(record) for record in facts.shared_arms),
        resumed=tuple(facts.resumed),
        n_void_passes=facts.n_void_passes,
        evidence=evidence,
        rows=rows_of(examined),
        endpoint=report_of(facts, claims, decision.verdict),
    )


def _lifetime(life: Lifetime) -> LifetimeReport:
    end = life.end
    ended = end.exit if end is not None else None
    return LifetimeReport(
        life.start,
        end.identity if end is not None else None,
        life.cut_off,
        ended.code if ended is not None else None,
        ended.signal if ended is not None else None,
    )


def kv_label(header: Header) -> str:
    """KV types and layout in short, such as `f16/f16 split`."""
    cell = header.cell
    layout = {True: "unified", False: "split", None: "layout unknown"}[cell.kv_unified]
    return f"{cell.kv_type_k}/{cell.kv_type_v} {layout}"


def _schedule(header: Header) -> ScheduleRef:
    passes = header.plan.passes
    return ScheduleRef(
        header.plan.schedule,
        header.plan.schedule_seed,
        digest_of(to_json(passes)),
        tuple(f"{p.arm.value}{p.pass_index} {p.kind.value} {p.ordering.value}" for p in passes),
    )


def _completion_floor(examined: Examined, results: tuple[GateResult, ...]) -> CompletionFloor:
    modes = examined.facts.failure_modes
    floor = next(g for g in results if g.gate == FLOOR_GATE)

    def failures(arm: str) -> dict[str, int]:
        return {k: n for k, n in sorted(modes.get(arm, {}).items()) if k != OK_MODE}

    return CompletionFloor(
        n_ok_a=modes.get("A", {}).get(OK_MODE, 0),
        n_ok_b=modes.get("B", {}).get(OK_MODE, 0),
        n_ok_c=modes.get("C", {}).get(OK_MODE, 0),
        n_failure_a=failures("A"),
        n_failure_b=failures("B"),
        n_failure_c=failures("C"),
        min_ok_fraction=rules.MIN_OK_FRACTION,
        completion_floor_ok=floor.outcome is Outcome.PASS,
    )
