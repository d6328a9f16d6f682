"""Facts of two runs of one subject as lines: what changed, what is not known, what is the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from batch_invariance.invariance_diff.subject_facts import Agreement, FactChange, FactKind
from batch_invariance.live_invariance.text import printable

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
MAX_SHOWN = 100
"""Characters of one side of a fact."""


def fact_lines(changes: Sequence[FactChange]) -> list[str]:
    """The changed facts with both sides, then the names of the others by how they agree."""
    lines = []
    for change in _with(changes, Agreement.CHANGED):
        lines.append(f"  changed  {_name(change)}")
        lines += [f"    {text}" for text in _sides(change)]
    for agreement, word in ((Agreement.UNKNOWN, "unknown"), (Agreement.SAME, "same")):
        names = [_name(change) for change in _with(changes, agreement)]
        if names:
            lines.append(f"  {word:7}  {', '.join(names)}")
    return lines


def changed_in_short(changes: Sequence[FactChange]) -> str:
    """The names of what changed; empty where nothing did."""
    return ", ".join(_name(change) for change in _with(changes, Agreement.CHANGED))


def _with(changes: Sequence[FactChange], agreement: Agreement) -> list[FactChange]:
    return [change for change in changes if change.agreement is agreement]


def _name(change: FactChange) -> str:
    return printable(change.name)


def _sides(change: FactChange) -> list[str]:
    before, after = change.before or (), change.after or ()
    if change.kind is not FactKind.FLAGS and len(before) + len(after) > 2:
        # Of a long list what differs is all that tells.
        gone = [value for value in before if value not in after]
        come = [value for value in after if value not in before]
        before, after = tuple(gone), tuple(come)
    return [f"before  {_shown(before)}", f"after   {_shown(after)}"]


def _shown(values: Sequence[str]) -> str:
    text = printable(" ".join(_DIGEST.sub(r"\1", value) for value in values)) or "none"
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
