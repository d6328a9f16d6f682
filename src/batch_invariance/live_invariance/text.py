"""Text that did not come from us, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` in one line: everything but printable characters escaped, as in `\\x1b` and `\\n`.

    No text of a file or a server can then begin a line of ours.
    """
    return printable_lines(text).replace("\n", "\\n")


def printable_lines(text: str) -> str:
    """`text` with everything but newlines and printable characters escaped."""
    return "".join(
        char
        if char == "\n" or char.isprintable()
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
