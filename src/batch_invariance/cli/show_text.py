"""One certificate as lines for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from batch_invariance.cli.columns import beside, one_line, padded, wrapped
from batch_invariance.cli.style import Style
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.gates import GateResult
from batch_invariance.invariance_diff.model import Arm, Outcome, Verdict
from batch_invariance.invariance_diff.report_data import CellReport, Marked, SideBySide
from batch_invariance.invariance_diff.report_evidence import PassView, RunView
from batch_invariance.invariance_diff.report_lines import (
    at_token,
    cell_flags,
    class_words,
    drift_words,
    headline,
    how_often,
    impact_words,
    is_of_no_model,
    power,
    some,
    space_words,
    speed_words,
    where,
)
from batch_invariance.invariance_diff.report_repeat import repeat_of
from batch_invariance.invariance_diff.report_words import SOURCE_WORDS, Standing

INDENT = "  "
MOST_LANES = 16
MARKS = "[[", "]]"
"""Around the first difference, because bold alone does not survive a copy."""


def show_text(report: CellReport, style: Style, width: int) -> Iterator[str]:
    """The lines. `width`: columns to write into; commands are never broken."""
    yield from _head(report, style, width)
    yield from _contamination(report, style, width)
    certificate = report.certificate
    if certificate is not None:
        yield from _changed(report, certificate, style, width)
    yield from _gates(report, style, width)
    if certificate is not None:
        yield from _figures(report, certificate, style, width)
        if report.run is not None:
            yield from _timeline(report.run, certificate, style, width)
        yield from _facts(certificate, style, width)
        yield from _repeat(report, certificate, style, width)


def standing_word(standing: Standing, style: Style) -> str:
    """A standing in its colour; what is not verified has none."""
    if standing is Standing.NOT_VERIFIED:
        return style.bold(standing.value)
    return style.verdict(Verdict(standing.value))


def _head(report: CellReport, style: Style, width: int) -> Iterator[str]:
    view = report.view
    assert view is not None
    cell = view.cell
    name = one_line(f"{cell.model}, ctx {cell.ctx}, N={cell.dispatch_n}")
    word = standing_word(report.standing, style)
    yield f"{word}  {style.bold(name)}: {one_line(headline(report))}"
    yield from _wrapped(cell_flags(report), width)
    if report.problems:
        yield from _wrapped("not verified; what stands below is only what the file claims", width)
        for problem in report.problems[:8]:
            yield from _point(problem, width)
    else:
        yield from _wrapped("verified: derived again from its evidence", width)
    if view.divergence_class:
        words = f"class {view.divergence_class}: {class_words(view.divergence_class)}"
        yield from _wrapped(words, width)
    for reason in view.reasons[:8]:
        yield from _point(reason, width)
    if is_of_no_model(report):
        yield from _wrapped(f"measured was {SOURCE_WORDS[view.source]}", width)


def _contamination(report: CellReport, style: Style, width: int) -> Iterator[str]:
    for foreign in report.foreign:
        trial = foreign.trial
        donors = some(tuple(f"{d.id} (its {d.kind.value})" for d in trial.donors))
        yield ""
        yield style.bold(
            one_line(f"CONTAMINATION: THE ANSWER TO {trial.id} HOLDS TEXT OF {donors}")
        )
        yield from _wrapped(
            f"pass {trial.pass_index}, lane {trial.lane}; this is no rounding", width
        )
        if foreign.excerpt is not None:
            yield from _wrapped(_marked(foreign.excerpt), width)


def _changed(
    report: CellReport, certificate: Certificate, style: Style, width: int
) -> Iterator[str]:
    pair = certificate.divergence_report.get("AC")
    if pair is None or not pair.per_id:
        return
    yield from _title(f"what changed: {len(pair.per_id)} of {certificate.workset.n_items}", style)
    for one in report.divergences:
        yield from _one_change(one, style, width)
    more = len(pair.per_id) - len(report.divergences)
    if more > 0:
        yield f"{INDENT}and {more} more, in the certificate"


def _one_change(one: SideBySide, style: Style, width: int) -> Iterator[str]:
    first = one.entry.first_divergence
    yield INDENT + style.bold(one_line(one.entry.id))
    yield from _wrapped(how_often(one.entry), width, 2)
    yield from _wrapped(f"first in {where(first)}", width, 2)
    token = at_token(first)
    if token:
        yield from _wrapped(f"first different {token}", width, 2)
    if one.a is not None and one.c is not None:
        half = (width - 8) // 2
        texts = ((_marked(one.a), half), (_marked(one.c), half))
        yield f"{INDENT * 2}{padded('alone (A)', half)}  batched (C)"
        for line in beside([(one_line(text), size) for text, size in texts]):
            yield INDENT * 2 + line
    if one.same_text:
        yield f"{INDENT * 2}the tokens differ and spell the same text"
    for choice in one.choices:
        sides = (choice.logprob_a, choice.logprob_c)
        a, c = ("not listed" if side is None else f"{side:.6f}" for side in sides)
        yield f"{INDENT * 2}token {choice.token}: logprob {a} alone, {c} batched"


def _marked(text: Marked) -> str:
    opening, closing = MARKS
    before = ("..." if text.more_before else "") + text.before
    marked = f"{opening}{text.marked}{closing}" if text.marked else ""
    return before + marked + text.after + ("..." if text.more_after else "")


def _gates(report: CellReport, style: Style, width: int) -> Iterator[str]:
    view = report.view
    if view is None or not view.gates:
        return
    claimed = ", as the file claims them" if report.problems else ""
    yield from _title(f"gates{claimed}", style)
    name = max(len(one_line(gate.gate)) for gate in view.gates)
    room = width - 2 - 7 - name - 6
    sizes = (7, name, room // 2, room - room // 2)
    heads = ("", "gate", "measured", "required")
    yield from (INDENT + line for line in beside(list(zip(heads, sizes, strict=True))))
    for gate in view.gates:
        yield from _gate(gate, sizes, style)


def _gate(gate: GateResult, sizes: tuple[int, ...], style: Style) -> Iterator[str]:
    word = gate.outcome.value.replace(Outcome.NOT_APPLICABLE.value, "N/A")
    texts = (word, gate.gate, gate.measured, gate.required)
    cells = [(one_line(text), size) for text, size in zip(texts, sizes, strict=True)]
    for number, line in enumerate(beside(cells)):
        if number == 0 and gate.outcome in (Outcome.FAIL, Outcome.UNKNOWN):
            line = style.bold(line[: sizes[0]]) + line[sizes[0] :]
        yield INDENT + line


def _figures(
    report: CellReport, certificate: Certificate, style: Style, width: int
) -> Iterator[str]:
    overlap = certificate.overlap
    yield from _title("figures", style)
    space = space_words(certificate.schedule_space, overlap.witness, overlap.tested_n)
    for name, text in (
        ("power", power(report)),
        ("score", impact_words(certificate.score_impact)),
        ("speed", speed_words(certificate)),
        ("batches", space),
        ("drift", drift_words(certificate)),
    ):
        if text:
            yield from _named(name, text, width)


def _timeline(run: RunView, certificate: Certificate, style: Style, width: int) -> Iterator[str]:
    loaded = [one for one in run.passes if one.arm is Arm.C and one.spans and not one.void]
    if not loaded:
        return
    pair = certificate.divergence_report.get("AC")
    first = pair.per_id[0].first_divergence.pass_index if pair and pair.per_id else 0
    one = next((p for p in loaded if p.pass_index == first), loaded[0])
    yield from _title("how it was run", style)
    seconds: dict[Arm, float] = {}
    for each in run.passes:
        if each.spans:
            spent = max(s.end_s for s in each.spans) - min(s.start_s for s in each.spans)
            seconds[each.arm] = seconds.get(each.arm, 0.0) + spent
    yield from _wrapped(", ".join(f"{arm.value} {s:.1f} s" for arm, s in seconds.items()), width)
    yield f"{INDENT}pass C{one.pass_index} by slot; # co-batched, - not proved so, ! lost"
    yield from _lanes(one, width - 12)


def _lanes(one: PassView, width: int) -> Iterator[str]:
    begin, end = min(s.start_s for s in one.spans), max(s.end_s for s in one.spans)
    scale = (width - 1) / (end - begin) if end > begin else 0.0
    for lane in range(min(one.lanes, MOST_LANES)):
        row = [" "] * width
        for span in one.spans:
            if span.lane != lane:
                continue
            sign = "!" if span.lost else "#" if span.co_batched else "-"
            left = int((span.start_s - begin) * scale)
            right = max(left + 1, int((span.end_s - begin) * scale))
            row[left:right] = sign * (right - left)
            row[left] = "|"
        yield f"{INDENT}slot {lane:<3} {''.join(row)}".rstrip()


def _facts(certificate: Certificate, style: Style, width: int) -> Iterator[str]:
    subject, observer = certificate.subject, certificate.observer
    model, workset = subject.model, certificate.workset
    yield from _title("what was measured", style)
    for name, text in (
        ("model", f"{model.file}, sha256 {model.sha256}"),
        ("server", f"{subject.server_file}, {subject.server_version or 'version unknown'}"),
        ("flags", shlex.join(certificate.promotion_scope.valid_for.server_flags) or "none"),
        ("work-set", f"{workset.name}, {workset.n_items} items, sha256 {workset.sha256}"),
        ("scorer", certificate.scorer.name),
        ("observer", f"{observer.tool}, Python {observer.python}, {observer.system}"),
        ("when", certificate.ts_utc),
    ):
        yield from _named(name, text, width)


def _repeat(
    report: CellReport, certificate: Certificate, style: Style, width: int
) -> Iterator[str]:
    header = report.run.header if report.run is not None else None
    repeat = repeat_of(certificate, header)
    yield from _title("measure it again", style)
    if repeat.command is not None:
        yield INDENT + one_line(repeat.command)
    for note in repeat.notes:
        yield from _point(note, width)


def _title(text: str, style: Style) -> Iterator[str]:
    yield ""
    yield style.bold(text)


def _wrapped(text: str, width: int, depth: int = 1) -> Iterator[str]:
    for line in wrapped(one_line(text), width - len(INDENT) * depth):
        yield INDENT * depth + line


def _point(text: str, width: int) -> Iterator[str]:
    for number, line in enumerate(wrapped(one_line(text), width - 4)):
        yield ("  - " if number == 0 else "    ") + line


def _named(name: str, text: str, width: int) -> Iterator[str]:
    for number, line in enumerate(wrapped(one_line(text), width - 11)):
        yield f"{INDENT}{name if number == 0 else '':8} {line}"
