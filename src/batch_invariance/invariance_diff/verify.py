"""Verifying a certificate: derive it again from its evidence, and compare.

The steps are numbered as they are carried out. The simple rule for a CI
job is `cert_is_green`; it trusts the file, so a job calls `verify_certificate` first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batch_invariance.errors import CertificateError, EvidenceError
from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.certificate import Certificate, certify
from batch_invariance.invariance_diff.gates import GATES
from batch_invariance.invariance_diff.model import Source, Status
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.strict_json import parse_json
from batch_invariance.invariance_diff.verdict import ARMED_ONLY
from batch_invariance.invariance_diff.workset_json import bare

REQUIRED_FIELDS = ("model", "ctx", "dispatch_n", "status", "source")
HEADLINES = ("status", "verdict", "promotable")
"""What a reader must see first of all that does not agree."""
GREEN_SOURCES = (Source.LIVE.value, Source.ENDPOINT.value)


@dataclass(frozen=True, slots=True)
class Verification:
    """`problems` is empty where the evidence bears the certificate out; `derived` is the
    certificate that the evidence gives, None where it gives none."""

    problems: tuple[str, ...]
    derived: Certificate | None

    @property
    def borne_out(self) -> bool:
        """Whether the file says exactly what its evidence says."""
        return self.derived is not None and not self.problems

    @property
    def promotable(self) -> bool:
        """Borne out, and fit to stand for the cell."""
        return self.borne_out and self.derived is not None and self.derived.promotable


def parse_certificate(data: bytes) -> dict[str, Any]:
    """The JSON object of a certificate file.

    Raises CertificateError unless it is one object with the required fields.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        raise CertificateError("certificate", [f"is not JSON: {error}"]) from None
    if not isinstance(value, dict):
        raise CertificateError("certificate", ["is not a JSON object"])
    missing = [name for name in REQUIRED_FIELDS if name not in value]
    if missing:
        raise CertificateError("certificate", [f"lacks {name!r}" for name in missing])
    return value


def evidence_name(cert: Mapping[str, Any]) -> str:
    """The evidence file's plain name, to be looked for beside the certificate.

    Raises CertificateError where there is none or where it would leave that folder.
    """
    evidence = cert.get("evidence")
    name = evidence.get("file") if isinstance(evidence, dict) else None
    if not isinstance(name, str) or not name:
        raise CertificateError("certificate", ["names no evidence: it can be shown, not verified"])
    if "/" in name or "\\" in name or not name.isprintable() or name in (".", ".."):
        raise CertificateError("certificate", ["the evidence's name is not a plain file name"])
    return name


def verify_certificate(
    cert_bytes: bytes,
    evidence_lines: Iterable[bytes],
    onlooker: Onlooker | None = None,
) -> Verification:
    """Derives the certificate again from its evidence and lists what does not agree.

    `onlooker` is for a reader who wants more of the evidence than its certificate. Raises
    CertificateError where the file is no certificate at all.
    """
    # 1. The file is a certificate.
    return verify_parsed(parse_certificate(cert_bytes), cert_bytes, evidence_lines, onlooker)


def verify_parsed(
    cert: Mapping[str, Any],
    cert_bytes: bytes,
    evidence_lines: Iterable[bytes],
    onlooker: Onlooker | None = None,
) -> Verification:
    """`verify_certificate` for bytes of which `parse_certificate` has given `cert`."""
    # 2. Its rules are known; another version's certificate is never guessed at.
    if cert.get("rules_version") != rules.RULES_VERSION:
        return Verification((f"unknown rules: version {cert.get('rules_version')!r}",), None)
    # 3. It names evidence, and the evidence is whole: sequence, chain, every record.
    try:
        derived = certify(evidence_lines, evidence_name(cert), onlooker)
    except EvidenceError as error:
        return Verification((str(error),), None)
    # 4. The evidence is the one the certificate was made from, and gives the same certificate.
    again_bytes = derived.to_bytes()
    if again_bytes == cert_bytes:
        return Verification((), derived)
    problems = []
    said = cert.get("evidence")
    if isinstance(said, dict) and said.get("sha256") != derived.evidence.sha256:
        problems.append("evidence: its SHA-256 is not the one in the certificate")
    again = json.loads(again_bytes)
    for name in sorted(cert.keys() | again.keys(), key=lambda n: (n not in HEADLINES, n)):
        if name not in again:
            problems.append(f"{bare(name)}: not a field of a certificate")
        elif name not in cert:
            problems.append(f"{name}: missing, the evidence gives {_short(again[name])}")
        elif not _same(cert[name], again[name]):
            problems.append(
                f"{name}: says {_short(cert[name])}, the evidence gives {_short(again[name])}"
            )
    if not problems:
        problems.append("the file is not in the form in which certificates are written")
    return Verification(tuple(problems), derived)


def _same(a: object, b: object) -> bool:
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _short(value: object, limit: int = 60) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def cert_is_green(cert: object, require_source: str = "live") -> bool:
    """Whether the certificate literally says `green` and comes from `require_source`.

    `cert` is the parsed JSON object; anything malformed is False. Raises ValueError for a
    `require_source` other than `live` or `endpoint`.
    """
    if require_source not in GREEN_SOURCES:
        raise ValueError(f"require_source must be one of {GREEN_SOURCES}, not {require_source!r}")
    return (
        isinstance(cert, Mapping)
        and all(name in cert for name in REQUIRED_FIELDS)
        and isinstance(cert["model"], str)
        and type(cert["ctx"]) is int
        and type(cert["dispatch_n"]) is int
        and cert["status"] == Status.GREEN.value
        and cert["source"] == require_source
    )


def is_promotable(cert: object) -> bool:
    """`cert_is_green`, live, with the producer's tag and every gate passed; absent is False."""
    if not isinstance(cert, Mapping) or not cert_is_green(cert):
        return False
    table = cert.get("gates")
    if cert.get("gate") != rules.PRODUCER_GATE or not isinstance(table, list):
        return False
    outcomes = {}
    for row in table:
        if not isinstance(row, Mapping):
            return False
        name = row.get("gate")
        if not isinstance(name, str):
            return False
        outcomes[name] = row.get("outcome")
    if len(outcomes) != len(table) or set(outcomes) != {gate.name for gate in GATES}:
        return False
    return all(
        outcome == "PASS" or (outcome == "NOT_APPLICABLE" and name in ARMED_ONLY)
        for name, outcome in outcomes.items()
    )
