"""Schedules as files: the passes of arm C by item index, apart from any work-set.

A file is one JSON object:

    {"schema": "schedule/1", "n_items": 16, "lanes": 4, "passes": [
        {"kind": "waves", "groups": [[0, 5, 2, 7], [1, 3]], "delays_ms": [0, 0, 20, 40, 0, 5]},
        {"kind": "saturate", "groups": [[3, 1, 2, 0]]}]}

`kind` is `waves` or `saturate`. `pinned`, for waves, names a lane for each request; without it a
request's lane is its place in its group. `delays_ms` gives each request, in order of dispatch, the
time it waits: from the release of its wave, or from the moment its lane falls free. The same file
serves every work-set of `n_items` items.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from batch_invariance.errors import EvidenceError, ScheduleError
from batch_invariance.invariance_diff.codec import from_json, shown, to_json
from batch_invariance.invariance_diff.schedule import DispatchKind, PassSchedule, check_schedule
from batch_invariance.invariance_diff.strict_json import parse_json

SCHEMA = "schedule/1"


@dataclass(frozen=True, slots=True)
class FilePass:
    """One pass as the file spells it; see the module."""

    kind: DispatchKind
    groups: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...] | None = None
    delays_ms: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """A whole file: for work-sets of `n_items` items and servers of `lanes` slots."""

    schema: str
    n_items: int
    lanes: int
    passes: tuple[FilePass, ...]


def parse_schedule(data: bytes, name: str) -> tuple[PassSchedule, ...]:
    """Reads the passes of a file called `name`.

    Raises ScheduleError with what is wrong: no JSON, another schema, an unknown field, a pass that
    cannot be run, an item that no pass sends.
    """
    what = f"schedule {name if name.isprintable() else ascii(name)}"
    try:
        document = parse_json(data.decode("utf-8-sig"))
    except ValueError as error:
        raise ScheduleError(what, [f"is not JSON: {error}"[:200]]) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ScheduleError(what, [f"its schema is {shown(schema)}, this reads {SCHEMA}"])
    try:
        file = from_json(ScheduleFile, document, "schedule")
    except EvidenceError as error:
        raise ScheduleError(what, list(error.issues)) from None
    return _checked(file, what)


def _checked(file: ScheduleFile, what: str) -> tuple[PassSchedule, ...]:
    issues = [] if file.passes else ["it has no passes"]
    passes = []
    for number, entry in enumerate(file.passes):
        schedule = PassSchedule(entry.kind, file.lanes, entry.groups, entry.pinned, entry.delays_ms)
        where = f"pass {number}"
        if not entry.groups:
            issues.append(f"{where}: it sends nothing")
        if entry.kind is DispatchKind.SERIAL:
            issues.append(f"{where}: arm C has no serial passes; use waves or saturate")
        try:
            check_schedule(schedule, file.n_items, where)
        except ScheduleError as error:
            issues += [f"{where}: {issue}" for issue in error.issues]
        passes.append(schedule)
    sent = {item for entry in file.passes for group in entry.groups for item in group}
    never = [item for item in range(min(file.n_items, len(sent) + 5)) if item not in sent]
    if never and not issues:
        issues.append(f"no pass sends item {', '.join(map(str, never[:5]))}")
    if issues:
        raise ScheduleError(what, issues[:20])
    return tuple(passes)


def check_matches(passes: Sequence[PassSchedule], n_items: int, lanes: int, name: str) -> None:
    """Raises ScheduleError where the passes are for another size of work-set or of server."""
    issues = []
    most = max(item for entry in passes for group in entry.groups for item in group)
    if most + 1 != n_items:
        issues.append(f"it is for {most + 1} items, the work-set has {n_items}")
    if passes[0].lanes != lanes:
        issues.append(f"it is for {passes[0].lanes} lanes, --parallel is {lanes}")
    if issues:
        raise ScheduleError(f"schedule {name}", issues)


def schedule_text(passes: Sequence[PassSchedule], n_items: int) -> str:
    """The file's text, which `parse_schedule` reads back; one line for each pass."""
    lines = []
    for entry in passes:
        fields = to_json(FilePass(entry.kind, entry.groups, entry.pinned, entry.delays_ms))
        lines.append(json.dumps({k: v for k, v in fields.items() if v is not None}))
    head = f'{{"schema": "{SCHEMA}", "n_items": {n_items}, "lanes": {passes[0].lanes}, "passes": ['
    return head + "\n  " + ",\n  ".join(lines) + "\n]}\n"
