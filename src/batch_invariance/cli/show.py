"""`show`: one certificate in the terminal, with what its evidence shows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.cell_reading import cell_as_json, read_cell
from batch_invariance.cli.columns import columns_of
from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.show_text import show_text
from batch_invariance.cli.style import Style
from batch_invariance.errors import BatchInvarianceError, UsageError
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.report_data import CellReport, Detail
from batch_invariance.invariance_diff.report_repeat import repeat_of

EXAMPLES = """examples:
  batch-invariance show certs/model__ctx8192__N4.json
  batch-invariance show --evidence elsewhere/e.jsonl cert.json

The certificate is first derived again from its evidence. The exit status says whether it could be
shown, not what is in it: to let a job depend on it, use verify-cert.
"""
SHOWN = Detail(4, 20, 1, 64, 0, 160)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "show",
        help="show one certificate in the terminal",
        description="Verdict, gates, what changed side by side, figures, and how to repeat it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("certificate", type=Path, metavar="CERT")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="where the evidence is")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("show starts no server: nothing may follow --")
    report = read_cell(args.certificate, SHOWN, args.evidence)
    if report.view is None:
        problems = "; ".join(report.problems)
        raise BatchInvarianceError(f"{args.certificate} cannot be shown: {problems}")
    if args.json:
        print(json.dumps(_as_json(report)))
    else:
        lines = show_text(report, Style(sys.stdout), columns_of(sys.stdout))
        print("\n".join(lines))
    return ExitCode.PROMOTABLE


def _as_json(report: CellReport) -> dict[str, object]:
    view, certificate = report.view, report.certificate
    header = report.run.header if report.run is not None else None
    repeat = None if certificate is None else repeat_of(certificate, header)
    return {
        **cell_as_json(report),
        "gates": [] if view is None else to_json(view.gates),
        "changed": to_json(report.divergences),
        "foreign_text": to_json(report.foreign),
        "repeat": to_json(repeat),
        "exit_code": int(ExitCode.PROMOTABLE),
    }
