"""Text in columns of a terminal: how wide it is, where it is cut, how it is wrapped."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TextIO

from batch_invariance.live_invariance.text import printable

ELSEWHERE = 100
"""Columns where the output is no terminal."""
LEAST, MOST = 60, 160


def columns_of(stream: TextIO) -> int:
    """The columns to write into."""
    if not stream.isatty():
        return ELSEWHERE
    return max(LEAST, min(MOST, shutil.get_terminal_size((ELSEWHERE, 24)).columns))


def one_line(text: str) -> str:
    """Text of others on one line, made safe."""
    return printable(text).replace("\n", "\\n")


def width_of(text: str) -> int:
    """Columns that printable text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def padded(text: str, width: int) -> str:
    """`text` with blanks up to `width` columns."""
    return text + " " * max(0, width - width_of(text))


def clipped(text: str, width: int) -> str:
    """`text`, cut and marked with dots where it is wider than `width`."""
    if width_of(text) <= width:
        return text
    taken, used = [], 0
    for char in text:
        used += _width(char)
        if used > width - 3:
            break
        taken.append(char)
    return "".join(taken) + "..."


def wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of at most `width` columns, broken at blanks where there are some."""
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if width_of(candidate) <= width:
            line = candidate
            continue
        if line:
            yield line
        *full, line = _pieces(word, width)
        yield from full
    yield line


def _pieces(word: str, width: int) -> Sequence[str]:
    """A word cut into pieces that fit."""
    pieces, piece, used = [], "", 0
    for char in word:
        if used + _width(char) > width:
            pieces.append(piece)
            piece, used = "", 0
        piece += char
        used += _width(char)
    return [*pieces, piece]


def beside(columns: Sequence[tuple[str, int]], gap: str = "  ") -> Iterator[str]:
    """Texts side by side, each wrapped to its own width."""
    cells = [list(wrapped(text, width)) for text, width in columns]
    for row in range(max(map(len, cells))):
        parts = [
            padded(lines[row] if row < len(lines) else "", width)
            for lines, (_, width) in zip(cells, columns, strict=True)
        ]
        yield gap.join(parts).rstrip()
