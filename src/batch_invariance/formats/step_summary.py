"""A job's summary in Markdown, as GitHub shows it below a run."""

from __future__ import annotations

from collections.abc import Sequence

from batch_invariance.invariance_diff.cell_checks import VERDICT_CHECK, CheckedCell, Mark

# GitHub drops a step's summary of more than 1 MiB. A character becomes five at most, so that these
# stay below: 200 rows of 2 x 400 characters and 50 lines of 400.
MAX_CELLS = 200
MAX_LINES = 50
MAX_CELL_TEXT = 400


def step_summary(cells: Sequence[CheckedCell], lines: Sequence[str] = ()) -> str:
    """A heading, `lines` as a list, and a table of the cells."""
    parts = ["### batch-invariance", ""]
    parts += [f"- {plain(line)}" for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        parts.append(f"- and {len(lines) - MAX_LINES} more")
    if lines:
        parts.append("")
    parts += ["| cell | verdict | why |", "|---|---|---|"]
    parts += [_row(cell) for cell in cells[:MAX_CELLS]]
    if len(cells) > MAX_CELLS:
        parts.append(f"| {len(cells) - MAX_CELLS} more cells | | |")
    return "\n".join(parts) + "\n\n"


def _row(cell: CheckedCell) -> str:
    why = [
        f"{check.name}: {check.found}"
        for check in cell.checks
        if check.mark in (Mark.FAILED, Mark.ERROR) and check.name != VERDICT_CHECK
    ]
    why += [c.accepted for c in cell.checks if c.name == VERDICT_CHECK and c.accepted]
    if not why and cell.verdict is not None:
        skipped = [check.found for check in cell.checks if check.mark is Mark.SKIPPED]
        why = ["every other gate passed", *skipped] if skipped else ["every gate passed"]
    verdict = "" if cell.verdict is None else cell.verdict.value
    return f"| {plain(cell.name)} | {verdict} | {plain('; '.join(why) or 'fulfilled')} |"


def plain(text: str) -> str:
    """Text that Markdown shows as it is: one line, no markup, no cell border."""
    line = " ".join(text.split())
    if len(line) > MAX_CELL_TEXT:
        line = line[: MAX_CELL_TEXT - 3] + "..."
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for char in "\\`*_[]|#!~$":
        line = line.replace(char, f"\\{char}")
    return line.replace("@", "&#64;")
