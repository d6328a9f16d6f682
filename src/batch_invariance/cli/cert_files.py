"""Certificate files for the verbs that read them: found, read, verified from their evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batch_invariance.errors import BatchInvarianceError, CertificateError, UsageError
from batch_invariance.invariance_diff.case import SCHEMA as CASE_SCHEMA
from batch_invariance.invariance_diff.cert_reading import CertView, read_view
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.golden import GOLDEN_SCHEMA
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.invariance_diff.verify import (
    REQUIRED_FIELDS,
    evidence_name,
    parse_certificate,
    verify_parsed,
)
from batch_invariance.live_invariance.bounded import MAX_INPUT_BYTES, read_at_most
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.signing import check_signature

# A required field where `Certificate.to_bytes` writes it: the file need not be parsed to count.
_OWN_FIELD = b'\n  "dispatch_n": '
OTHER_SCHEMAS = (CASE_SCHEMA, GOLDEN_SCHEMA)


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A certificate file and what became of it. `view` is None where the file is no certificate;
    `problems` is empty only where its evidence bears it out, and `derived` is there only then: the
    certificate as the evidence gives it, and so as the file says it. `signature_fault` says what a
    signature that was asked for lacks."""

    path: Path
    data: bytes
    view: CertView | None
    problems: tuple[str, ...]
    derived: Certificate | None = None
    signature_fault: str | None = None

    @property
    def borne_out(self) -> bool:
        """Whether it is a certificate that says what its evidence says."""
        return self.view is not None and not self.problems


@dataclass(frozen=True, slots=True)
class Found:
    """Certificate files in order, each once, and the JSON files of folders that are none."""

    certificates: tuple[Path, ...]
    left_out: tuple[Path, ...]


def find_certificates(paths: Iterable[Path]) -> Found:
    """The certificates among files and folders; folders are searched with all below them.

    A file that is named counts as a certificate whatever is in it. In a folder every `*.json`
    does but hidden ones, those set aside as `*.previous.json`, well-formed JSON that has not one
    field of a certificate or is a case or a golden file, and what is no regular file. Raises
    UsageError for a path that is not there.
    """
    certificates: dict[str, Path] = {}
    left_out: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise UsageError(f"{path}: there is no such file or folder")
            certificates.setdefault(os.path.realpath(path), path)
            continue
        for file in _json_files(path):
            if _is_something_else(file):
                left_out.append(file)
            else:
                certificates.setdefault(os.path.realpath(file), file)
    return Found(tuple(certificates.values()), tuple(left_out))


def verify_file(
    path: Path,
    evidence: Path | None = None,
    onlooker_for: Callable[[Mapping[str, Any]], Onlooker | None] | None = None,
    key: SigningKey | None = None,
) -> VerifiedFile:
    """Reads one certificate, derives it again from the evidence, which is looked for beside it, and
    checks its signature where there is a key. `onlooker_for` gets the certificate's JSON before the
    evidence is read. Nothing is raised for what is wrong with the files: it is listed."""
    data, view = b"", None
    try:
        data = read_certificate(path)
        cert = parse_certificate(data)
        view = read_view(cert)
        onlooker = None if onlooker_for is None else onlooker_for(cert)
        beside = evidence or path.parent / evidence_name(cert)
        if not os.path.isfile(beside):
            return VerifiedFile(path, data, view, (f"there is no evidence at {beside}",))
        result = verify_parsed(cert, data, read_lines(beside), onlooker)
    except BatchInvarianceError as error:
        return VerifiedFile(path, data, view, (str(error),))
    problems = () if result.borne_out else result.problems or ("its evidence gives nothing",)
    signature = check_signature(path, data, key)
    fault = None if signature.holds else signature.text
    return VerifiedFile(path, data, view, problems, None if problems else result.derived, fault)


def read_certificate(path: Path) -> bytes:
    """A certificate file's bytes. Raises BatchInvarianceError when it cannot be read."""
    try:
        data = read_at_most(path, MAX_INPUT_BYTES)
    except OSError as error:
        raise BatchInvarianceError(f"cannot read {path}: {error.strerror}") from error
    if data is None:
        raise CertificateError(str(path), [f"is larger than {MAX_INPUT_BYTES >> 20} MiB"])
    return data


def _json_files(folder: Path) -> list[Path]:
    def unreadable(error: OSError) -> None:
        raise UsageError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    found = []
    # Links are followed, since what they lead to lies below for whoever looks; each folder once.
    seen = {os.path.realpath(folder)}
    for top, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        places = {name: os.path.realpath(Path(top, name)) for name in sorted(folders)}
        folders[:] = []
        for name, place in places.items():
            if not name.startswith(".") and place not in seen:
                seen.add(place)
                folders.append(name)
        found += [
            Path(top, name)
            for name in names
            if name.endswith(".json")
            and not name.startswith(".")
            and not name.endswith(".previous.json")
        ]
    return sorted(found)


def _is_something_else(path: Path) -> bool:
    """Whether the file is sound JSON without a single field that every certificate has, or says
    that it is another file of this program and states no verdict; or a pipe, which has no end."""
    if os.path.exists(path) and not os.path.isfile(path):
        return True
    try:
        data = read_certificate(path)
        if _OWN_FIELD in data:
            return False
        value = json.loads(data)
    except (BatchInvarianceError, ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or not set(REQUIRED_FIELDS) & value.keys():
        return True
    return value.get("schema") in OTHER_SCHEMAS and "status" not in value
