"""Files read up to a size, whatever they are: a pipe or a device has no size to ask for."""

from __future__ import annotations

from pathlib import Path

MAX_INPUT_BYTES = 1 << 26
"""Of a certificate, a work-set, a schedule: room for tens of thousands of items."""


def read_at_most(path: Path, most: int) -> bytes | None:
    """The bytes of a file; None where it has more than `most`. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read(most + 1)
    return None if len(data) > most else data
