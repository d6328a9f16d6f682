"""Certificates read for a person: verified, and with what their evidence shows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batch_invariance.cli.cert_files import verify_file
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.report_data import (
    CellReport,
    Detail,
    cell_report,
    certificate_of,
    wanted_answers,
)
from batch_invariance.invariance_diff.report_evidence import RunCollector

NOTHING = Detail(0, 0, 0, 0, 0, 0)
"""Nothing of the evidence is shown."""


def read_cell(path: Path, detail: Detail | None, evidence: Path | None = None) -> CellReport:
    """One certificate file, derived again from the evidence, which is looked for beside it.

    Without `detail` the evidence is verified and nothing is taken from it. Nothing is raised for
    what is wrong with the files: it is listed.
    """
    look = _Look(detail)
    file = verify_file(path, evidence, look)
    run = None if look.collector is None or file.problems else look.collector.view()
    certificate = file.derived
    if certificate is None and file.view is not None:
        certificate = certificate_of(look.fields)
    return cell_report(str(path), file.view, certificate, file.problems, run, detail or NOTHING)


class _Look:
    """Keeps a certificate's JSON, and makes what collects from its evidence."""

    def __init__(self, detail: Detail | None) -> None:
        self._detail = detail
        self.fields: Mapping[str, Any] = {}
        self.collector: RunCollector | None = None

    def __call__(self, fields: Mapping[str, Any]) -> RunCollector | None:
        self.fields = fields
        if self._detail is None:
            return None
        self.collector = RunCollector(wanted_answers(fields, self._detail))
        return self.collector


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
