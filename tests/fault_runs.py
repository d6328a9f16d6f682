"""Runs with a planted fault, and what every one of them must keep to."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.records import Footer
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.resume import read_interrupted
from fault_cases import CASES, PASSES, FaultCase, Kept
from reports_fixtures import Cell, Outcome, cli, light_cell, make_cell
from waiting import runs

LEAST = ("--passes", PASSES, "--max-tokens", 10, "--top-logprobs", 1)
"""What a GREEN needs at the least, to keep so many runs short."""
_FOLDER = tempfile.TemporaryDirectory(prefix="batch-invariance-faults-")


def cell_of(name: str, folder: Path) -> Cell:
    """A cell whose server has the fault."""
    case = CASES[name]
    return make_cell(folder, in_process=not case.own_process, **case.plant)


def of_run(name: str) -> Outcome:
    """What a run with this fault leaves behind; each is run once for all tests that look at it."""
    return _together() if CASES[name].together else _alone(name)


@functools.cache
def _alone(name: str) -> Outcome:
    cell, tmp = cell_of(name, Path(_FOLDER.name) / name), Path(_FOLDER.name) / name / "tmp"
    tmp.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp))
        outcome = cell.run(*LEAST, *CASES[name].options)
    assert list(tmp.iterdir()) == []
    for start in cell.starts():
        assert not runs(start["pid"])
        assert not runs(start["guardian"])
    return outcome


@functools.cache
def _together() -> Outcome:
    losses: dict[str, object] = {}
    options: tuple[str, ...] = ()
    for case in CASES.values():
        if case.together:
            losses |= dict(case.plant["fail_nth_concurrent"])  # type: ignore[call-overload]
            options = case.options
    cell = light_cell(Path(_FOLDER.name) / "together", fail_nth_concurrent=losses)
    return cell.run(*LEAST, *options)


def check(case: FaultCase, outcome: Outcome) -> None:
    """The exit code, the words, the verdict and the files are those of the list."""
    assert outcome.code == case.exit_code, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert case.sees in outcome.stdout + outcome.stderr
    check_kept(case, outcome)
    if case.kept is Kept.CERTIFICATE:
        assert not case.verdict or outcome.verdict == case.verdict
        assert case.reasons.items() <= outcome.not_passed().items()
        verified = cli("verify-cert", outcome.certificate_path)
        assert verified.code == (0 if outcome.verdict == "GREEN" else 3), verified.stdout


def check_kept(case: FaultCase, outcome: Outcome) -> None:
    """What is on the disk."""
    if case.kept is Kept.NOTHING:
        assert outcome.stdout == ""
        return
    # A line that could not be written whole counts for nothing.
    lines = [line for line in read_lines(outcome.evidence_path) if line.endswith(b"\n")]
    footers = [record for record in EvidenceReader(lines) if isinstance(record, Footer)]
    assert bool(outcome.certificates()) == (case.kept is Kept.CERTIFICATE)
    if case.kept is Kept.OPEN:
        assert footers == []
        read_interrupted(outcome.evidence_path)
        return
    (footer,) = footers
    whole = footer.ended == "complete"
    assert whole or case.kept in (Kept.CLOSED, Kept.CERTIFICATE)
    with pytest.raises(EvidenceError, match="cannot be resumed"):
        read_interrupted(outcome.evidence_path)
