"""What CI systems read: JUnit XML, SARIF, and the summary of a GitHub step.

Every verb that judges cells calls `add_ci_options`, then `ci_targets` before it starts anything,
and at its end `write_ci_outputs`. The files that `--junit` and `--sarif` name are replaced where
they are reports, of the last run as it seems; any other file of these names is refused.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from batch_invariance import __version__
from batch_invariance.cli.cert_files import VerifiedFile
from batch_invariance.errors import UsageError
from batch_invariance.formats.junit import junit_xml
from batch_invariance.formats.sarif import sarif_json
from batch_invariance.formats.step_summary import step_summary
from batch_invariance.invariance_diff.cell_checks import (
    Check,
    CheckedCell,
    cell_checks,
    cell_properties,
    refused_checks,
)
from batch_invariance.invariance_diff.cert_reading import lines_of_gates, view_of
from batch_invariance.invariance_diff.verify import Verification
from batch_invariance.live_invariance.produce import Produced
from batch_invariance.live_invariance.store import write_atomic

STEP_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_OURS = re.compile(r"__ctx\d+__N\d+(\.previous)?\.(json|json\.hmac|evidence\.jsonl)$")
_HEAD_BYTES = 512
_BEGINS = {
    "--junit": re.compile(rb"\s*(<\?xml[^>]*>\s*)?<testsuites?[\s>]"),
    "--sarif": re.compile(rb'\s*\{\s*"(\$schema"\s*:\s*"[^"]*sarif|version"\s*:\s*"2\.1)'),
}
"""How a report begins, ours or another tool's."""


@dataclass(frozen=True, slots=True)
class CiTargets:
    """Where the reports go; None for one that nobody wants."""

    junit: Path | None
    sarif: Path | None
    step_summary: Path | None

    def clear(self) -> None:
        """Removes older reports, so that none of them stands for a run that fails on its way."""
        for path in (self.junit, self.sarif):
            if path is not None:
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise UsageError(f"cannot replace {path}: {error.strerror}") from error


def add_ci_options(parser: argparse.ArgumentParser) -> None:
    """`--junit` and `--sarif`."""
    group = parser.add_argument_group("for CI")
    group.add_argument(
        "--junit", type=Path, metavar="FILE", help="write JUnit XML there, over an older report"
    )
    group.add_argument(
        "--sarif", type=Path, metavar="FILE", help="write SARIF 2.1.0 there, over an older report"
    )


def ci_targets(args: argparse.Namespace, inputs: Iterable[Path] = ()) -> CiTargets:
    """The targets of a command line and its environment, checked before anything starts.

    Raises UsageError for a target whose folder is not there, that is a folder, that is one of
    `inputs` or the other target, that has the name of a certificate or its evidence, or that is
    there and no report of its kind.
    """
    taken = {os.path.realpath(path) for path in inputs}
    key = getattr(args, "sign_key", None)
    if key is not None:
        taken.add(os.path.realpath(key))
    for option, path in (("--junit", args.junit), ("--sarif", args.sarif)):
        if path is None:
            continue
        if os.path.isdir(path) or not os.path.isdir(path.parent):
            raise UsageError(f"{option} {path}: name a file in a folder that is there")
        other = not _may_be_replaced(path, _BEGINS[option])
        if os.path.realpath(path) in taken or _OURS.search(path.name) or other:
            raise UsageError(f"{option} {path}: would be written over a file of another kind")
        taken.add(os.path.realpath(path))
    summary = os.environ.get(STEP_SUMMARY_VARIABLE)
    return CiTargets(args.junit, args.sarif, Path(summary) if summary else None)


def _may_be_replaced(path: Path, begins: re.Pattern[bytes]) -> bool:
    """Whether nothing is there, or a file that is empty or an older report."""
    if not os.path.lexists(path):
        return True
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"cannot replace {path}: {error.strerror}") from error
    return not head or begins.match(head) is not None


def write_ci_outputs(
    targets: CiTargets, cells: Sequence[CheckedCell], lines: Sequence[str] = ()
) -> None:
    """Writes the reports that are wanted; `lines` head the step's summary.

    Raises BatchInvarianceError when `--junit` or `--sarif` cannot be written. The step's summary
    is appended to what other steps wrote, and only a note is printed when it cannot be.
    """
    if targets.junit is not None:
        write_atomic(targets.junit, junit_xml(cells))
    if targets.sarif is not None:
        write_atomic(targets.sarif, sarif_json(cells, __version__))
    if targets.step_summary is not None:
        try:
            with open(targets.step_summary, "a", encoding="utf-8", errors="replace") as file:
                file.write(step_summary(cells, lines))
        except OSError as error:
            print(f"no step summary: {targets.step_summary}: {error.strerror}", file=sys.stderr)


def produced_cell(produced: Produced, seconds: float) -> CheckedCell:
    """The cell that a run has just certified; `seconds` is what the run took."""
    view = view_of(produced.certificate)
    path, data = produced.paths.certificate, produced.certificate.to_bytes()
    return checked_cell(VerifiedFile(path, data, view, problems=()), seconds)


def verification_cell(path: Path, data: bytes, result: Verification, seconds: float) -> CheckedCell:
    """A certificate file of which it is known whether its evidence bears it out."""
    view = None if result.derived is None else view_of(result.derived)
    problems = () if result.borne_out else result.problems
    return checked_cell(VerifiedFile(path, data, view, problems), seconds)


def checked_cell(
    verified: VerifiedFile,
    seconds: float,
    accepted: str | None = None,
    further: Sequence[Check] = (),
) -> CheckedCell:
    """A certificate file as checks: what its gates say, or why it was refused, then `further`.

    `accepted` says by whom and why an AMBER is accepted.
    """
    view = verified.view
    file = str(verified.path)
    if view is None or not verified.borne_out:
        checks = refused_checks(verified.problems)
        name = verified.path.name if view is None else str(view.cell)
        return CheckedCell(name, file, uri_of(verified.path), (*checks, *further), seconds=seconds)
    return CheckedCell(
        name=str(view.cell),
        file=file,
        uri=uri_of(verified.path),
        checks=(*cell_checks(view, accepted), *further),
        verdict=view.verdict,
        properties=cell_properties(view),
        lines=lines_of_gates(verified.data),
        timestamp=view.ts_utc,
        seconds=seconds,
    )


def uri_of(path: Path) -> str:
    """The path relative to the current folder as a URI reference; a `file:` URI outside it."""
    whole = Path(os.path.abspath(path))
    try:
        return quote(whole.relative_to(os.getcwd()).as_posix())
    except ValueError:
        return whole.as_uri()
