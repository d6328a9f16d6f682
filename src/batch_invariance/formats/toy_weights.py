"""Seeded weights for toy models: integers from SHA-256, packed into ggml's tensor layouts.

A weight is an integer times a power of two. Everything but the final `struct.pack` is integer
arithmetic, and that step rounds an exact double once, so a seed gives the same bytes on every
platform and Python.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from batch_invariance.formats.ggml import GgmlType

WEIGHT_BITS: Final = 16
"""Drawn weights lie strictly between -2**16 and 2**16."""

_QUANT_BITS: Final = {GgmlType.Q8_0: 8, GgmlType.Q4_0: 4}


def draw(label: str, count: int) -> list[int]:
    """`count` integers with a triangular bell around 0, standard deviation 26,755.

    Each is the sum of two uniform 16-bit numbers less 65,535; the bytes are SHA-256 of `label` and
    a counter, so equal labels give equal weights, whatever else is drawn.
    """
    prefix = label.encode()
    blocks = -(-count // 8)
    raw = b"".join(sha256(prefix + b":%d" % i).digest() for i in range(blocks))
    halves = struct.unpack(f"<{blocks * 16}H", raw)
    middle = (1 << WEIGHT_BITS) - 1
    pairs = zip(halves[::2], halves[1::2], strict=True)
    return [first + second - middle for first, second in pairs][:count]


def quant_step(kind: GgmlType) -> int:
    """The distance between two neighbouring quantised weights, in drawn units; 0 for floats."""
    bits = _QUANT_BITS.get(kind)
    return 0 if bits is None else 1 << (WEIGHT_BITS + 1 - bits)


def pack(kind: GgmlType, numbers: Sequence[int], exponent: int) -> bytes:
    """Pack `numbers` times 2**`exponent` as tensor data; whole blocks, row by row."""
    if kind in _QUANT_BITS:
        return _pack_quantised(kind, numbers, exponent)
    scale = 2.0**exponent
    values = [number * scale for number in numbers]
    if kind is GgmlType.F16:
        return struct.pack(f"<{len(values)}e", *values)
    raw = struct.pack(f"<{len(values)}f", *values)
    if kind is GgmlType.F32:
        return raw
    words = struct.unpack(f"<{len(values)}I", raw)
    rounded = [(word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words]
    return struct.pack(f"<{len(values)}H", *rounded)


def _pack_quantised(kind: GgmlType, numbers: Sequence[int], exponent: int) -> bytes:
    """Q8_0 and Q4_0 with one power-of-two scale for all blocks."""
    bits = _QUANT_BITS[kind]
    step = quant_step(kind)
    half, top = step // 2, (1 << (bits - 1)) - 1
    quants = [max(-top, min((number + half) // step, top)) for number in numbers]
    scale = struct.pack("<e", step * 2.0**exponent)
    size = kind.block_elements
    starts = range(0, len(quants), size)
    if kind is GgmlType.Q8_0:
        return b"".join(scale + struct.pack("<32b", *quants[at : at + size]) for at in starts)
    codes = [quant + 8 for quant in quants]
    return b"".join(
        scale + bytes(codes[at + i] | codes[at + 16 + i] << 4 for i in range(16)) for at in starts
    )
