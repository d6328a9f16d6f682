"""A certificate as an in-toto Statement v1.

Sources: https://github.com/in-toto/attestation, spec/v1/statement.md, resource_descriptor.md and
spec/predicates/test-result.md. The statement is a function of the certificate's bytes, so that it
can be made again when a signature comes back from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from batch_invariance.errors import BatchInvarianceError, FileFormatError
from batch_invariance.invariance_diff.cert_reading import CertView
from batch_invariance.invariance_diff.model import Outcome, Verdict
from batch_invariance.invariance_diff.strict_json import parse_json
from batch_invariance.invariance_diff.verdict import colour_of

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
TEST_RESULT_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
VERDICT_TYPE = "https://pypi.org/project/llamacpp-batch-invariance/verdict/v1"
"""Names our own predicate; as a name it need not resolve."""
# What makes a certificate long and is about single items stays in the certificate.
LEFT_OUT = ("rows", "divergence_report", "lifetimes", "lost_trials", "events")
_PART = re.compile(r".+-(\d{5})-of-(\d{5})\.gguf", re.DOTALL | re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Predicate(str, Enum):
    """What the statement says: in-toto's test result, or our verdict in full."""

    TEST_RESULT = "test-result"
    VERDICT = "verdict"


class Result(str, Enum):
    """The three results of in-toto's predicate."""

    PASSED = "PASSED"
    WARNED = "WARNED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file by name and SHA-256 in hexadecimal."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Attested:
    """What a statement is made from: the certificate by name, bytes and view, and the model's
    files (empty takes the one that the certificate names)."""

    file: str
    data: bytes
    view: CertView
    parts: tuple[Artifact, ...] = ()


def result_of(view: CertView) -> Result:
    """PASSED only for a promotable certificate; a GREEN that is not (a canary's) is WARNED."""
    if view.verdict is Verdict.GREEN:
        return Result.PASSED if view.promotable else Result.WARNED
    return Result.WARNED if view.verdict is Verdict.AMBER else Result.FAILED


def statement(attested: Attested, predicate: Predicate) -> bytes:
    """The statement's bytes: compact JSON with sorted keys, UTF-8.

    Raises BatchInvarianceError where the certificate does not name its artifacts by digest.
    """
    if predicate is Predicate.TEST_RESULT:
        kind, body = TEST_RESULT_TYPE, _test_result(attested)
    else:
        kind, body = VERDICT_TYPE, _verdict(attested)
    value = {
        "_type": STATEMENT_TYPE,
        "subject": [_descriptor(artifact.name, artifact.sha256) for artifact in subjects(attested)],
        "predicateType": kind,
        "predicate": body,
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def is_split(model_file: str) -> bool:
    """Whether a model's file name is that of one part of several."""
    match = _PART.fullmatch(model_file)
    return match is not None and int(match[2]) > 1


def combined_sha256(parts: Sequence[Artifact]) -> str:
    """The digest under which a certificate knows these files: of one its own, of several the
    SHA-256 over their hexadecimal digests in order, a newline after each."""
    if len(parts) == 1:
        return parts[0].sha256
    lines = "".join(f"{part.sha256}\n" for part in parts)
    return hashlib.sha256(lines.encode("ascii")).hexdigest()


def subjects(attested: Attested) -> tuple[Artifact, ...]:
    """The model's files, the server file that was named, and the executables that really ran.

    Raises BatchInvarianceError where one of them is not known by digest.
    """
    subject = attested.view.subject
    model_file, model_sha = subject.model_file, subject.model_sha256
    server_file, server_sha = subject.server_file, subject.server_sha256
    if model_file is None or model_sha is None or not _DIGEST.fullmatch(model_sha):
        raise BatchInvarianceError(
            f"{attested.file} names no model file by digest: there is nothing to attest"
        )
    if server_file is None or server_sha is None or not _DIGEST.fullmatch(server_sha):
        raise BatchInvarianceError(
            f"{attested.file} names no server binary by digest: there is nothing to attest"
        )
    if not attested.parts and is_split(model_file):
        raise BatchInvarianceError(
            f"{model_file} is one part of several and {attested.file} holds one digest over all; "
            "name the first part with --model, so that every part becomes a subject"
        )
    parts = attested.parts or (Artifact(model_file, model_sha),)
    if combined_sha256(parts) != model_sha:
        raise BatchInvarianceError(
            f"--model: its digest is not the one in {attested.file}; name the file that was tested"
        )
    ran = sorted({digest for digest in subject.executables if digest} - {server_sha})
    executables = [
        Artifact(f"{server_file} (executable{f' {i}' if i > 1 else ''})", digest)
        for i, digest in enumerate(ran, 1)
    ]
    return (*parts, Artifact(server_file, server_sha), *executables)


def _test_result(attested: Attested) -> dict[str, Any]:
    passed, warned, failed = [], [], []
    for row in attested.view.gates:
        colour = colour_of(row)
        if row.outcome is Outcome.PASS:
            passed.append(row.gate)
        elif colour in (Verdict.RED, Verdict.UNVERIFIED):
            failed.append(row.gate)
        elif row.outcome is not Outcome.NOT_APPLICABLE:
            warned.append(row.gate)
    return {
        "result": result_of(attested.view).value,
        "configuration": _configuration(attested),
        "passedTests": passed,
        "warnedTests": warned,
        "failedTests": failed,
    }


def _verdict(attested: Attested) -> dict[str, Any]:
    cert: dict[str, Any] = json.loads(attested.data)
    body = {name: value for name, value in cert.items() if name not in LEFT_OUT}
    return {"result": result_of(attested.view).value, "certificate": _own(attested), **body}


def _configuration(attested: Attested) -> list[dict[str, Any]]:
    """What the cell was run with, as resource descriptors. Where a digest is not a file's, its
    `digestOf` says what it is over."""
    view = attested.view
    inputs = view.inputs
    cell = {
        "digestOf": "everything that could change the cell's arithmetic",
        "model": view.cell.model,
        "ctx": view.cell.ctx,
        "dispatch_n": view.cell.dispatch_n,
        "kv": view.subject.kv_label,
        "server_flags": list(view.subject.server_flags),
        "server_version": view.subject.server_version,
        "source": view.source.value,
        "verdict": view.verdict.value,
        "divergence_class": view.divergence_class,
        "prompt_rate_upper_bound_95": view.power.bound_95,
        "horizon_tokens": view.power.horizon_total,
    }
    rows = [
        _described("cell", view.cell_sha256, cell),
        _described(
            inputs.workset_name, inputs.workset_sha256, {"digestOf": "the work-set's items"}
        ),
        _described(
            inputs.scorer_name,
            inputs.scorer_sha256,
            {"digestOf": "the scorer's name, parameters and source"},
        ),
        _described(
            "schedule", inputs.schedule_sha256, {"digestOf": "the planned passes, in order"}
        ),
        _described(inputs.evidence_file, inputs.evidence_sha256, None),
        *(_described(name, digest, None) for name, digest in view.subject.libraries),
    ]
    return [_own(attested), *(row for row in rows if row is not None)]


def _own(attested: Attested) -> dict[str, Any]:
    return _descriptor(attested.file, hashlib.sha256(attested.data).hexdigest())


def _descriptor(
    name: str, sha256: str, annotations: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "digest": {"sha256": sha256}}
    return row if annotations is None else {**row, "annotations": dict(annotations)}


def _described(
    name: str | None, sha256: str | None, annotations: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    return _descriptor(name, sha256, annotations) if name and sha256 else None


@dataclass(frozen=True, slots=True)
class StatementView:
    """What a statement says: its subjects, the predicate's type, the result if it states one."""

    subjects: tuple[Artifact, ...]
    predicate_type: str
    result: Result | None


def parse_statement(data: bytes) -> StatementView:
    """Reads a statement of ours. Raises FileFormatError for anything else."""
    try:
        value = parse_json(data)
        rows = value["subject"]
        found = tuple(Artifact(str(row["name"]), str(row["digest"]["sha256"])) for row in rows)
        kind, predicate = value["predicateType"], value["predicate"]
        said = predicate.get("result")
        right = value["_type"] == STATEMENT_TYPE and kind in (TEST_RESULT_TYPE, VERDICT_TYPE)
    except (ValueError, LookupError, TypeError, AttributeError):
        right = False
    if not right or not found:
        raise FileFormatError("statement", ["is not an in-toto Statement v1 of this tool"])
    known = {result.value: result for result in Result}
    return StatementView(found, kind, known.get(said) if isinstance(said, str) else None)
