"""Going on with a run that was interrupted: what it has done, and whether this is still it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Arm, Completion, Failure, Trial
from batch_invariance.invariance_diff.records import (
    Event,
    Footer,
    Header,
    LifetimeStart,
    PassEnd,
    Record,
    Resumed,
    SharedArm,
)
from batch_invariance.invariance_diff.rules import RULES_VERSION
from batch_invariance.live_invariance.evidence_file import Written, read_lines
from batch_invariance.live_invariance.launch import engine_environment
from batch_invariance.live_invariance.prepare import ServerKnowledge, observer_now
from batch_invariance.live_invariance.recording import Recorder
from batch_invariance.live_invariance.run import Earlier
from batch_invariance.scorer_api import Scorer, describe_scorer


@dataclass(frozen=True, slots=True)
class Interruption:
    """An interrupted run: its header, what it wrote, what it did, the command line of its first
    launch, and the trials that the rest of the run builds on (A's and those of C)."""

    header: Header
    written: Written
    earlier: Earlier
    argv: tuple[str, ...]
    kept: tuple[Trial, ...]


def read_interrupted(path: Path) -> Interruption:
    """Reads the evidence of an interrupted run; a last line that was cut off does not count.

    Raises EvidenceError for a file that is no evidence, and for one that cannot go on: finished,
    with a lost trial or the server's death in it, cut off inside a shared arm, or of other rules.
    """
    size = 0

    def whole_lines() -> Iterator[bytes]:
        nonlocal size
        for line in read_lines(path):
            if line.endswith(b"\n"):
                size += len(line)
                yield line

    reader = EvidenceReader(whole_lines())
    seen = _Seen()
    for record in reader:
        seen.take(record)
    if seen.header is None:
        raise EvidenceError(f"evidence {path.name}", ["not one whole line: nothing to go on with"])
    why = seen.finished or _other_rules(seen.header)
    if seen.n_to_copy:
        why = "it was cut off while the shared arm was copied; run the cell again"
    if why is not None:
        raise EvidenceError(f"evidence {path.name}", [f"cannot be resumed: {why}"])
    written = Written(size, reader.n_records, seen.n_trials, reader.last_line_sha256)
    earlier = Earlier(frozenset(seen.done), seen.n_lifetimes, seen.control)
    return Interruption(seen.header, written, earlier, seen.argv, tuple(seen.kept))


class _Seen:
    """What the records come to, as far as going on needs it."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.done: set[tuple[Arm, int]] = set()
        self.n_lifetimes = 0
        self.n_trials = 0
        self.control = False
        self.argv: tuple[str, ...] = ()
        self.kept: list[Trial] = []
        self.finished: str | None = None
        self.n_to_copy = 0

    def take(self, record: Record) -> None:
        self.n_to_copy = max(0, self.n_to_copy - 1)
        if isinstance(record, SharedArm):
            self.n_to_copy = record.n_records
        elif isinstance(record, Header):
            self.header = record
        elif isinstance(record, Trial):
            self._trial(record)
        elif isinstance(record, LifetimeStart):
            self.n_lifetimes = max(self.n_lifetimes, record.index + 1)
            self.argv = self.argv or record.argv
        elif isinstance(record, PassEnd):
            self.done.add((record.arm, record.pass_index))
            self.control |= record.arm is Arm.P
        elif isinstance(record, Event):
            self.control |= record.what == "no_control"
            if record.what in ("server_died", "stopped", "lane_lost"):
                self.finished = f"{record.what}: {record.detail}"
        elif isinstance(record, Footer):
            self.finished = f"the run has ended: {record.ended}"

    def _trial(self, trial: Trial) -> None:
        self.n_trials += 1
        if isinstance(trial.result, Failure) and trial.key.arm is not Arm.WARMUP:
            kind = trial.result.kind.value
            self.finished = f"{trial.item_id} was lost in arm {trial.key.arm.value} ({kind})"
        if trial.key.arm in (Arm.A, Arm.C):
            self.kept.append(trial)


def _other_rules(header: Header) -> str | None:
    if header.rules_version == RULES_VERSION:
        return None
    return f"it was begun under rules version {header.rules_version}, this is {RULES_VERSION}"


def differences(header: Header, known: ServerKnowledge, scorer: Scorer) -> list[str]:
    """What is no longer as the interrupted run had it; empty where all of it is."""
    subject, observer, now = header.subject, header.observer, observer_now()
    pairs: Iterable[tuple[str, object, object]] = (
        ("the server's digest", subject.server_sha256, known.server_sha256),
        ("the server's version", subject.server_version, known.version),
        ("the model's digest", subject.model.sha256, known.model.sha256),
        ("the scorer", header.scorer.sha256, describe_scorer(scorer).sha256),
        ("the machine", observer.machine, now.machine),
        ("the processor", observer.processor, now.processor),
        ("the number of processors", observer.cpu_count, now.cpu_count),
        (
            "the environment of the engine",
            dict(header.cell.environment),
            engine_environment(os.environ),
        ),
    )
    return [f"{what} is {new}, was {old}" for what, old, new in pairs if old != new]


def go_on(recorder: Recorder, interruption: Interruption) -> None:
    """Writes that the run goes on, and gives the recorder its memory back."""
    for trial in interruption.kept:
        if isinstance(trial.result, Completion):
            recorder.remember(trial)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    recorder.write(Resumed(now, observer_now(), time.monotonic()))
