"""The tensor table of a GGUF file: what is stored in which type, and how many bytes it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batch_invariance.formats.ggml import GGML_TYPES, GgmlType
from batch_invariance.formats.gguf_stream import MAX_SHOWN, Cursor

MAX_TENSORS: Final = 1 << 20
MAX_DIMS: Final = 4
"""GGML_MAX_DIMS in ggml.h."""
SMALLEST_TENSOR: Final = 24
"""Bytes of an entry without a name and without dimensions."""


@dataclass(frozen=True, slots=True)
class TensorTable:
    """Tensors by type name, their bytes without padding, and where the last one ends.

    `last_byte` counts from the start of the data section.
    """

    types: Mapping[str, int]
    weights_bytes: int
    last_byte: int


def read_tensors(cursor: Cursor, count: int, alignment: int) -> TensorTable:
    """Read `count` entries of the tensor table, which stands at the cursor.

    Raises:
        GgufError: an entry is cut off, of an unknown type, misaligned or of an absurd shape.
    """
    types: Counter[str] = Counter()
    total = last = 0
    for index in range(count):
        name = cursor.text(f"the name of tensor {index}")
        of = f"tensor {name[:MAX_SHOWN]!r}"
        rank = cursor.u32(of)
        if rank > MAX_DIMS:
            cursor.fail(f"{of} has {rank} dimensions, more than {MAX_DIMS}")
        dims = [cursor.u64(of) for _ in range(rank)]
        number = cursor.u32(of)
        kind = GGML_TYPES.get(number)
        if kind is None:
            cursor.fail(f"{of} has the unknown type {number}")
        offset = cursor.u64(of)
        if offset % alignment:
            cursor.fail(f"{of} begins at {offset}, which is not a multiple of {alignment}")
        size = _tensor_bytes(cursor, kind, dims, of)
        types[kind.name] += 1
        total += size
        last = max(last, offset + size)
    return TensorTable(dict(types), total, last)


def _tensor_bytes(cursor: Cursor, kind: GgmlType, dims: Sequence[int], of: str) -> int:
    elements = 1
    for dim in dims:
        elements *= dim
    if elements >= 1 << 63:
        cursor.fail(f"{of} has the absurd shape {list(dims)}")
    row = dims[0] if dims else 1
    if row % kind.block_elements:
        cursor.fail(f"{of} has rows of {row}, no multiple of {kind.name}'s {kind.block_elements}")
    return elements // kind.block_elements * kind.block_bytes
