"""Keys and signature files: read, written, checked, set aside."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from batch_invariance.errors import BatchInvarianceError, FileFormatError, UsageError
from batch_invariance.invariance_diff.signature import Signature, SigningKey, parse_signature
from batch_invariance.live_invariance.bounded import read_at_most
from batch_invariance.live_invariance.store import previous_path, set_aside, write_atomic

MAX_KEY_BYTES = 1 << 16
MAX_SIGNATURE_BYTES = 1 << 12
OF_OTHERS = stat.S_IROTH | stat.S_IWOTH


def read_key(path: Path) -> SigningKey:
    """The key whose bytes a file holds.

    Raises UsageError where it cannot be read, is too short or too long, or where users that are
    neither its owner nor of its group may read or write it: whoever knows it can sign.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if os.name == "posix" and stat.S_ISREG(mode) and mode & OF_OTHERS:
                raise UsageError(
                    f"--sign-key {path}: everybody can read or replace it, so anybody can sign; "
                    "make a new key and chmod 600 its file"
                )
            secret = file.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--sign-key {path}: {error.strerror}; check the path") from error
    if len(secret) > MAX_KEY_BYTES:
        raise UsageError(f"--sign-key {path}: larger than {MAX_KEY_BYTES >> 10} KiB, no key")
    try:
        return SigningKey(secret)
    except UsageError as error:
        raise UsageError(f"--sign-key {path}: {error}") from None


def signature_path(certificate: Path) -> Path:
    """`x.json` is signed by `x.json.hmac` beside it."""
    return certificate.with_name(certificate.name + ".hmac")


def read_signature(certificate: Path) -> Signature | None:
    """The signature beside a certificate; None where there is none.

    Raises BatchInvarianceError where it cannot be read, FileFormatError where it is none.
    """
    path = signature_path(certificate)
    if not os.path.lexists(path):
        return None
    if not os.path.isfile(path):
        raise BatchInvarianceError(f"cannot read {path}: it is no regular file")
    try:
        data = read_at_most(path, MAX_SIGNATURE_BYTES)
    except OSError as error:
        raise BatchInvarianceError(f"cannot read {path}: {error.strerror}") from error
    if data is None:
        raise FileFormatError("signature", [f"is larger than {MAX_SIGNATURE_BYTES} bytes"])
    return parse_signature(data)


def write_signature(certificate: Path, data: bytes, key: SigningKey) -> Path:
    """Signs the bytes of a certificate file in a file beside it, and returns that file's path.

    Raises BatchInvarianceError when it cannot be written.
    """
    path = signature_path(certificate)
    write_atomic(path, key.sign(data).to_bytes())
    return path


def set_aside_signed(certificate: Path, others: Sequence[Path] = ()) -> tuple[Path, ...]:
    """`set_aside` for a certificate with its signature, then `others`.

    A previous signature never stays beside a previous certificate that it does not belong to.
    Raises UsageError when a file cannot be renamed or removed.
    """
    signature = signature_path(certificate)
    moved = set_aside([certificate, signature, *others])
    stale = previous_path(signature)
    if previous_path(certificate) in moved and stale not in moved:
        try:
            stale.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"cannot remove the older {stale}: {error.strerror}") from error
    return moved


class Signed(str, Enum):
    """What is known of a certificate's signature: without a key `NONE` or `NOT_CHECKED`, with one
    the others, of which only `FITS` is good."""

    NONE = "none"
    NOT_CHECKED = "not_checked"
    FITS = "fits"
    ABSENT = "absent"
    UNREADABLE = "unreadable"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """What became of the check, and a line about it (empty where there is nothing to say)."""

    signed: Signed
    text: str

    @property
    def holds(self) -> bool:
        """Whether nothing that was asked for is missing: without a key nothing was."""
        return self.signed in (Signed.NONE, Signed.NOT_CHECKED, Signed.FITS)


def check_signature(certificate: Path, data: bytes, key: SigningKey | None) -> SignatureCheck:
    """Checks the signature beside a certificate whose file holds `data`."""
    path = signature_path(certificate)
    if key is None:
        if not os.path.lexists(path):
            return SignatureCheck(Signed.NONE, "")
        text = f"the signature in {path.name} was not checked: that takes --sign-key"
        return SignatureCheck(Signed.NOT_CHECKED, text)
    try:
        signature = read_signature(certificate)
    except BatchInvarianceError as error:
        return SignatureCheck(Signed.UNREADABLE, f"{path.name}: {error}")
    if signature is None:
        return SignatureCheck(Signed.ABSENT, f"it is not signed: there is no {path.name}")
    if key.fits(signature, data):
        return SignatureCheck(Signed.FITS, f"signed with the key {key.id}")
    text = f"{path.name} does not fit: the certificate was changed after it was signed"
    if signature.key_id != key.id:
        text = f"{path.name} names another key: {signature.key_id}, this one is {key.id}"
    return SignatureCheck(Signed.DOES_NOT_FIT, text)
