"""What a person is told about a server of someone else: before the run, and after it."""

from __future__ import annotations

from collections.abc import Mapping

from batch_invariance.cli.style import Style
from batch_invariance.formats.case_words import TOKENS
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.endpoint import Endpoint, wants
from batch_invariance.invariance_diff.lifetime_rate import LifetimeRate
from batch_invariance.invariance_diff.report_endpoint import claim_words, traffic_words
from batch_invariance.live_invariance.endpoint_client import Limits
from batch_invariance.live_invariance.endpoint_prepare import Amount
from batch_invariance.live_invariance.text import printable


def notice(url: str, amount: Amount, limits: Limits) -> list[str]:
    """What will be sent, said before it is."""
    parts = ", ".join(f"{name} {n}" for name, n in amount.requests)
    lines = [
        f"this sends up to {amount.n_requests} requests to {printable(url)}: {parts}",
        f"  at most {amount.generated} generated tokens, and about {amount.prompts} of prompts",
    ]
    capped = []
    if limits.requests is not None:
        capped.append(f"{limits.requests} requests")
    if limits.tokens is not None:
        capped.append(f"{limits.tokens} tokens")
    lines.append(f"  cap: {' and '.join(capped) or 'none (--max-requests, --max-total-tokens)'}")
    return lines


def notice_as_json(url: str, amount: Amount) -> Mapping[str, object]:
    """The same for a program."""
    return {
        "url": url,
        "requests": dict(amount.requests),
        "n_requests": amount.n_requests,
        "generated_tokens": amount.generated,
        "prompt_tokens_guessed": amount.prompts,
    }


def found_lines(endpoint: Endpoint) -> list[str]:
    """What the probes found, in short."""
    can, has = endpoint.capabilities, endpoint.offered
    witness = has.steps or has.running or "none"
    offers = [
        f"tokens compared {TOKENS[can.tokens]}",
        f"witness {witness}",
        "heeds logit_bias" if can.logit_bias else "heeds no logit_bias",
        "reports its cache" if can.reports_cache or has.cached else "silent about its cache",
    ]
    lines = [f"server: {endpoint.engine.value}; {'; '.join(offers)}"]
    if can.refused:
        lines.append(f"  it refuses {', '.join(can.refused)}")
    return lines + [f"  it would have to offer {want}" for want in wants(endpoint)]


def endpoint_lines(cert: Certificate, style: Style) -> list[str]:
    """The part of a summary that is about the server."""
    report = cert.endpoint
    if report is None:
        return []
    lines = [
        f"server: {report.engine.value} at {printable(report.url)}, "
        f"{printable(cert.subject.server_version or 'version not told')}; witness "
        f"{cert.overlap.witness}"
    ]
    claim = report.claim
    if claim is not None:
        words = claim_words(claim)
        words = style.bold(words) if claim.borne_out is False else words
        lines.append(f"claim: {printable(claim.text)}: {words}")
    traffic = traffic_words(report)
    if traffic is not None:
        lines.append(f"other traffic: {traffic}")
    if report.n_rate_limited:
        lines.append(f"rate limit: {report.n_rate_limited} requests waited and went out again")
    return lines + [f"the server would have to offer {want}" for want in report.wants]


def lifetime_lines(rate: LifetimeRate, style: Style) -> list[str]:
    """One line for each lifetime, and the rate."""
    lines = []
    for number, one in enumerate(rate.lifetimes, 1):
        seen = "" if one.restart_seen or number == 1 else ", and nothing shows the restart"
        lines.append(f"{style.verdict(one.verdict)}  lifetime {number}: {one.certificate}{seen}")
    text = f"lifetime rate: {rate.n_diverged} of {rate.n_judged} judged lifetimes diverged"
    if rate.rate_upper_bound_95 is not None:
        text += f"; with 95 % confidence fewer than {rate.rate_upper_bound_95:.1%} do"
    if rate.n_judged < rate.n:
        text += f"; {rate.n - rate.n_judged} of {rate.n} prove neither"
    lines.append(style.bold(text))
    if rate.n_reference_changed:
        lines.append(
            f"the serial answers to {rate.n_reference_changed} items differ between lifetimes"
        )
    return lines
