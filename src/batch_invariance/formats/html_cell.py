"""One certificate as a section of the report, from its verdict to the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterator

from batch_invariance.formats.html_changes import contamination_part, divergences_part
from batch_invariance.formats.html_charts import Histogram, bar, histograms
from batch_invariance.formats.html_facts import facts_part, repeat_part
from batch_invariance.formats.html_gates import gates_part
from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.formats.html_parts import (
    LETTER,
    cell_name,
    chip,
    table,
)
from batch_invariance.formats.html_run import run_part
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.impact import ScoreImpact
from batch_invariance.invariance_diff.report_data import (
    CellReport,
    Detail,
)
from batch_invariance.invariance_diff.report_lines import (
    bound_of,
    class_words,
    drift_words,
    headline,
    impact_words,
    is_of_no_model,
    space_words,
    speed_words,
    times,
    why,
)
from batch_invariance.invariance_diff.report_words import SOURCE_WORDS


def cell_section(report: CellReport, anchor: str, opened: bool, detail: Detail) -> Markup:
    """One cell, folded up unless `opened`; `anchor` is the id that links lead to."""
    letter = LETTER[report.standing]
    summary = element(
        "summary",
        chip(report.standing),
        element("h3", cell_name(report)),
        element("span", why(report), class_="why"),
        element("span", class_="more"),
    )
    # The id lies inside, so that a link to it unfolds the section.
    body = element("div", *_body(report, detail), class_="body", id=anchor)
    return element("details", summary, body, class_=f"c c{letter}", open=opened)


def _body(report: CellReport, detail: Detail) -> Iterator[Child]:
    yield contamination_part(report)
    yield _verdict(report)
    certificate = report.certificate
    if certificate is not None:
        yield _figures(certificate, report)
        yield divergences_part(report, detail)
        yield run_part(report, detail)
        yield _pair(None if report.problems else _closeness(certificate), _batches(certificate))
    yield gates_part(report)
    if certificate is not None:
        yield _pair(_speed(certificate), _score(certificate))
    yield facts_part(report)
    yield repeat_part(report)


def _pair(left: Markup | None, right: Markup | None) -> Markup:
    """Two parts side by side where the page is wide enough."""
    shown = [element("div", part) for part in (left, right) if part is not None]
    return element("div", *shown, class_="pair")


def _verdict(report: CellReport) -> Markup:
    text = headline(report)
    lines: list[Child] = [
        element("p", element("strong", f"{report.standing.value}: "), text + "."),
    ]
    view = report.view
    if report.problems:
        lines.append(element("p", "What stands below is only what the file claims. What is wrong:"))
        lines.append(element("ul", *(element("li", p) for p in report.problems[:8])))
    else:
        lines.append(
            element("p", "Verified: this certificate was derived again from its evidence.")
        )
    if view is not None and view.divergence_class:
        lines.append(
            element(
                "p",
                element("strong", view.divergence_class),
                ": ",
                class_words(view.divergence_class),
            )
        )
    if view is not None and view.reasons:
        lines.append(element("ul", *(element("li", reason) for reason in view.reasons[:8])))
    if view is not None and is_of_no_model(report):
        lines.append(element("p", f"Measured was {SOURCE_WORDS[view.source]}."))
    return element("div", *lines)


def _figures(certificate: Certificate, report: CellReport) -> Markup:
    ac = certificate.divergence_report.get("AC")
    changed = len(certificate.mismatch)
    bound = bound_of(report)
    n = certificate.workset.n_items
    impact = certificate.score_impact
    coverage = certificate.cobatch_coverage
    pairs: list[tuple[str, Child]] = [
        ("Speed-up from batching", times(certificate.throughput.speedup)),
        ("Scored answers changed", f"{changed} of {n}"),
        ("Changed in tokens alone", None if ac is None else f"{ac.n_token_only} of {n}"),
        (
            "Change of the mean score",
            None if impact.difference is None else f"{impact.difference:+.4f}",
        ),
        (
            "Largest batch proved",
            f"{certificate.overlap.tested_n} of {certificate.dispatch_n}",
        ),
        ("Prompts proved co-batched", f"{coverage.n_co_batched} of {coverage.n_ids}"),
        (
            "Prompts that may change, at most",
            None
            if bound is None
            else joined((f"{bound:.1%}", element("small", "with 95 % confidence"))),
        ),
    ]
    return _tiles(pairs)


def _tiles(pairs: list[tuple[str, Child]]) -> Markup:
    """One without a value is left out."""
    tiles = [
        element("div", element("dt", name), element("dd", value))
        for name, value in pairs
        if value is not None
    ]
    return element("dl", *tiles, class_="figures")


def _closeness(certificate: Certificate) -> Markup:
    drift = certificate.divergence_report["AC"].logit_drift
    charts = (
        Histogram(
            "how far logprobs moved under load, nats",
            drift.moves,
            "h-drift",
            "no logprob moved at all",
        ),
        Histogram(
            "how near the second-best token was, nats",
            certificate.closeness.margins,
            "h-margin",
            "no alternatives were recorded",
        ),
    )
    text = f"{drift_words(certificate)}. "
    return joined(
        (
            element("h4", "Drift and margins"),
            element(
                "p",
                text[:1].upper() + text[1:],
                f"{drift.n_moved} of {drift.n_positions} compared positions moved. Where the two "
                "hills meet, a token can turn.",
            ),
            histograms(charts),
        )
    )


def _batches(certificate: Certificate) -> Markup:
    space, overlap = certificate.schedule_space, certificate.overlap
    text = space_words(space, overlap.witness, overlap.tested_n)
    parts: list[Child] = [
        element("h4", "Which batches there were"),
        element("p", text[:1].upper() + text[1:] + "."),
    ]
    if space.ids_at_batch_size:
        n = max(1, certificate.workset.n_items)
        rows = [
            (size, joined((bar(count / n), f" {count} of {n}")))
            for size, count in space.ids_at_batch_size.items()
        ]
        caption = "Items that generated in a batch of each size"
        parts.append(table(caption, ("Batch size", "Items"), rows))
    missed = [str(b.tokens) for b in space.boundaries if not b.crossed]
    if missed:
        parts.append(
            element(
                "p",
                f"No sequence crossed {', '.join(missed)} tokens, lengths at which engines change "
                "their way.",
                class_="note",
            )
        )
    return joined(parts)


def _score(certificate: Certificate) -> Markup | None:
    impact = certificate.score_impact
    words = impact_words(impact)
    if not words:
        return None
    parts: list[Child] = [
        element("h4", "What it does to the score"),
        element("p", words[:1].upper() + words[1:] + "."),
    ]
    families = {k: v for k, v in (impact.by_family or {}).items() if v.n_scored}
    if len(families) > 1:
        heads = ("Family", "Changed", "Down", "Up", "Alone", "Batched", "Difference")
        rows = [_family(name, one) for name, one in families.items()]
        parts.append(table("Score by family", heads, rows))
    return joined(parts)


def _family(name: str, one: ScoreImpact) -> tuple[Child, ...]:
    def figure(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return (
        name,
        f"{one.n_changed} of {one.n_scored}",
        str(one.n_worse),
        str(one.n_better),
        figure(one.mean_a, ".4f"),
        figure(one.mean_c, ".4f"),
        figure(one.difference, "+.4f"),
    )


def _speed(certificate: Certificate) -> Markup | None:
    words, t = speed_words(certificate), certificate.throughput
    if not words or not t.serial_tokens_per_s or not t.concurrent_tokens_per_s:
        return None
    most = max(t.serial_tokens_per_s, t.concurrent_tokens_per_s)
    rows = []
    for name, generated, read, paint in (
        ("serial", t.serial_tokens_per_s, t.serial_prompt_tokens_per_s, "quiet"),
        ("batched", t.concurrent_tokens_per_s, t.concurrent_prompt_tokens_per_s, ""),
    ):
        figure = joined((bar(generated / most, paint), f" {generated:.1f}"))
        rows.append((name, figure, "unknown" if read is None else f"{read:.1f}"))
    heads = ("How", "Generated tokens/s", "Prompt tokens/s")
    return joined(
        (
            element("h4", "Throughput"),
            element("p", words[:1].upper() + words[1:] + "."),
            table("Tokens per second of wall time", heads, rows),
        )
    )
