"""Feeds a parser and holds every answer against what it may be."""

from __future__ import annotations

import signal
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from fuzz.mutation import Mutator
from fuzz.targets import Never, Target

SOURCE = "batch_invariance"
MOST_SECONDS = 5.0
"""For one input; the slowest takes a hundredth of it."""
MOST_TEXT = 20_000
"""Characters of an error."""
MOST_PEAK_BYTES = 24 << 20
"""Held at most while an input of a few kilobytes is read."""


class Broken(AssertionError):
    """A parser gave an answer that it may not give, or none in time."""


@dataclass(frozen=True)
class Tally:
    """How many inputs there were, how many were accepted, the seconds of processor time, and what
    was wrong: one case of each kind."""

    n_inputs: int
    n_accepted: int
    seconds: float
    broken: tuple[Broken, ...]


def inputs(target: Target, seed: int, count: int) -> Iterator[bytes]:
    """The inputs of a target, the same for the same seed."""
    mutator = Mutator(f"{target.name}/{seed}")
    for _ in range(count):
        yield target.make(mutator)


def read_one(target: Target, data: bytes) -> bool:
    """Whether the parser accepted an input. Raises Broken for what it may not do."""
    try:
        with _limit(MOST_SECONDS):
            target.read(data)
    except target.refusal as error:
        if isinstance(error, Never):
            raise
        text = str(error)
        if "\n" in text or not text or len(text) > MOST_TEXT:
            said = f"{target.name}: no short line: {text[:300]!r}"
            raise Broken(f"{said}, of {_shown(data)}") from None
        return False
    except Exception as error:
        raise Broken(f"{target.name}: {type(error).__name__} for {_shown(data)}") from error
    return True


def run(target: Target, seed: int, count: int) -> Tally:
    """Feeds `count` inputs, less where the target's share is smaller."""
    count = max(1, round(count * target.share))
    broken: dict[str, Broken] = {}
    accepted = 0
    began = time.process_time()
    for data in inputs(target, seed, count):
        try:
            accepted += read_one(target, data)
        except Broken as error:
            broken.setdefault(_origin(error), error)
    return Tally(count, accepted, time.process_time() - began, tuple(broken.values()))


def _origin(error: Broken) -> str:
    """The place in the source that a fault comes from, which tells faults apart."""
    cause = error.__cause__
    frames = traceback.extract_tb(None if cause is None else cause.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}" for frame in frames if SOURCE in frame.filename]
    return f"{type(cause).__name__} at {places[-1]}" if places else str(error)[:40]


def peak_bytes(target: Target, seed: int, count: int) -> int:
    """The most memory held while inputs were read."""
    made = list(inputs(target, seed, count))
    tracemalloc.start()
    try:
        for data in made:
            read_one(target, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _shown(data: bytes) -> str:
    return repr(data) if len(data) < 3000 else f"{data[:3000]!r}... ({len(data)} bytes)"


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
