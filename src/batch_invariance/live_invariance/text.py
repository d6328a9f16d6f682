"""Text that did not come from us, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with everything but newlines and printable characters escaped, as in `\\x1b`."""
    return "".join(
        char
        if char == "\n" or char.isprintable()
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def one_line(text: str) -> str:
    """`printable`, with newlines escaped too: no text of a file can begin a line of ours."""
    return printable(text).replace("\n", "\\n")
