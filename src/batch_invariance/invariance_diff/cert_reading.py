"""A typed view of a certificate's JSON: what the verbs that read certificates need of one.

It says what the file says and proves nothing: `verify_certificate` does that. Fields may be added
to certificates, so unknown ones are passed over; a field that is absent is None, which whoever
judges counts against the cell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batch_invariance.errors import CertificateError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.gates import GateResult
from batch_invariance.invariance_diff.json_fields import JsonFields
from batch_invariance.invariance_diff.model import Outcome, Source, Status, Verdict
from batch_invariance.invariance_diff.verdict import STATUS_OF

VERDICT_OF = {status: verdict for verdict, status in STATUS_OF.items()}
_GATE_ROW = re.compile(rb'\s*"gate": "(\w+)"')


@dataclass(frozen=True, slots=True)
class CellName:
    """What a cell is called: model, context per slot in tokens, slots. As text `MODEL/CTX/N`."""

    model: str
    ctx: int
    dispatch_n: int

    def __str__(self) -> str:
        return f"{self.model}/{self.ctx}/{self.dispatch_n}"


@dataclass(frozen=True, slots=True)
class SubjectView:
    """What was tested. `executables` holds, for each launch, the digest of what really ran, None
    where the system did not show it; `libraries` is name and digest, over all launches."""

    model_file: str | None
    model_sha256: str | None
    server_file: str | None
    server_sha256: str | None
    server_version: str | None
    executables: tuple[str | None, ...]
    libraries: tuple[tuple[str, str], ...]
    server_flags: tuple[str, ...]
    kv_label: str | None


@dataclass(frozen=True, slots=True)
class PowerView:
    """What the run could see: the bound to quote (a rate), diverging trials of C, co-batched
    trials and prompts, token positions compared in all and in the longest item, proved batch."""

    bound_95: float | None
    n_divergent: int | None
    n_hot_trials: int | None
    n_hot_prompts: int | None
    horizon_total: int | None
    horizon_longest: int | None
    tested_n: int | None
    witness: str | None


@dataclass(frozen=True, slots=True)
class SpeedView:
    """Generated tokens per second, serial and batched, and the second over the first."""

    serial: float | None
    concurrent: float | None
    speedup: float | None


@dataclass(frozen=True, slots=True)
class InputsView:
    """What the cell was measured with, by name and digest; digests are SHA-256 in hexadecimal."""

    workset_name: str | None
    workset_sha256: str | None
    scorer_name: str | None
    scorer_sha256: str | None
    schedule_sha256: str | None
    evidence_file: str | None
    evidence_sha256: str | None


@dataclass(frozen=True, slots=True)
class CertView:
    """One certificate. `gates` is empty where the file has no gate table; `mismatch` and
    `token_divergence_ids` are ids whose score, or whose tokens, differ under load. `ts_utc`: when
    the run began; `shared_ts_utc`: when the arms did that it took from a run of their own."""

    cell: CellName
    status: Status
    verdict: Verdict
    source: Source
    promotable: bool
    rules_version: int | None
    gates: tuple[GateResult, ...]
    reasons: tuple[str, ...]
    divergence_class: str | None
    anomaly: str | None
    mismatch: tuple[str, ...]
    token_divergence_ids: tuple[str, ...]
    cell_sha256: str | None
    ts_utc: str | None
    shared_ts_utc: tuple[str | None, ...]
    tool: str | None
    subject: SubjectView
    power: PowerView
    speed: SpeedView
    inputs: InputsView


def view_of(certificate: Certificate) -> CertView:
    """The view of a certificate that was just derived."""
    return read_view(certificate.to_json())


def read_view(cert: Mapping[str, Any]) -> CertView:
    """The view of a certificate's JSON object, as `parse_certificate` gives it.

    Raises CertificateError that lists every field of a wrong type, every required field that is
    absent, and a `verdict` that is not the one of `status`.
    """
    fields = JsonFields(cert)
    model, ctx, slots = fields.text("model"), fields.count("ctx"), fields.count("dispatch_n")
    status, source = fields.word("status", Status), fields.word("source", Source)
    verdict = fields.word("verdict", Verdict)
    if status is not None and verdict is not None and VERDICT_OF[status] is not verdict:
        fields.issues.append(f"verdict {verdict.value} is not what status {status.value} means")
    common = _common(fields)
    for name in ("model", "ctx", "dispatch_n", "status", "source"):
        if cert.get(name) is None:
            fields.issues.append(f"lacks {name!r}")
    if fields.issues or model is None or ctx is None or slots is None or not (status and source):
        raise CertificateError("certificate", fields.issues)
    return CertView(
        cell=CellName(model, ctx, slots),
        status=status,
        verdict=VERDICT_OF[status],
        source=source,
        **common,
    )


def lines_of_gates(data: bytes) -> dict[str, int]:
    """Gate -> the line, from 1, on which a certificate file names it."""
    found = {}
    for number, line in enumerate(data.splitlines(), 1):
        match = _GATE_ROW.match(line)
        if match is not None:
            found[match[1].decode("ascii", "replace")] = number
    return found


def _common(fields: JsonFields) -> dict[str, Any]:
    return {
        "promotable": fields.flag("promotable") is True,
        "rules_version": fields.count("rules_version"),
        "gates": _gates(fields),
        "reasons": fields.texts("decision_reasons"),
        "divergence_class": fields.text("divergence_class"),
        "anomaly": fields.text("anomaly"),
        "mismatch": fields.texts("mismatch"),
        "token_divergence_ids": fields.texts("token_divergence_ids"),
        "cell_sha256": fields.text("cell_sha256"),
        "ts_utc": fields.text("ts_utc"),
        "shared_ts_utc": tuple(row.text("ts_utc") for row in fields.rows("shared_arms")),
        "tool": fields.text("observer.tool"),
        "subject": _subject(fields),
        "power": PowerView(
            bound_95=fields.number("sensitivity.prompt_rate_upper_bound_95"),
            n_divergent=fields.count("sensitivity.n_ac_divergent"),
            n_hot_trials=fields.count("sensitivity.n_hot_trials"),
            n_hot_prompts=fields.count("sensitivity.n_hot_prompts"),
            horizon_total=fields.count("horizon.total"),
            horizon_longest=fields.count("horizon.longest"),
            tested_n=fields.count("overlap.tested_n"),
            witness=fields.text("overlap.witness"),
        ),
        "speed": SpeedView(
            serial=fields.number("throughput.serial_tokens_per_s"),
            concurrent=fields.number("throughput.concurrent_tokens_per_s"),
            speedup=fields.number("throughput.speedup"),
        ),
        "inputs": InputsView(
            workset_name=fields.text("workset.name"),
            workset_sha256=fields.text("workset.sha256"),
            scorer_name=fields.text("scorer.name"),
            scorer_sha256=fields.text("scorer.sha256"),
            schedule_sha256=fields.text("schedule.digest"),
            evidence_file=fields.text("evidence.file"),
            evidence_sha256=fields.text("evidence.sha256"),
        ),
    }


def _subject(fields: JsonFields) -> SubjectView:
    starts = [launch.part("start") for launch in fields.rows("lifetimes")]
    libraries = {
        (name, digest)
        for start in starts
        for name, digest in start.part("libraries").source.items()
        if isinstance(digest, str)
    }
    return SubjectView(
        model_file=fields.text("subject.model.file"),
        model_sha256=fields.text("subject.model.sha256"),
        server_file=fields.text("subject.server_file"),
        server_sha256=fields.text("subject.server_sha256"),
        server_version=fields.text("subject.server_version"),
        executables=tuple(start.text("executable_sha256") for start in starts),
        libraries=tuple(sorted(libraries)),
        server_flags=fields.texts("promotion_scope.valid_for.server_flags"),
        kv_label=fields.text("kv_label"),
    )


def _gates(fields: JsonFields) -> tuple[GateResult, ...]:
    rows = []
    for row in fields.rows("gates"):
        gate, outcome = row.text("gate"), row.word("outcome", Outcome)
        if gate is None or outcome is None:
            fields.issues.append("gates: a row lacks its gate or its outcome")
            continue
        colour = row.word("colour_on_fail", Verdict)
        said = row.text("measured") or "", row.text("required") or ""
        rows.append(GateResult(gate, outcome, *said, colour, row.text("reason")))
    return tuple(rows)
