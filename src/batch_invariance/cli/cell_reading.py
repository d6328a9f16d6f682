"""Certificates read for a person: verified, and with what their evidence shows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from batch_invariance.cli.cert_files import verify_file
from batch_invariance.errors import BatchInvarianceError, CertificateError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.report_data import (
    CellReport,
    Detail,
    cell_report,
    certificate_of,
    wanted_answers,
)
from batch_invariance.invariance_diff.report_evidence import RunCollector, RunView
from batch_invariance.invariance_diff.verify import evidence_name, parse_certificate
from batch_invariance.live_invariance.evidence_file import read_lines

CHANGED = "the evidence changed while it was read"


def read_cell(path: Path, detail: Detail | None, evidence: Path | None = None) -> CellReport:
    """One certificate file, derived again from the evidence, which is looked for beside it.

    Without `detail` the evidence is verified and nothing is taken from it. Nothing is raised for
    what is wrong with the files: it is listed.
    """
    file = verify_file(path, evidence)
    problems, certificate, run = file.problems, None, None
    if file.view is not None:
        fields = parse_certificate(file.data)
        certificate = certificate_of(fields)
        if certificate is not None and detail is not None and not problems:
            try:
                run = _read_run(evidence or _beside(path, fields), certificate, detail)
            except BatchInvarianceError as error:
                problems = (str(error),)
    return cell_report(
        str(path), file.view, certificate, problems, run, detail or Detail(0, 0, 0, 0, 0, 0)
    )


def _beside(path: Path, fields: Mapping[str, object]) -> Path:
    return path.parent / evidence_name(fields)


def _read_run(path: Path, certificate: Certificate, detail: Detail) -> RunView | None:
    collector = RunCollector(wanted_answers(certificate, detail))
    reader = EvidenceReader(read_lines(path))
    for record in reader:
        collector.feed(record)
    if reader.sha256 != certificate.evidence.sha256:
        raise CertificateError("certificate", [CHANGED])
    return collector.view()


def bytes_to_read(paths: Sequence[Path]) -> int:
    """About how much evidence these certificates have; what cannot be seen counts nothing."""
    folders = {path.parent for path in paths}
    total = 0
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                total += sum(e.stat().st_size for e in entries if e.name.endswith(".jsonl"))
        except OSError:
            continue
    return total


def cell_as_json(report: CellReport) -> dict[str, object]:
    """One cell for `--json`. `verdict` is null unless the evidence bears it out."""
    view = report.view
    if view is None:
        return {"file": report.file, "verified": False, "problems": list(report.problems)}
    verified = not report.problems
    return {
        "file": report.file,
        "verified": verified,
        "problems": list(report.problems),
        "model": view.cell.model,
        "ctx": view.cell.ctx,
        "dispatch_n": view.cell.dispatch_n,
        "server_flags": list(view.subject.server_flags),
        "kv_label": view.subject.kv_label,
        "source": view.source.value,
        "verdict": view.verdict.value if verified else None,
        "claimed_verdict": view.verdict.value,
        "promotable": verified and view.promotable,
        "divergence_class": view.divergence_class,
        "decision_reasons": list(view.reasons),
        "contaminated_answers": _contaminated(report.certificate),
        "prompt_rate_upper_bound_95": view.power.bound_95,
        "speedup": view.speed.speedup,
        "ts_utc": view.ts_utc,
        "cell_sha256": view.cell_sha256,
    }


def _contaminated(certificate: Certificate | None) -> int | None:
    return None if certificate is None else len(certificate.contamination)
