"""The matrix of cells: rows are a model with its flags, columns a context and a number of slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.formats.html_parts import LETTER, icon, scrolling
from batch_invariance.invariance_diff.model import Source
from batch_invariance.invariance_diff.report_data import CellReport
from batch_invariance.invariance_diff.report_lines import cell_flags, in_brief, times
from batch_invariance.invariance_diff.report_words import Standing

CAPTION = "Each field leads to its details"

Row = tuple[str, str]
"""A model and its flags."""
Column = tuple[int, int]
"""Context per slot, number of slots."""


def matrix(reports: Sequence[CellReport], link: Callable[[CellReport], str]) -> Markup:
    """The table, and below it the files that cannot be read as certificates."""
    fields: dict[Row, dict[Column, list[CellReport]]] = {}
    unreadable = []
    for report in reports:
        if report.view is None:
            unreadable.append(report)
            continue
        cell = report.view.cell
        row = fields.setdefault((cell.model, cell_flags(report)), {})
        row.setdefault((cell.ctx, cell.dispatch_n), []).append(report)
    columns = sorted({column for row in fields.values() for column in row})
    parts: list[Child] = []
    if columns:
        rows = [_row(name, row, columns, link) for name, row in sorted(fields.items())]
        body = element("tbody", *rows)
        whole = element("table", element("caption", CAPTION), _head(columns), body, class_="matrix")
        parts.append(scrolling(whole, "Matrix of cells"))
    if unreadable:
        names = [element("li", element("a", r.file, href=link(r))) for r in unreadable]
        parts.append(element("p", "Files that cannot be read as certificates:", class_="files"))
        parts.append(element("ul", *names, class_="files"))
    if not parts:
        parts.append(element("p", "There are none."))
    return joined(parts)


def _head(columns: Sequence[Column]) -> Markup:
    contexts = [(ctx, len(list(group))) for ctx, group in groupby(columns, key=lambda c: c[0])]
    top = [element("th", f"ctx {ctx}", colspan=n, scope="colgroup") for ctx, n in contexts]
    low = [element("th", f"N={n}", scope="col") for _, n in columns]
    corner = element("th", "Model and flags", rowspan=2, scope="col")
    return element("thead", element("tr", corner, *top), element("tr", *low))


def _row(
    name: Row,
    row: dict[Column, list[CellReport]],
    columns: Sequence[Column],
    link: Callable[[CellReport], str],
) -> Markup:
    model, flags = name
    head = element("th", model, element("small", flags), scope="row")
    fields = [_fields(row.get(column, ()), link) for column in columns]
    return element("tr", head, *fields)


def _fields(reports: Sequence[CellReport], link: Callable[[CellReport], str]) -> Markup:
    if not reports:
        dash = element("span", "–", aria_hidden="true")
        return element("td", dash, element("span", "not measured", class_="hidden"), class_="none")
    return element("td", *(_field(report, link(report)) for report in reports))


def _field(report: CellReport, target: str) -> Markup:
    letter = LETTER[report.standing]
    return element(
        "a",
        element("b", icon(letter), report.standing.value),
        *(element("span", line) for line in _beneath(report) if line),
        class_=f"cell {letter}",
        href=target,
    )


def _beneath(report: CellReport) -> tuple[str, ...]:
    """The lines under the word: why in brief, and the speed-up where evidence bears it out."""
    view = report.view
    if view is None or report.standing is Standing.NOT_VERIFIED:
        return (in_brief(report),)
    speed = f"{times(view.speed.speedup)} as fast"
    return in_brief(
        report
    ), speed if view.source is Source.LIVE else f"{speed}, {view.source.value}"
