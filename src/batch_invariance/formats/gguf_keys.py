"""The metadata of a GGUF file: read with bounded memory, asked with checked types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from batch_invariance.errors import GgufError
from batch_invariance.formats.gguf_stream import MAX_SHOWN, Array, Cursor

MAX_KEYS: Final = 1 << 16
MAX_NUMBER: Final = (1 << 32) - 1
MAX_KEPT_BYTES: Final = 1 << 22
"""Most bytes of names, strings and short arrays that are kept; real headers stay below 100 KiB."""
SMALLEST_KEY: Final = 13
"""Bytes of a key without a name whose value takes one byte."""


def read_keys(cursor: Cursor, count: int) -> dict[str, object]:
    """Read `count` keys, which stand at the cursor; long strings and arrays are counted, not kept.

    Raises:
        GgufError: a key is cut off, of an unknown type, or stands twice, or they are too many.
    """
    keys: dict[str, object] = {}
    kept = 0
    for index in range(count):
        name = cursor.text(f"the name of key {index}")
        what = f"key {name[:MAX_SHOWN]!r}"
        if name in keys:
            cursor.fail(f"{what} stands twice")
        kind = cursor.value_type(what)
        start = cursor.position
        value = cursor.value(kind, what)
        keys[name] = value
        skipped = value is None or (isinstance(value, Array) and not value.numbers)
        kept += len(name) + (0 if skipped else cursor.position - start)
        if kept > MAX_KEPT_BYTES:
            cursor.fail(f"absurd header: more than {MAX_KEPT_BYTES >> 20} MiB of keys")
    return keys


class Keys:
    """Typed access to the metadata of one file. Every method raises GgufError for a wrong type."""

    def __init__(self, values: Mapping[str, object], what: str) -> None:
        self._values = values
        self._what = what

    def text(self, key: str) -> str | None:
        """A string; None where it is absent or too long to be kept."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise GgufError(self._what, [f"{_shown(key)} is not a string"])
        return value

    def number(self, key: str, default: int | None = None, most: int = MAX_NUMBER) -> int:
        """A number from 0 to `most`. Without a default the key must be there."""
        value = self._values.get(key, default)
        if value is None:
            raise GgufError(
                self._what, [f"key {_shown(key)} is missing; this is no language model"]
            )
        return self._checked(key, value, most)

    def per_block(self, key: str, blocks: int, default: tuple[int, ...] | None) -> tuple[int, ...]:
        """One number per block; a scalar stands for every block."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, Array):
            return (self.number(key),) * blocks
        return self._per_block(key, value, blocks)

    def most(self, key: str, default: int) -> int:
        """A number, or the largest where there is one per block."""
        value = self._values.get(key)
        if not isinstance(value, Array):
            return self.number(key, default)
        return max((self._checked(key, number) for number in value.numbers), default=default)

    def window_pattern(self, key: str, blocks: int) -> tuple[bool, ...] | None:
        """True for each block that attends to a window alone; None where no pattern is stated.

        A scalar n stands for n - 1 windowed blocks and one that attends to all, over and over; 0
        makes every block windowed (`set_swa_pattern` in llama-hparams.cpp, b11434).
        """
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, Array):
            return tuple(bool(number) for number in self._per_block(key, value, blocks))
        return every_nth_full(self.number(key), blocks)

    def count(self, key: str) -> int:
        """The length of an array; 0 where there is none."""
        value = self._values.get(key)
        return value.count if isinstance(value, Array) else 0

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def _per_block(self, key: str, value: Array, blocks: int) -> tuple[int, ...]:
        if len(value.numbers) < blocks:
            raise GgufError(
                self._what, [f"{_shown(key)} has {value.count} entries for {blocks} blocks"]
            )
        return tuple(self._checked(key, number) for number in value.numbers[:blocks])

    def _checked(self, key: str, value: object, most: int = MAX_NUMBER) -> int:
        if not isinstance(value, int) or not 0 <= value <= most:
            given = f"{value!r:.40}" if isinstance(value, (int, float, str)) else "a list"
            raise GgufError(
                self._what, [f"{_shown(key)} is {given}, not a number from 0 to {most}"]
            )
        return int(value)


def _shown(key: str) -> str:
    """A key as an error quotes it; the name of the architecture, which begins it, is the file's."""
    return key if key.isprintable() and len(key) <= MAX_SHOWN else repr(key[:MAX_SHOWN])


def every_nth_full(period: int, blocks: int) -> tuple[bool, ...]:
    """The windowed blocks where every `period`-th attends to all; all of them for a period of 0."""
    return tuple(period == 0 or block % period < period - 1 for block in range(blocks))
