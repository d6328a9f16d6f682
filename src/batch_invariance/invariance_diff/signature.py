"""The HMAC of a certificate, detached: computed, written as JSON, read, compared.

The HMAC is over the certificate file's bytes and nothing else, so any tool can compute it too. The
certificate names its evidence by digest; so both are covered.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field

from batch_invariance.errors import FileFormatError, UsageError
from batch_invariance.invariance_diff.strict_json import parse_json

SIGNATURE_SCHEMA = "certificate-hmac/1"
ALGORITHM = "HMAC-SHA256"
MIN_KEY_BYTES = 32
"""RFC 2104 discourages keys shorter than the digest."""
_KEY_ID_TEXT = b"certificate-hmac/1 key id"
_KEY_ID_DIGITS = 16
_FIELDS = ("algorithm", "hmac", "key_id", "schema")
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret that signer and reader share. Raises UsageError for one that is too short."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_KEY_BYTES:
            raise UsageError(
                f"the key has {len(self.secret)} bytes, needs {MIN_KEY_BYTES}: "
                f"openssl rand -out key {MIN_KEY_BYTES}"
            )

    @property
    def id(self) -> str:
        """16 hex digits that name the key and do not give it away: of its HMAC of a fixed text."""
        return self._hmac(_KEY_ID_TEXT)[:_KEY_ID_DIGITS]

    def sign(self, certificate: bytes) -> Signature:
        """The signature of a certificate file's bytes."""
        return Signature(self.id, self._hmac(certificate))

    def fits(self, signature: Signature, certificate: bytes) -> bool:
        """Whether this key made the signature of these bytes, compared in constant time.

        The key's id is not asked: it is no part of what is signed.
        """
        return hmac.compare_digest(self._hmac(certificate), signature.hmac)

    def _hmac(self, data: bytes) -> str:
        return hmac.digest(self.secret, data, hashlib.sha256).hex()


@dataclass(frozen=True, slots=True)
class Signature:
    """The name of the key, and the HMAC-SHA256 in lower-case hex."""

    key_id: str
    hmac: str

    def to_bytes(self) -> bytes:
        """The JSON file beside the certificate: sorted keys, one newline at the end."""
        value = {
            "algorithm": ALGORITHM,
            "hmac": self.hmac,
            "key_id": self.key_id,
            "schema": SIGNATURE_SCHEMA,
        }
        return json.dumps(value, sort_keys=True, indent=2).encode("ascii") + b"\n"


def parse_signature(data: bytes) -> Signature:
    """The signature in a JSON file. Raises FileFormatError for anything else."""
    try:
        value = parse_json(data)
    except ValueError:
        raise FileFormatError("signature", ["is not JSON"]) from None
    if not isinstance(value, dict) or tuple(sorted(value)) != _FIELDS:
        raise FileFormatError("signature", [f"is not an object of {', '.join(_FIELDS)}"])
    issues = [
        f"{name} is not {wanted!r}"
        for name, wanted in (("schema", SIGNATURE_SCHEMA), ("algorithm", ALGORITHM))
        if value[name] != wanted
    ]
    digest, key_id = value["hmac"], value["key_id"]
    if not isinstance(digest, str) or not _HEX.fullmatch(digest):
        issues.append("hmac is not 64 lower-case hex digits")
    if not isinstance(key_id, str) or not re.fullmatch(r"[0-9a-f]{16}", key_id):
        issues.append("key_id is not 16 lower-case hex digits")
    if issues:
        raise FileFormatError("signature", issues)
    return Signature(key_id, digest)
