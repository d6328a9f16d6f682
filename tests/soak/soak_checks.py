"""What a soak looks at after each run, and the words for what it saw."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from batch_invariance.errors import BatchInvarianceError  # noqa: E402
from batch_invariance.invariance_diff.evidence import EvidenceReader  # noqa: E402
from batch_invariance.invariance_diff.records import (  # noqa: E402
    Footer,
    LifetimeStart,
    PassStart,
    Record,
)
from batch_invariance.live_invariance.evidence_file import read_lines  # noqa: E402


class SoakFault(Exception):
    """A run left behind what it must not."""


def expected_codes(planned: str) -> set[int]:
    """A signal may also come before the program heeds it, or after its end."""
    if planned == "none":
        return {0, 3}
    signum = signal.Signals[planned.partition(" ")[0]]
    return {0, 3, -signum} if signum == signal.SIGKILL else {0, 1, 3, 128 + signum, -signum}


def processes_with(needle: bytes) -> list[str]:
    """Processes in whose environment this variable stands."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found.append(f"process {entry.name} ({command[:80].decode(errors='replace')})")
            except OSError:
                continue
    return found


def whole_records(evidence: Path) -> list[Record]:
    """All records but a last line that was cut off. Raises SoakFault where they cannot be read."""
    lines = [line for line in read_lines(evidence) if line.endswith(b"\n")]
    try:
        return list(EvidenceReader(lines))
    except BatchInvarianceError as error:
        raise SoakFault(f"unreadable evidence: {error}") from error


def ports(records: Sequence[Record]) -> list[int]:
    """The ports of the launches."""
    launches = [record.argv for record in records if isinstance(record, LifetimeStart)]
    return [int(argv[argv.index("--port") + 1]) for argv in launches]


def stage_of(records: Sequence[Record]) -> str:
    """How far the evidence came: the last pass that it began."""
    stage = "header" if records else "nothing"
    for record in records:
        if isinstance(record, LifetimeStart):
            stage = f"launch {record.index}"
        elif isinstance(record, PassStart):
            stage = f"arm {record.arm.value}"
        elif isinstance(record, Footer):
            stage = "end"
    return stage


def tally(words: Iterable[str]) -> str:
    """`3 x, 1 y`, the most frequent first."""
    return ", ".join(f"{n} {word}" for word, n in Counter(words).most_common()) or "none"
