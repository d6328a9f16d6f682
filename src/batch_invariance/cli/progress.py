"""Progress for a person, on stderr: a line that moves on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TextIO

from batch_invariance.cli.style import Speaker, Style
from batch_invariance.invariance_diff.facts import SERIAL_ARMS
from batch_invariance.invariance_diff.model import Arm, Failure, Trial
from batch_invariance.invariance_diff.plan import request_count
from batch_invariance.invariance_diff.records import Event, Header
from batch_invariance.live_invariance.text import printable

REDRAW_S = 0.1
QUIET_EVENTS = ("confirm_limited",)


class Progress:
    """A `RunObserver` that prints. `verbosity`: 0 nothing but trouble, 1 stages, 2 every trial."""

    def __init__(self, header: Header, stream: TextIO, verbosity: int = 1) -> None:
        self._speaker = Speaker(stream)
        self._style = Style(stream)
        self._verbosity = verbosity
        self._moving = stream.isatty() and verbosity == 1
        self._stage = ""
        self._done = 0
        self._divergent = 0
        self._total = request_count(header.plan.passes, header.cell.dispatch_n)
        self._plans = header.plan.passes
        self._lanes = header.cell.dispatch_n
        n_serial = sum(p.n_requests for p in header.plan.passes if p.arm in SERIAL_ARMS)
        self._left = {True: n_serial, False: self._total - n_serial}
        self._pace: dict[bool, list[float]] = {True: [0.0, 0.0], False: [0.0, 0.0]}
        self._last: float | None = None
        self._drawn = 0.0

    def skip(self, done: Collection[tuple[Arm, int]]) -> None:
        """Passes that an earlier part of the run has done."""
        for plan in self._plans:
            if (plan.arm, plan.pass_index) in done:
                self._done += plan.n_requests
                self._left[plan.arm in SERIAL_ARMS] -= plan.n_requests

    def stage(self, text: str) -> None:
        """A launch, an arm or a pass begins."""
        self._stage = text
        self._last = None
        if self._verbosity >= 1 and not self._moving:
            self._print(f"[{self._done}/{self._total}] {text}{self._estimate()}")
        self._draw(force=True)

    def trial(self, trial: Trial, divergent: bool) -> None:
        """A trial was recorded."""
        serial = trial.key.arm in SERIAL_ARMS
        now = time.monotonic()
        if self._last is not None:
            pace = self._pace[serial]
            pace[0] += now - self._last
            pace[1] += 1
        self._last = now
        self._done += 1
        # How many trials there are to confirm is known only once C has run.
        self._total += trial.key.arm is Arm.CONFIRM
        self._left[serial] = max(0, self._left[serial] - 1)
        self._divergent += divergent
        if self._verbosity >= 2:
            what = "lost" if isinstance(trial.result, Failure) else "ok"
            what = "DIVERGED" if divergent else what
            key = trial.key
            seconds = trial.complete_ts - trial.dispatch_ts
            self._print(
                f"  {key.arm.value}{key.pass_index} lane {trial.lane} "
                f"{printable(trial.item_id)}: {what} {seconds:.2f} s"
            )
        self._draw()

    def event(self, event: Event) -> None:
        """Something out of the ordinary was recorded; it is said at once."""
        if event.what in QUIET_EVENTS and self._verbosity < 2:
            return
        self._print(f"{event.what.replace('_', ' ')}: {printable(event.detail)}")

    def note(self, text: str) -> None:
        """A remark that is not part of the evidence."""
        self._print(printable(text))

    def close(self) -> None:
        """Clears the moving line."""
        if self._moving:
            self._speaker.say("\r\x1b[K")

    def _estimate(self) -> str:
        seconds = 0.0
        (serial_s, serial_n), (batch_s, batch_n) = self._pace[True], self._pace[False]
        if not serial_n:
            return ""
        serial = serial_s / serial_n
        batched = batch_s / batch_n if batch_n else serial / max(1.0, self._lanes / 2)
        seconds = self._left[True] * serial + self._left[False] * batched
        return f", about {duration(seconds)} left"

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if not self._moving or (not force and now - self._drawn < REDRAW_S):
            return
        self._drawn = now
        text = f"[{self._done}/{self._total}] {self._stage}{self._estimate()}"
        if self._divergent:
            text += f", {self._divergent} diverged"
        self._speaker.say(f"\r\x1b[K{self._style.dim(text)}")

    def _print(self, text: str) -> None:
        self.close()
        self._speaker.say(text + "\n")


def duration(seconds: float) -> str:
    """Seconds in words, such as `12 s` or `3 min 20 s`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
