"""Runs of characters that one text shares with others, found in linear time.

The text that is searched is indexed by its runs of `GRAM` characters; every other text is probed
at each `STEP`-th place and a hit is extended both ways. Every run of GRAM + STEP - 1 characters or
more is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

GRAM = 12
STEP = 5
LONGEST_LEFT = 128
"""A hit is extended so far to the left. More is needed only where the run's beginning stands in the
searched text twice; the limit keeps repetitive texts linear."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a text that is searched: its characters, where it begins in the text, and the
    first place of each run of GRAM characters in it."""

    text: str
    begin: int
    grams: dict[str, int]


def window_of(text: str, begin: int, length: int) -> Window:
    """At most `length` characters of `text` from `begin` on, indexed."""
    part = text[begin : begin + length]
    grams: dict[str, int] = {}
    for place in range(len(part) - GRAM + 1):
        grams.setdefault(part[place : place + GRAM], place)
    return Window(part, begin, grams)


def shared_runs(window: Window, text: str) -> Iterator[range]:
    """Places in the window of the runs that `text` shares with it, in the order of `text`.

    A run that stands in the window more than once is given where it stands first.
    """
    place = 0
    while place + GRAM <= len(text):
        at = window.grams.get(text[place : place + GRAM])
        if at is None:
            place += STEP
            continue
        right = GRAM + common_length(window.text, text, at + GRAM, place + GRAM)
        before = window.text[max(0, at - LONGEST_LEFT) : at][::-1]
        left = common_length(before, text[max(0, place - LONGEST_LEFT) : place][::-1])
        yield range(at - left, at + right)
        # The first gram that the run does not hold is the next to be probed.
        place += right - GRAM + 1


def shared_grams(window: Window, text: str) -> Iterator[str]:
    """The window's grams in all the runs that `text` shares with it."""
    for run in shared_runs(window, text):
        for place in run[: len(run) - GRAM + 1]:
            yield window.text[place : place + GRAM]


def common_length(a: str, b: str, i: int = 0, j: int = 0) -> int:
    """How many characters agree from a[i] and b[j] on; whole blocks are compared at once."""
    left = min(len(a) - i, len(b) - j)
    done, size = 0, 32
    while done < left:
        size = min(2 * size, left - done)
        if a[i + done : i + done + size] == b[j + done : j + done + size]:
            done += size
            continue
        while size > 1:
            half = size // 2
            if a[i + done : i + done + half] == b[j + done : j + done + half]:
                done, size = done + half, size - half
            else:
                size = half
        return done
    return done


def without(window: Window, run: range, grams: set[str]) -> str:
    """The run's text without what `grams` cover; each gap becomes blanks."""
    parts: list[str] = []
    covered = run.start
    for place in run:
        if place + GRAM <= run.stop and window.text[place : place + GRAM] in grams:
            covered = place + GRAM
        parts.append(" " if place < covered else window.text[place])
    return "".join(parts)
