"""What a report says of a server that the tool did not start. Plain text, not yet made safe."""

from __future__ import annotations

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.endpoint_report import EndpointReport, InvarianceClaim

MAX_NAMES = 6


def claim_words(claim: InvarianceClaim) -> str:
    """What the measurement says of the mode that the operator claims."""
    if claim.borne_out is None:
        return "neither borne out nor refuted by this run"
    if claim.borne_out:
        return "the measurement bears it out, bit for bit, for what was compared"
    return "the measurement does not bear it out"


def traffic_words(report: EndpointReport) -> str | None:
    """What was generated for others meanwhile; None where nothing was."""
    if not report.foreign_traffic:
        return None
    tokens = sum(part.tokens for part in report.foreign_traffic)
    shown = report.foreign_traffic[:MAX_NAMES]
    passes = ", ".join(f"{part.arm.value}{part.pass_index}" for part in shown)
    return f"{tokens} tokens generated for others beside {passes}; they were companions too"


def endpoint_facts(certificate: Certificate) -> list[tuple[str, str | None]]:
    """Name and text of what is known about the server; empty for a server of our own."""
    report = certificate.endpoint
    if report is None:
        return []
    can, has = report.capabilities, report.offered
    heeded = [
        "logprobs" if can.logprobs else "no logprobs",
        f"tokens named by {can.tokens.value}" if can.tokens.value != "none" else "no tokens",
        "heeds logit_bias" if can.logit_bias else "heeds no logit_bias",
        "reports its cache" if can.reports_cache or has.cached else "silent about its cache",
    ]
    said = "; ".join(f"{place}: {text}" for place, text in sorted(report.said.items()))
    waited = f"{report.n_rate_limited} requests waited and went out again"
    context = f"{certificate.ctx} tokens" if certificate.ctx else "not told"
    return [
        ("Address", report.url),
        ("Model, as requests name it", certificate.subject.model.file),
        ("Engine", f"{report.engine.value}, {certificate.subject.server_version or 'no version'}"),
        ("What it says of itself", said or "nothing"),
        ("Said otherwise at the end", ", ".join(report.changed) or None),
        ("What its answers hold", ", ".join(heeded)),
        ("Parameters that it refuses", ", ".join(can.refused) or None),
        ("Other traffic", traffic_words(report)),
        ("Rate limit", waited if report.n_rate_limited else None),
        ("It would have to offer", "; ".join(report.wants) or None),
        ("Context, concurrency", f"{context}, {certificate.dispatch_n} at once"),
        ("Not known", "weights, flags, KV types, machine, and what lies between"),
    ]
