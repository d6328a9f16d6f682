"""What changed in one cell: answers side by side, and text that belongs to another request."""

from __future__ import annotations

from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.formats.html_parts import marked_text, table
from batch_invariance.invariance_diff.pairs import DivergentTrial
from batch_invariance.invariance_diff.report_data import (
    CellReport,
    Detail,
    SideBySide,
    shown_divergences,
)
from batch_invariance.invariance_diff.report_lines import at_token, how_often, some, where


def contamination_part(report: CellReport) -> Markup | None:
    """The alarm, where an answer holds another's text."""
    certificate = report.certificate
    if certificate is None or not certificate.contamination:
        return None
    lines: list[Child] = [
        element("p", element("strong", "Contamination: answers hold text of other requests.")),
        element("p", "This is no rounding. What one user sent has reached another."),
    ]
    for foreign in report.foreign:
        trial = foreign.trial
        donors = some(tuple(f"{d.id} (its {d.kind.value})" for d in trial.donors))
        lines.append(
            element(
                "p",
                f"The answer to {trial.id} holds text of {donors}: pass {trial.pass_index}, "
                f"lane {trial.lane}",
            )
        )
        if foreign.excerpt is not None:
            lines.append(marked_text(foreign.excerpt))
    more = len(certificate.contamination) - len(report.foreign)
    if more > 0:
        lines.append(element("p", f"and {more} more answers with foreign text"))
    return element("div", *lines, class_="loud", role="alert")


def divergences_part(report: CellReport, detail: Detail) -> Markup | None:
    """The changed items, the first of them side by side; None where nothing changed."""
    certificate = report.certificate
    if certificate is None or not report.divergences:
        return None
    ac = certificate.divergence_report["AC"]
    parts: list[Child] = [element("h4", "What changed, alone against batched")]
    parts += [_side_by_side(one) for one in report.divergences]
    listed = shown_divergences(ac.per_id, detail.n_listed)[len(report.divergences) :]
    if listed:
        rows = [
            (e.id, how_often(e), where(e.first_divergence), at_token(e.first_divergence))
            for e in listed
        ]
        heads = ("Item", "How often", "First seen in", "First different token")
        parts.append(table("The next changed items", heads, rows, "wide"))
    more = len(ac.per_id) - len(report.divergences) - len(listed)
    if more > 0:
        parts.append(element("p", f"and {more} more changed items, in the certificate"))
    return joined(parts)


def _side_by_side(one: SideBySide) -> Markup:
    entry, first = one.entry, one.entry.first_divergence
    parts: list[Child] = [
        element("p", element("strong", entry.id), f": {how_often(entry)}"),
        element("p", element("span", f"first in {where(first)}", class_="mute")),
    ]
    token = at_token(first)
    if token:
        parts.append(element("p", f"First different {token}"))
    if one.a is not None and one.c is not None:
        sides = (("Alone (A)", one.a), ("Batched (C)", one.c))
        figures = [
            element("figure", element("figcaption", name), marked_text(text))
            for name, text in sides
        ]
        parts.append(element("div", *figures, class_="two"))
    if one.same_text:
        parts.append(element("p", "The tokens differ and spell the same text.", class_="note"))
    if one.choices:
        rows = [
            (_whose(c.token, first), _nats(c.logprob_a), _nats(c.logprob_c)) for c in one.choices
        ]
        heads = ("Token", "Alone", "Batched")
        parts.append(table("Their logprobs in nats", heads, rows))
    return element("div", *parts, class_="div")


def _whose(token: int, first: DivergentTrial) -> str:
    return f"{token} ({'alone' if token == first.token_x else 'batched'})"


def _nats(value: float | None) -> str:
    return "not listed" if value is None else f"{value:.6f}"
