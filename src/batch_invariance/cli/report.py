"""`report`: certificates as one HTML page that needs nothing else."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batch_invariance import __version__
from batch_invariance.cli.cell_reading import bytes_to_read, cell_as_json, read_cell
from batch_invariance.cli.cert_files import find_certificates
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.many_files import over_files
from batch_invariance.errors import BatchInvarianceError, UsageError
from batch_invariance.formats.case_words import count
from batch_invariance.formats.html_page import Cell, PageInfo, draw_cell, page
from batch_invariance.invariance_diff.report_data import CellReport, detail_for
from batch_invariance.invariance_diff.report_words import Standing
from batch_invariance.live_invariance.host import format_bytes
from batch_invariance.live_invariance.store import check_new
from batch_invariance.live_invariance.text import printable

EXAMPLES = """examples:
  batch-invariance report certs -o report.html

Every certificate is first derived again from the evidence beside it; one that is not borne out
shows as NOT VERIFIED, whatever it says. The page quotes answers from the evidence and is written
with mode 0600. The exit status says whether it was written, not what is in it: to let a job depend
on cells, use gate.
"""


@dataclass(frozen=True, slots=True)
class _Task:
    """One certificate of the report: its number among them, and their count."""

    path: Path
    number: int
    n_cells: int


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "report",
        help="show certificates as one HTML page",
        description="Writes one self-contained HTML file: the matrix of cells, and each in detail.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="DIR|CERT")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="a new HTML file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("report starts no server: nothing may follow --")
    check_new(args.output)
    found = find_certificates(args.paths)
    paths = found.certificates
    if not paths:
        named = ", ".join(map(str, args.paths))
        raise BatchInvarianceError(f"{named}: there is no certificate to report")
    tasks = [_Task(path, number, len(paths)) for number, path in enumerate(paths, 1)]
    cells = over_files(_cell, tasks, bytes_to_read(paths))
    info = PageInfo(
        tuple(map(str, args.paths)),
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        __version__,
        tuple(map(str, found.left_out)),
    )
    data = page(cells, info).encode("utf-8")
    _write(args.output, data)
    reports = [cell.report for cell in cells]
    if args.json:
        print(json.dumps(_as_json(args.output, len(data), reports, found.left_out)))
    else:
        print(_said(args.output, len(data), reports))
    sys.stdout.flush()
    return ExitCode.PROMOTABLE


def _cell(task: _Task) -> Cell:
    """Reads and draws one cell; what only its section shows is dropped."""
    detail = detail_for(task.n_cells)
    report = read_cell(task.path, detail)
    section = draw_cell(report, task.number, task.n_cells, detail)
    certificate = report.certificate
    if certificate is not None:
        certificate = replace(certificate, rows=(), divergence_report={}, lifetimes=())
    slim = replace(report, certificate=certificate, run=None, divergences=(), foreign=())
    return Cell(slim, section)


def _write(path: Path, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; choose another file") from error
    except OSError as error:
        raise BatchInvarianceError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise BatchInvarianceError(f"cannot write {path}: {error.strerror}") from error


def _said(path: Path, size: int, reports: Sequence[CellReport]) -> str:
    counts = Counter(report.standing for report in reports)
    shown = ", ".join(f"{counts[s]} {s.value}" for s in Standing if counts[s])
    safe = sum(report.safe for report in reports)
    return printable(
        f"{path}: {count(len(reports), 'cell')}, {shown}; {safe} safe as measured; "
        f"{format_bytes(size)}"
    )


def _as_json(
    path: Path, size: int, reports: Sequence[CellReport], left_out: Sequence[Path]
) -> dict[str, object]:
    return {
        "report": str(path),
        "bytes": size,
        "cells": [cell_as_json(report) for report in reports],
        "left_out": [str(other) for other in left_out],
        "exit_code": int(ExitCode.PROMOTABLE),
    }
