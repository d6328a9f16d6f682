"""Words that the reports of all cases share, and those for how answers name their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batch_invariance.formats.step_summary import plain
from batch_invariance.invariance_diff.case import Case, DivergenceKind
from batch_invariance.invariance_diff.endpoint import TokenNames
from batch_invariance.invariance_diff.schedule import DispatchKind

WHAT = {
    DivergenceKind.SCORE: "another scored answer",
    DivergenceKind.TOKEN: "other tokens",
    DivergenceKind.LOGPROB: "other logprobs of the same tokens",
}
WAY = {
    DispatchKind.SERIAL: "one after the other",
    DispatchKind.WAVES: "released together",
    DispatchKind.SATURATE: "all slots kept busy",
}
TOKENS = {
    TokenNames.IDS: "by id",
    TokenNames.SPELLING: "by their spelling, for want of ids",
    TokenNames.NONE: "not at all: texts alone",
}


def count(n: int, noun: str) -> str:
    """A number of things, the noun in its number."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def two_columns(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The lines of a table of names and values, and an empty one."""
    yield "| | |"
    yield "|---|---|"
    for name, value in rows:
        yield f"| {plain(name)} | {plain(value)} |"
    yield ""


def names_slots(case: Case) -> bool:
    """Whether a request goes to a slot: always on a server launched for the case, elsewhere where
    requests name theirs."""
    dialect = case.sampling.dialect
    return dialect is None or dialect.pins_slots


def lanes_text(case: Case, lanes: int) -> str:
    """On how many slots, or of a server of somebody else how many at once."""
    return f"on {lanes} slots" if case.endpoint is None else f"at most {lanes} at once"
