"""Token ids and logprobs as the evidence stores them: base64 of little-endian int32 and float32.

Two packed values are equal exactly when their bytes are, so a comparison never decodes them
unless they differ.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence

from batch_invariance.errors import EvidenceError


def pack_ids(values: Sequence[int]) -> str:
    """Base64 of the values as little-endian int32. Raises struct.error outside int32."""
    return base64.b64encode(struct.pack(f"<{len(values)}i", *values)).decode("ascii")


def pack_floats(values: Sequence[float]) -> str:
    """Base64 of the values rounded to little-endian float32.

    Raises OverflowError outside float32. llama-server prints float32 values with enough digits
    that the rounding gives back its exact bits.
    """
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")


def _unpack(text: str, code: str) -> tuple[bytes, int]:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EvidenceError("evidence", [f"packed {code} data is not base64: {error}"]) from None
    if len(raw) % 4:
        raise EvidenceError("evidence", [f"packed {code} data is not a multiple of 4 bytes"])
    return raw, len(raw) // 4


def unpack_ids(text: str) -> tuple[int, ...]:
    """The inverse of `pack_ids`. Raises EvidenceError for anything that is not such data."""
    raw, n = _unpack(text, "int32")
    return struct.unpack(f"<{n}i", raw)


def unpack_floats(text: str) -> tuple[float, ...]:
    """The inverse of `pack_floats`. Raises EvidenceError for anything that is not such data."""
    raw, n = _unpack(text, "float32")
    return struct.unpack(f"<{n}f", raw)
