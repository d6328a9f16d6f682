"""What was measured, who measured, with what, and how to measure it again."""

from __future__ import annotations

import shlex

from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.formats.html_parts import definitions
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.records import Observer
from batch_invariance.invariance_diff.report_data import CellReport
from batch_invariance.invariance_diff.report_repeat import repeat_of

MAX_LAUNCHES = 4


def facts_part(report: CellReport) -> Markup:
    """The facts of the certificate, or what can be said of a file that is none of this version."""
    certificate = report.certificate
    if certificate is None:
        return joined((element("h4", "The file"), definitions(_file(report), "facts")))
    return joined(
        (
            element("h4", "What was measured"),
            definitions(_subject(certificate), "facts"),
            element("h4", "Who measured, and with what"),
            definitions([*_observer(certificate), *_file(report)], "facts"),
        )
    )


def _file(report: CellReport) -> list[tuple[str, Child]]:
    view = report.view
    return [
        ("Certificate", element("code", report.file)),
        ("Measured at", None if view is None else view.ts_utc),
        ("Source", None if view is None else view.source.value),
    ]


def _subject(certificate: Certificate) -> list[tuple[str, Child]]:
    subject, model = certificate.subject, certificate.subject.model
    scope = certificate.promotion_scope.valid_for
    kind = [model.architecture, model.file_type, f"{model.size / 1e6:.1f} MB"]
    if model.expert_count is not None:
        kind.append(f"{model.expert_count} experts" if model.expert_count else "dense")
    executables = {life.start.executable_sha256 for life in certificate.lifetimes} - {None}
    builds = {life.start.identity.build for life in certificate.lifetimes} - {None}
    environment = " ".join(f"{k}={v}" for k, v in sorted(scope.environment.items()))
    return [
        ("Model", f"{model.file} ({', '.join(part for part in kind if part)})"),
        ("Model sha256", element("code", model.sha256)),
        ("Server", f"{subject.server_file}, {subject.server_version or 'version unknown'}"),
        ("Build", ", ".join(sorted(map(str, builds))) or None),
        (
            "Executable sha256",
            element("code", ", ".join(sorted(map(str, executables)))) if executables else None,
        ),
        ("Context, slots", f"{certificate.ctx} tokens per slot, {certificate.dispatch_n} slots"),
        ("Server flags", element("code", shlex.join(scope.server_flags) or "none")),
        ("Environment", element("code", environment) if environment else None),
        ("KV cache", certificate.kv_label),
        ("Cell sha256", element("code", certificate.cell_sha256)),
    ]


def _observer(certificate: Certificate) -> list[tuple[str, Child]]:
    scorer = certificate.scorer
    params = ", ".join(f"{k}={v}" for k, v in sorted(scorer.params.items()))
    resumed = len(certificate.resumed)
    workset = certificate.workset
    return [
        ("Observer", _host(certificate.observer)),
        ("Work-set", f"{workset.name}, {workset.n_items} items"),
        ("Work-set sha256", element("code", workset.sha256)),
        ("Scorer", f"{scorer.name}{f' ({params})' if params else ''}"),
        ("Passes", "; ".join(certificate.schedule.passes)),
        ("Interrupted", f"{resumed} times, and went on" if resumed else None),
        ("Evidence", f"{certificate.evidence.file}, {certificate.evidence.records} records"),
    ]


def _host(observer: Observer) -> str:
    cpus = "" if observer.cpu_count is None else f", {observer.cpu_count} processors"
    processor = "" if observer.processor is None else f", {observer.processor}"
    return (
        f"{observer.tool}, Python {observer.python}, {observer.system} "
        f"{observer.machine}{processor}{cpus}"
    )


def repeat_part(report: CellReport) -> Markup | None:
    """The command to measure the cell again, the servers as they were started, the check."""
    certificate = report.certificate
    if certificate is None:
        return None
    header = report.run.header if report.run is not None else None
    repeat = repeat_of(certificate, header)
    parts: list[Child] = [element("h4", "Measure it again")]
    if repeat.command is not None:
        parts.append(_command(repeat.command))
    if repeat.notes:
        parts.append(element("ul", *(element("li", note) for note in repeat.notes)))
    parts.append(element("p", "Derive the verdict again from the evidence:"))
    parts.append(_command(f"batch-invariance verify-cert {shlex.quote(report.file)}"))
    launches = [shlex.join(life.start.argv) for life in certificate.lifetimes]
    if launches:
        parts.append(element("p", "The servers as they were started:"))
        parts += [_command(launch) for launch in launches[:MAX_LAUNCHES]]
    if len(launches) > MAX_LAUNCHES:
        parts.append(element("p", f"and {len(launches) - MAX_LAUNCHES} more launches"))
    return joined(parts)


def _command(line: str) -> Markup:
    """A command that breaks between its words alone: an option torn apart reads as another."""
    words: list[Child] = []
    for word in line.split(" "):
        words += [" ", element("i", word)] if words else [element("i", word)]
    return element("pre", *words)
