"""The folder of a case: what is written into it, and reading it back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError, UsageError
from batch_invariance.formats.case_report import case_report
from batch_invariance.formats.case_script import case_script, request_files
from batch_invariance.formats.case_script_endpoint import endpoint_script
from batch_invariance.invariance_diff.case import Case, Redaction, parse_case
from batch_invariance.live_invariance.bounded import MAX_INPUT_BYTES, read_at_most
from batch_invariance.live_invariance.store import write_new

CASE, SCRIPT, REPORT = "case.json", "case.sh", "report.md"


def check_no_folder(folder: Path) -> None:
    """Raises UsageError where the folder is there already, or cannot be made."""
    if os.path.lexists(folder):
        raise UsageError(f"--out {folder} is there already; name a folder that is not")
    try:
        folder.mkdir(parents=True)
        folder.rmdir()
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be made: {error.strerror}") from error


def write_case(folder: Path, case: Case) -> None:
    """Writes the case, its report, and where it can be sent again its requests and the script.

    Raises UsageError where the folder came to be in the meantime, BatchInvarianceError where it
    cannot be written; nothing of it remains then.
    """
    files = {CASE: case.to_bytes(), REPORT: case_report(case).encode("utf-8", "backslashreplace")}
    if case.redaction is not Redaction.REMOVED:
        script = case_script(case) if case.endpoint is None else endpoint_script(case)
        files[SCRIPT] = script.encode("utf-8", "backslashreplace")
        files.update(request_files(case))
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"--out {folder} is there already; name a folder that is not") from error
    except OSError as error:
        raise BatchInvarianceError(f"cannot make {folder}: {error.strerror}") from error
    try:
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_new(folder / name, data)
    except BaseException as error:
        # A part of a case is none. What an interruption leaves of it goes, too.
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            what = f"cannot write {folder}: {error.strerror}"
            raise BatchInvarianceError(what) from error
        raise


def read_case(path: Path) -> Case:
    """The case of a folder, or of its `case.json`. Raises BatchInvarianceError or CaseError."""
    file = path / CASE if path.is_dir() else path
    try:
        data = read_at_most(file, MAX_INPUT_BYTES)
    except OSError as error:
        raise BatchInvarianceError(f"cannot read the case {file}: {error.strerror}") from error
    if data is None:
        raise BatchInvarianceError(f"{file}: larger than {MAX_INPUT_BYTES >> 20} MiB, so no case")
    return parse_case(data, file.name)
