"""The report as one HTML page: what is safe in short, the matrix, a legend, and every cell.

It loads nothing and holds no script, and its own policy forbids both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batch_invariance.formats.html_cell import cell_section
from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.formats.html_matrix import matrix
from batch_invariance.formats.html_parts import cell_name, chip
from batch_invariance.formats.html_style import ICONS, STYLE
from batch_invariance.invariance_diff.report_data import CellReport, Detail
from batch_invariance.invariance_diff.report_lines import is_of_no_model
from batch_invariance.invariance_diff.report_words import Standing

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
MAX_NAMES = 24
FEW_NAMES = 6
"""So many cells are named in short; the matrix names all."""
OPEN_BELOW = 3
"""So few cells are not folded up."""
LEGEND = {
    Standing.GREEN: (
        "Every gate passed. Batches of N are proved, and no score and no token changed."
    ),
    Standing.AMBER: (
        "The scores hold. Tokens, the repeat of the reference, the serial control, or logprobs "
        "that were armed as a gate do not."
    ),
    Standing.RED: "A scored answer changed under load.",
    Standing.UNVERIFIED: (
        "The run was too weak to tell: overlap, coverage, isolation or something else that a "
        "verdict needs was not proved."
    ),
    Standing.NOT_VERIFIED: (
        "The file could not be derived again from its evidence, because that is missing, different "
        "or of other rules. Whatever colour the file claims is not shown."
    ),
}


@dataclass(frozen=True, slots=True)
class PageInfo:
    """What the page says of itself: the folders or files it is of, when it was made (UTC), by which
    version, and the JSON files that are no certificates."""

    of: tuple[str, ...]
    made_utc: str
    version: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the page: its report, and its section already drawn. The section is drawn where
    the cell is read, so that what it shows need not be kept."""

    report: CellReport
    section: Markup


def draw_cell(report: CellReport, number: int, n_cells: int, detail: Detail) -> Markup:
    """The section of cell `number` of `n_cells`."""
    return cell_section(report, anchor_of(number), n_cells <= OPEN_BELOW, detail)


def anchor_of(number: int) -> str:
    """The id of a cell's section."""
    return f"c{number}"


def page(cells: Sequence[Cell], info: PageInfo) -> str:
    """The whole document. `cells` are numbered from 1 as they stand; they are shown worst first."""
    links = {id(cell.report): f"#{anchor_of(i)}" for i, cell in enumerate(cells, 1)}
    reports = [cell.report for cell in cells]

    def link(report: CellReport) -> str:
        return links[id(report)]

    order = list(Standing)
    shown = sorted(
        cells,
        key=lambda c: (
            not _contaminated(c.report),
            order.index(c.report.standing),
            cell_name(c.report),
            c.report.file,
        ),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"batch-invariance {info.version}"),
        element("title", "Does batching change the answers?"),
        element("style", STYLE),
    )
    main = element(
        "main",
        element("h2", "In short"),
        element("ul", *_in_short(reports, link), class_="short"),
        element("h2", "The cells"),
        matrix(reports, link),
        element("h2", "How to read it"),
        _legend(),
        element("h2", "Each cell, the worst first"),
        *(cell.section for cell in shown),
    )
    body = element("body", ICONS, _header(info), main, _footer(info))
    return "<!DOCTYPE html>\n" + element("html", head, body, lang="en").html + "\n"


def _contaminated(report: CellReport) -> bool:
    return report.certificate is not None and bool(report.certificate.contamination)


def _header(info: PageInfo) -> Markup:
    return element(
        "header",
        element("h1", "Does batching change the answers?"),
        element(
            "p",
            "A server that has several requests at once puts them into one forward pass. The "
            "rounding of a pass can depend on what else is in it, so the same prompt can get one "
            "answer alone and another under load. Each cell below is one model with one context "
            "size and one number of slots N, measured alone and under load.",
        ),
        element("p", f"From {', '.join(info.of)}, made {info.made_utc}", class_="mute"),
    )


def _in_short(reports: Sequence[CellReport], link: Callable[[CellReport], str]) -> Iterator[Markup]:
    n = len(reports)
    foreign = [r for r in reports if _contaminated(r)]
    if foreign:
        text = "where an answer holds the text of another request. Look at these first."
        yield _point(element("span", "CONTAMINATION", class_="chip r"), foreign, text, link)
    safe = [r for r in reports if r.safe]
    text = (
        f"of {n} safe as measured: batching changed no score and no token, and the run was strong "
        "enough to see a change."
    )
    if safe:
        yield _point(chip(Standing.GREEN), safe, text, link)
    else:
        none = element("span", "NONE SAFE", class_="chip n")
        yield _point(none, safe, f"of {n} stands for a cell that is safe to run batched.", link)
    green = [r for r in reports if r.standing is Standing.GREEN and not r.safe]
    if green:
        toys = all(is_of_no_model(r) for r in green)
        text = "green, but " + (
            "of a canary or a mock, which says nothing about a real model."
            if toys
            else "not fit to stand for a cell; each says why."
        )
        yield _point(chip(Standing.GREEN), green, text, link)
    for standing, words in (
        (Standing.RED, "not safe: scored answers changed under load."),
        (Standing.NOT_VERIFIED, "not borne out by evidence, whatever the file says."),
        (Standing.UNVERIFIED, "where the run was too weak to tell."),
        (Standing.AMBER, "where every score held, but tokens, logprobs or a control did not."),
    ):
        found = [r for r in reports if r.standing is standing]
        if found:
            yield _point(chip(standing), found, words, link)


def _point(
    sign: Markup, found: Sequence[CellReport], text: str, link: Callable[[CellReport], str]
) -> Markup:
    names: list[Child] = [element("a", cell_name(r), href=link(r)) for r in found[:FEW_NAMES]]
    if len(found) > FEW_NAMES:
        names.append(f"and {len(found) - FEW_NAMES} more, see below")
    listed = element("div", *names, class_="names") if names else None
    return element("li", sign, element("div", element("strong", f"{len(found)} "), text, listed))


def _legend() -> Markup:
    entries = [
        joined((element("dt", chip(standing)), element("dd", words)))
        for standing, words in LEGEND.items()
    ]
    return joined(
        (
            element("dl", *entries, class_="legend"),
            element(
                "p",
                "A green cell is green for this model file, context, number of slots, server build "
                "with its flags, work-set and schedule on this machine, and for no other. "
                "Unchanged prompts bound how many others may change; they do not prove that none "
                "does. Under a colour stands what changed or was missing, and how fast it ran, "
                "against one request at a time.",
            ),
        )
    )


def _footer(info: PageInfo) -> Markup:
    lines: list[Child] = []
    if info.left_out:
        named = ", ".join(info.left_out[:MAX_NAMES])
        more = len(info.left_out) - MAX_NAMES
        rest = f" and {more} more" if more > 0 else ""
        lines.append(element("p", f"JSON files that are no certificates: {named}{rest}"))
    lines.append(
        element(
            "p",
            "A report shows; it does not gate. To let a job depend on a cell, use "
            "batch-invariance gate or verify-cert, which derive every verdict again. ",
            f"batch-invariance {info.version}.",
        )
    )
    return element("footer", *lines)
