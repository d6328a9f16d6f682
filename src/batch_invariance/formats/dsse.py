"""DSSE 1.0: the envelope around a signed payload, and the bytes that a signature covers.

Source: https://github.com/secure-systems-lab/dsse, protocol.md and envelope.md. A signature is
over `PAE(type, body)`, never over the JSON of the envelope.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from typing import Any

from batch_invariance.errors import FileFormatError
from batch_invariance.invariance_diff.strict_json import parse_json

HMAC_KEY_ID = "hmac-sha256"
"""A hint, as all key ids are: it says how the signature was made and nothing about the key."""
_SURROGATE = re.compile("[\ud800-\udfff]")
MIN_KEY_BYTES = 32
"""RFC 2104 discourages keys shorter than the digest."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature's bytes, and the hint at its key (None for none)."""

    sig: bytes
    keyid: str | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload with its type and its signatures."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...]

    def to_bytes(self) -> bytes:
        """The JSON file: sorted keys, standard base64, one newline at the end."""
        signatures = []
        for signature in self.signatures:
            entry = {"sig": base64.b64encode(signature.sig).decode("ascii")}
            if signature.keyid is not None:
                entry["keyid"] = signature.keyid
            signatures.append(entry)
        value = {
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "payloadType": self.payload_type,
            "signatures": signatures,
        }
        return json.dumps(value, sort_keys=True).encode("ascii") + b"\n"


def pae(payload_type: str, body: bytes) -> bytes:
    """The pre-authentication encoding: `DSSEv1`, both lengths in bytes, both parts."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(body), body)


def hmac_signature(key: bytes, payload_type: str, body: bytes) -> Signature:
    """HMAC-SHA256 over the encoding. Raises FileFormatError for a key that is too short."""
    if len(key) < MIN_KEY_BYTES:
        raise FileFormatError(
            "HMAC key",
            [f"has {len(key)} bytes, needs {MIN_KEY_BYTES}: openssl rand -out key {MIN_KEY_BYTES}"],
        )
    return Signature(hmac.digest(key, pae(payload_type, body), hashlib.sha256), HMAC_KEY_ID)


def hmac_fits(key: bytes, envelope: Envelope) -> bool:
    """Whether a signature of the envelope is this key's HMAC, compared in constant time.

    The key ids are not asked: they are no part of what is signed.
    """
    wanted = hmac_signature(key, envelope.payload_type, envelope.payload).sig
    fits = [hmac.compare_digest(wanted, signature.sig) for signature in envelope.signatures]
    return any(fits)


def parse_envelope(data: bytes) -> Envelope:
    """The envelope in a JSON file; either alphabet of base64 is read.

    Raises FileFormatError for anything else.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        raise FileFormatError("envelope", [f"is not JSON: {error}"[:200]]) from None
    if not isinstance(value, dict):
        raise FileFormatError("envelope", ["is not a JSON object"])
    issues: list[str] = []
    kind = value.get("payloadType")
    if not isinstance(kind, str) or not kind or _SURROGATE.search(kind):
        issues.append("payloadType is not a text")
    payload = _decoded(value.get("payload"), "payload", issues)
    rows = value.get("signatures")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        issues.append("signatures is not a list of objects")
        rows = []
    signatures = tuple(_signature(row, i, issues) for i, row in enumerate(rows))
    if issues or not isinstance(kind, str):
        raise FileFormatError("envelope", issues)
    return Envelope(kind, payload, signatures)


def _signature(row: dict[str, Any], index: int, issues: list[str]) -> Signature:
    keyid = row.get("keyid")
    if keyid is not None and not isinstance(keyid, str):
        issues.append(f"signatures[{index}].keyid is not a text")
        keyid = None
    return Signature(_decoded(row.get("sig"), f"signatures[{index}].sig", issues), keyid)


def _decoded(value: object, where: str, issues: list[str]) -> bytes:
    if isinstance(value, str):
        plain = value.replace("-", "+").replace("_", "/")
        try:
            return base64.b64decode(plain, validate=True)
        except (binascii.Error, ValueError):
            pass
    issues.append(f"{where} is not base64")
    return b""
