"""`list`: the certificates of a folder as a table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.cell_reading import bytes_to_read, cell_as_json, read_cell
from batch_invariance.cli.cert_files import find_certificates
from batch_invariance.cli.columns import clipped, columns_of, one_line, padded, width_of
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.many_files import over_files
from batch_invariance.cli.show_text import standing_word
from batch_invariance.cli.style import Style
from batch_invariance.errors import BatchInvarianceError, UsageError
from batch_invariance.invariance_diff.report_data import CellReport
from batch_invariance.invariance_diff.report_lines import bound_of, in_brief, times
from batch_invariance.invariance_diff.report_words import Standing
from batch_invariance.invariance_diff.verdict import CONTAMINATION

EXAMPLES = """examples:
  batch-invariance list certs

Every certificate is first derived again from the evidence beside it; one that is not borne out is
NOT VERIFIED, whatever it says. The exit status says whether there was something to list: to let a
job depend on cells, use gate.
"""
HEADS = (
    *("verdict", "model", "ctx", "N", "flags", "why"),
    *("bound", "speed-up", "source", "measured"),
)
ELASTIC = (1, 4, 5)
"""Columns that give way where the terminal is narrow: model, flags, why."""
LEAST_WIDTH = 8
RIGHT = (2, 3, 6, 7)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "list",
        help="list certificates as a table",
        description="One line for each certificate: verdict, why, bound, speed-up, date.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="DIR|CERT")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("list starts no server: nothing may follow --")
    found = find_certificates(args.paths)
    if not found.certificates:
        named = ", ".join(map(str, args.paths))
        raise BatchInvarianceError(f"{named}: there is no certificate to list")
    reports = over_files(_read, found.certificates, bytes_to_read(found.certificates))
    reports.sort(key=_order)
    if args.json:
        report = {
            "cells": [cell_as_json(report) for report in reports],
            "left_out": [str(path) for path in found.left_out],
            "exit_code": int(ExitCode.PROMOTABLE),
        }
        print(json.dumps(report))
    else:
        print("\n".join(_text(reports, found.left_out)))
    return ExitCode.PROMOTABLE


def _read(path: Path) -> CellReport:
    return read_cell(path, None)


def _order(report: CellReport) -> tuple[str, int, int, str]:
    view = report.view
    if view is None:
        return ("", 0, 0, report.file)
    return (view.cell.model, view.cell.ctx, view.cell.dispatch_n, report.file)


def _text(reports: Sequence[CellReport], left_out: Sequence[Path]) -> list[str]:
    style = Style(sys.stdout)
    readable = [report for report in reports if report.view is not None]
    lines = _table(readable, style) if readable else []
    for report in reports:
        if report.standing is Standing.NOT_VERIFIED:
            problem = "; ".join(report.problems[:2])
            lines.append(f"  {style.bold('not verified')}  {one_line(f'{report.file}: {problem}')}")
    lines += [f"  left out, no certificate: {one_line(str(path))}" for path in left_out]
    return lines


def _table(reports: Sequence[CellReport], style: Style) -> list[str]:
    rows = [_row(report) for report in reports]
    widths = [max(map(width_of, column)) for column in zip(HEADS, *rows, strict=True)]
    if sys.stdout.isatty():
        widths = _narrowed(widths, columns_of(sys.stdout))
    lines = [style.dim(_line(HEADS, widths))]
    for report, row in zip(reports, rows, strict=True):
        word = standing_word(report.standing, style)
        lines.append(word + _line(row, widths)[len(report.standing.value) :])
    return lines


def _row(report: CellReport) -> tuple[str, ...]:
    view = report.view
    assert view is not None
    bound = bound_of(report)
    fit = not report.problems
    return (
        report.standing.value,
        one_line(view.cell.model),
        str(view.cell.ctx),
        str(view.cell.dispatch_n),
        one_line(" ".join(view.subject.server_flags)) or "-",
        one_line(_why(report)),
        f"{bound:.1%}" if bound is not None else "-",
        times(view.speed.speedup) if fit else "-",
        view.source.value,
        one_line(view.ts_utc or "unknown")[:10],
    )


def _why(report: CellReport) -> str:
    """In brief, with the class where there is one."""
    view = report.view
    if view is None or report.problems or view.divergence_class in (None, CONTAMINATION):
        return in_brief(report) or "-"
    return f"{in_brief(report)}, {str(view.divergence_class).partition(':')[0]}"


def _narrowed(widths: list[int], room: int) -> list[int]:
    """Takes columns from the widest elastic one until all fit, or none can give more."""
    while sum(widths) + 2 * (len(widths) - 1) > room:
        widest = max(ELASTIC, key=lambda i: widths[i])
        if widths[widest] <= LEAST_WIDTH:
            break
        widths[widest] -= 1
    return widths


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    parts = []
    for i, (text, width) in enumerate(zip(row, widths, strict=True)):
        shown = clipped(text, width)
        blanks = " " * (width - width_of(shown))
        parts.append(blanks + shown if i in RIGHT else padded(shown, width))
    return "  ".join(parts).rstrip()
