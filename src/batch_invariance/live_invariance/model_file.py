"""The headers of a model's files, read from disk."""

from __future__ import annotations

from pathlib import Path

from batch_invariance.errors import UsageError
from batch_invariance.formats.gguf import GgufHeader, read_header
from batch_invariance.live_invariance.digests import split_parts


def read_model(model: Path) -> tuple[list[GgufHeader], int]:
    """The header of every part of a model, in order, and the bytes that its files have together.

    Raises UsageError for a file that cannot be read or a missing part, GgufError for a file that
    is no model.
    """
    headers, size = [], 0
    for part in split_parts(model):
        try:
            part_size = part.stat().st_size
            with open(part, "rb") as file:
                headers.append(read_header(file, part_size, f"model {part.name}"))
        except OSError as error:
            raise UsageError(f"--model {part}: {error.strerror}; check the path") from error
        size += part_size
    return headers, size
