"""Small pieces that the page and its cells share: icons, chips, tables, texts with a mark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.invariance_diff.report_data import CellReport, Marked
from batch_invariance.invariance_diff.report_lines import is_of_no_model
from batch_invariance.invariance_diff.report_words import Standing

LETTER = {
    Standing.GREEN: "g",
    Standing.AMBER: "a",
    Standing.UNVERIFIED: "u",
    Standing.RED: "r",
    Standing.NOT_VERIFIED: "n",
}
"""The class of a standing, and the end of its icon's name."""


def icon(letter: str) -> Markup:
    """A shape of the style sheet; the word beside it says the same."""
    return element("svg", element("use", href=f"#i-{letter}"), class_="i", aria_hidden="true")


def chip(standing: Standing) -> Markup:
    """A standing as shape, word and colour."""
    letter = LETTER[standing]
    return element("span", icon(letter), standing.value, class_=f"chip {letter}")


def cell_name(report: CellReport) -> str:
    """What a cell is called: its figures, or its file where it has none."""
    if report.view is None:
        return report.file
    cell = report.view.cell
    flags = " ".join(report.view.subject.server_flags)
    said = [flags] if flags else []
    if is_of_no_model(report):
        said.append(report.view.source.value)
    name = f"{cell.model}, ctx {cell.ctx}, N={cell.dispatch_n}"
    return f"{name} ({'; '.join(said)})" if said else name


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[Child]], class_: str = ""
) -> Markup:
    """A table with a caption and column heads, in a frame that scrolls sideways."""
    head = element("thead", element("tr", *(element("th", h, scope="col") for h in heads)))
    body = element(
        "tbody", *(element("tr", *(element("td", child) for child in row)) for row in rows)
    )
    whole = element("table", element("caption", caption), head, body, class_=class_ or None)
    return scrolling(whole, caption)


def scrolling(child: Markup, name: str) -> Markup:
    """A frame that scrolls sideways, by keyboard too."""
    return element("div", child, class_="x", tabindex=0, role="region", aria_label=name)


def definitions(pairs: Iterable[tuple[str, Child]], class_: str) -> Markup:
    """Names and what they are; a pair without a value is left out."""
    return element(
        "dl",
        *(
            joined((element("dt", name), element("dd", value)))
            for name, value in pairs
            if value is not None
        ),
        class_=class_,
    )


def marked_text(text: Marked) -> Markup:
    """A text of a model or a user around its mark, as it is, markup and all."""
    return element(
        "div",
        element("span", "… ", class_="cut") if text.more_before else None,
        text.before,
        element("mark", text.marked) if text.marked else None,
        text.after,
        element("span", " …", class_="cut") if text.more_after else None,
        class_="t",
        dir="auto",
    )
