"""A bounded cursor over the bytes of a GGUF file: numbers, strings, and skipping.

Rules that hold for every method: little-endian; at most one chunk of memory is held, whatever a
length field claims; where the file's size is known, a claimed length is checked against what is
left before it is used; nothing is read beyond `MAX_HEADER_BYTES`; every fault is a `GgufError`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NoReturn, Protocol

from batch_invariance.errors import GgufError

CHUNK_BYTES: Final = 1 << 18
MAX_TEXT_BYTES: Final = 1 << 16
MAX_CLAIM: Final = 1 << 30
"""Longest string and array that ggml itself accepts (GGUF_MAX_STRING_LENGTH, b11434)."""
MAX_HEADER_BYTES: Final = 1 << 28
"""Most that is ever read of a file: many times what the largest vocabularies take."""
MAX_ARRAY_DEPTH: Final = 4
MAX_KEPT_ELEMENTS: Final = 4096
MAX_SHOWN: Final = 80
"""Characters of a name in an error."""


class BinarySource(Protocol):
    """Anything with the `read` of a binary file: at most `n` bytes, empty only at the end."""

    def read(self, n: int, /) -> bytes:
        """Return up to `n` bytes."""
        ...


class ValueType(IntEnum):
    """The type of a metadata value, as numbered in the file (gguf.md)."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
"""How each fixed-size value is packed."""

_U32 = SCALARS[ValueType.UINT32]
_U64 = SCALARS[ValueType.UINT64]
_SMALLEST_ARRAY = 12


class Cursor:
    """Reads forward through `source`. `size` is the file's length in bytes where it is known."""

    def __init__(self, source: BinarySource, size: int | None, what: str) -> None:
        self._source = source
        self._size = size
        self._what = what
        self._buffer = b""
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        """Bytes consumed so far."""
        return self._before + self._at

    def fail(self, issue: str) -> NoReturn:
        """Raise the one error that this reader raises."""
        raise GgufError(self._what, [issue])

    def claim(self, n: int, of: str) -> None:
        """Refuse a length of `n` bytes that the file, or any header, cannot hold."""
        if self._size is not None and n > self._size - self.position:
            self._fail_truncated(n, of)
        if n > MAX_HEADER_BYTES - self.position:
            self.fail(
                f"{of} ends beyond {MAX_HEADER_BYTES >> 20} MiB; no header is as long, so this is "
                "no language model"
            )

    def take(self, n: int, of: str) -> bytes:
        """The next `n` bytes; callers pass at most `MAX_TEXT_BYTES`."""
        at = self._fill(n, of)
        self._at = at + n
        return self._buffer[at : at + n]

    def skip(self, n: int, of: str) -> None:
        """Move past `n` bytes, one chunk in memory at a time."""
        self.claim(n, of)
        while n > 0:
            have = len(self._buffer) - self._at
            if have == 0:
                self._fill(1, of)
                continue
            step = min(have, n)
            self._at += step
            n -= step

    def u32(self, of: str) -> int:
        """The next unsigned 32-bit number."""
        at = self._fill(4, of)
        self._at = at + 4
        return int(_U32.unpack_from(self._buffer, at)[0])

    def u64(self, of: str) -> int:
        """The next unsigned 64-bit number."""
        at = self._fill(8, of)
        self._at = at + 8
        return int(_U64.unpack_from(self._buffer, at)[0])

    def length(self, of: str) -> int:
        """The next string length or element count."""
        n = self.u64(of)
        if n > MAX_CLAIM:
            self.fail(f"{of} claims a length of {n}, more than ggml allows ({MAX_CLAIM})")
        return n

    def text(self, of: str) -> str:
        """A string that must be short: a key, a tensor's name."""
        n = self.length(of)
        self.claim(n, of)
        if n > MAX_TEXT_BYTES:
            self.fail(f"{of} is {n} bytes long, more than {MAX_TEXT_BYTES}")
        return self.take(n, of).decode("utf-8", "replace")

    def value_type(self, of: str) -> ValueType:
        """The next value type."""
        number = self.u32(of)
        try:
            return ValueType(number)
        except ValueError:
            self.fail(f"{of} has the unknown value type {number}")

    def value(self, kind: ValueType, of: str) -> object:
        """One metadata value.

        Scalars as they are; a string as str, or None where it is longer than `MAX_TEXT_BYTES`;
        an array as `Array`.
        """
        if kind is ValueType.ARRAY:
            return self.array(of)
        if kind is ValueType.STRING:
            n = self.length(of)
            self.claim(n, of)
            if n > MAX_TEXT_BYTES:
                self.skip(n, of)
                return None
            return self.take(n, of).decode("utf-8", "replace")
        packed = SCALARS[kind]
        return packed.unpack(self.take(packed.size, of))[0]

    def array(self, of: str, depth: int = 1) -> Array:
        """An array: its length, and its numbers where there are few of them."""
        if depth > MAX_ARRAY_DEPTH:
            self.fail(f"{of} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        kind = self.value_type(of)
        count = self.length(of)
        packed = SCALARS.get(kind)
        if packed is None:
            self.claim(count * (_U64.size if kind is ValueType.STRING else _SMALLEST_ARRAY), of)
            if kind is ValueType.STRING:
                self._skip_strings(count, of)
            else:
                for _ in range(count):
                    self.array(of, depth + 1)
            return Array(count, ())
        self.claim(count * packed.size, of)
        if count > MAX_KEPT_ELEMENTS:
            self.skip(count * packed.size, of)
            return Array(count, ())
        raw = self.take(count * packed.size, of)
        return Array(count, tuple(row[0] for row in packed.iter_unpack(raw)))

    def _skip_strings(self, count: int, of: str) -> None:
        unpack = _U64.unpack_from
        while count > 0:
            buffer, at, end = self._buffer, self._at, len(self._buffer)
            while count > 0 and at + 8 <= end:
                after = at + 8 + unpack(buffer, at)[0]
                if after > end:
                    break
                at = after
                count -= 1
            self._at = at
            if count > 0:
                self.skip(self.length(of), of)
                count -= 1

    def _fill(self, n: int, of: str) -> int:
        """Make `n` bytes available in the buffer and return the offset where they begin."""
        have = len(self._buffer) - self._at
        if have >= n:
            return self._at
        self.claim(n, of)
        parts = [self._buffer[self._at :]]
        while have < n:
            part = self._source.read(max(CHUNK_BYTES, n - have))
            if not part:
                self._fail_truncated(n, of)
            parts.append(part)
            have += len(part)
        self._before += self._at
        self._buffer = b"".join(parts)
        self._at = 0
        return 0

    def _fail_truncated(self, n: int, of: str) -> NoReturn:
        self.fail(
            f"the file ends inside {of}: {n} bytes wanted at offset {self.position}; "
            "it is truncated or not a GGUF model, so fetch it again"
        )


class Array:
    """An array value: `count` elements, of which `numbers` are kept (none of a long array)."""

    __slots__ = ("count", "numbers")

    def __init__(self, count: int, numbers: tuple[object, ...]) -> None:
        self.count = count
        self.numbers = numbers
