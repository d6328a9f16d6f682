"""Canonical JSON, SHA-256, and orders that a seed decides alike on every platform."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator


def canonical_json(value: object) -> bytes:
    """One byte form per JSON value: sorted keys, no spaces, ASCII only, NaN refused.

    Raises ValueError for NaN and infinities, TypeError for what JSON has no form for.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def sha256_hex(data: bytes) -> str:
    """Lower-case hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of the canonical JSON of `value`."""
    return sha256_hex(canonical_json(value))


def counter_words(label: str) -> Iterator[int]:
    """Endless unsigned 64-bit integers from SHA-256 in counter mode over `label`."""
    counter = 0
    while True:
        block = hashlib.sha256(f"{label}/{counter}".encode()).digest()
        for start in range(0, 32, 8):
            yield int.from_bytes(block[start : start + 8], "big")
        counter += 1


def seeded_order(n: int, label: str) -> list[int]:
    """A permutation of range(n), decided by `label` alone (Fisher-Yates).

    The modulo bias is below n / 2**64 and of no consequence for an order of dispatch.
    """
    order = list(range(n))
    words = counter_words(label)
    for i in range(n - 1, 0, -1):
        j = next(words) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order
