"""The server's log of forward passes on its way into the evidence, pass by pass of the plan."""

from __future__ import annotations

from collections.abc import Callable

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.decode_log import DecodeStep
from batch_invariance.invariance_diff.records import DecodeRuns
from batch_invariance.live_invariance.launch import VERBOSE
from batch_invariance.live_invariance.log_reader import DecodeLogReader
from batch_invariance.live_invariance.recording import PassRef
from batch_invariance.live_invariance.server import RunningServer

WAIT_S = 15.0
"""How long the log may lag behind the server's counter before it is given up."""
RUNS_PER_RECORD = 512


class LogFollower:
    """Turns steps of the log into `DecodeRuns`, equal steps in a row into one run, for `write`.

    Once the log has failed it is given up for the rest of the server's life: `finish` then gives
    the same reason for every pass. A context manager.
    """

    def __init__(self, write: Callable[[DecodeRuns], None], server: RunningServer) -> None:
        self._write = write
        self._ref: PassRef | None = None
        self._runs: list[tuple[int, ...]] = []
        self._count = 0
        self._members: tuple[int, ...] = ()
        self._reader: DecodeLogReader | None = None
        self._fault: str | None = None
        if server.log_path is None:
            self._fault = "this server writes no log"
        elif VERBOSE[0] in server.facts.omitted_flags:
            self._fault = f"this build does not know {VERBOSE[0]}"
        else:
            try:
                self._reader = DecodeLogReader(server.log_path, self._step, server.dead)
            except ServerError as error:
                self._fault = str(error)

    def __enter__(self) -> LogFollower:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def begin(self, ref: PassRef, decodes: int | None) -> None:
        """A pass begins; what the log showed up to the counter `decodes` belongs to none."""
        self._ref = None
        self._drain(decodes)
        self._ref = ref

    def finish(self, decodes: int | None) -> str | None:
        """Writes what is left of the pass; why the log does not show all of it, or None."""
        fault = self._drain(decodes)
        self._end_run()
        self._flush()
        self._ref = None
        return fault

    def _drain(self, decodes: int | None) -> str | None:
        if self._fault is None and self._reader is not None:
            if decodes is None:
                self._fault = "the server's counter of forward passes is unknown"
            else:
                self._fault = self._reader.drain_until(decodes, WAIT_S)
        return self._fault

    def _step(self, step: DecodeStep) -> None:
        if self._ref is None:
            return
        members: list[int] = []
        for part in step.participants:
            members += (part.slot, part.task, part.tokens if part.is_prompt else 0)
        found = tuple(members)
        if found != self._members:
            self._end_run()
            self._members = found
        self._count += 1
        if len(self._runs) >= RUNS_PER_RECORD:
            self._flush()

    def _end_run(self) -> None:
        if self._count:
            self._runs.append((self._count, *self._members))
        self._count, self._members = 0, ()

    def _flush(self) -> None:
        if self._runs and self._ref is not None:
            self._write(DecodeRuns(self._ref.arm, self._ref.index, tuple(self._runs)))
        self._runs.clear()
