"""Colour on a terminal, plain text elsewhere; and words to somebody who may have gone."""

from __future__ import annotations

import os
from typing import TextIO

from batch_invariance.invariance_diff.model import Verdict

_CODES = {
    Verdict.GREEN: "32",
    Verdict.AMBER: "33",
    Verdict.UNVERIFIED: "35",
    Verdict.RED: "31",
}


class Style:
    """Paints for one stream; does nothing where that is no terminal or NO_COLOR is set."""

    def __init__(self, stream: TextIO) -> None:
        self.colour = stream.isatty() and not os.environ.get("NO_COLOR")

    def bold(self, text: str) -> str:
        """Emphasised."""
        return self._paint(text, "1")

    def dim(self, text: str) -> str:
        """Set back."""
        return self._paint(text, "2")

    def verdict(self, verdict: Verdict, text: str | None = None) -> str:
        """A verdict in its colour."""
        return self._paint(text or verdict.value, f"1;{_CODES[verdict]}")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


class Speaker:
    """Says things on a stream; falls silent, without an error, once that has gone.

    A closed terminal or pipe is no reason to end a run.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def say(self, text: str) -> None:
        """Writes `text` as it is, at once."""
        if self._gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._gone = True
