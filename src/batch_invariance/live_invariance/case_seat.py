"""What attempts at a case are made on: servers launched for it, or one that somebody else runs.

`Seats` is the seam between the bench and the two; `case_endpoint` holds the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from batch_invariance.invariance_diff.case import CaseShape
from batch_invariance.invariance_diff.endpoint import TokenNames
from batch_invariance.invariance_diff.model import Item, Trial
from batch_invariance.invariance_diff.records import ExitInfo
from batch_invariance.invariance_diff.request import Body, Sampling, build_body
from batch_invariance.invariance_diff.schedule import PassSchedule, wave_pass
from batch_invariance.live_invariance.dispatch import Answered, Dispatcher
from batch_invariance.live_invariance.fit import check_items_fit
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.passes import WARMUP_TOKENS
from batch_invariance.live_invariance.server import (
    Launcher,
    RunningServer,
    ServerFacts,
    check_fits,
)

BodyOf = Callable[[int], Body]
"""The body of the request with this index in a shape."""
Answers = dict[tuple[Item, int], Trial | None]
"""What a target on a lane answers alone; None where that is no one answer."""


class Seat(Protocol):
    """A server with a dispatcher of `lanes` lanes. `dead` is set once the server died. `alone`
    keeps what targets answer alone on it."""

    lanes: int
    client: Client
    dead: threading.Event
    alone: Answers

    def place(self, lane: int | None) -> int:
        """The lane on which a request of this lane is asked alone."""

    def run(self, schedule: PassSchedule, bodies: BodyOf) -> Iterator[Answered]:
        """Sends a schedule, each answer as it comes. Raises LaneLost, and ServerError where nothing
        more can be sent."""

    def close(self) -> ExitInfo:
        """Ends the dispatcher, and the server where it was launched for the case."""


class Seats(Protocol):
    """Gives seats. `names`: how answers name their tokens. `has_single`: whether there can be a
    server of one slot."""

    names: TokenNames
    has_single: bool

    def open(self, lanes: int, shape: CaseShape) -> Seat:
        """A seat for a shape's requests. Raises ServerError."""

    def check_room(self, shape: CaseShape, n_attempts: int) -> None:
        """Raises ServerError where so many attempts may exceed what may be sent."""


@dataclass(frozen=True, slots=True)
class LaunchSeating:
    """What all launches for a case share. `ctx` is per slot; `model_file` is the name of the file
    that the server must say it serves."""

    launcher: Launcher
    model_file: str
    ctx: int
    sampling: Sampling
    request_timeout_s: float


class LaunchedSeat:
    """A server that was launched for a case; see `Seat`."""

    def __init__(self, server: RunningServer, timeout_s: float) -> None:
        self.lanes = server.facts.parallel
        self.client = server.client
        self.dead = server.dead
        self.alone: Answers = {}
        self._server = server
        self._dispatcher = Dispatcher(server.client, self.lanes, timeout_s, server.dead)

    def place(self, lane: int | None) -> int:
        """Its own slot, else the first."""
        return lane or 0

    def run(self, schedule: PassSchedule, bodies: BodyOf) -> Iterator[Answered]:
        """Ends early where the server dies."""
        for answer in self._dispatcher.run(schedule, lambda entry: bodies(entry.item)):
            if not isinstance(answer, int):
                yield answer

    def close(self) -> ExitInfo:
        """Stops the server."""
        self._dispatcher.__exit__()
        return self._server.stop()


class LaunchedSeats:
    """Launches a server for each seat; see `Seats`."""

    names = TokenNames.IDS
    has_single = True

    def __init__(self, seating: LaunchSeating, launching: Callable[[int], None]) -> None:
        """`launching` is told the number of slots before each launch."""
        self.facts: ServerFacts | None = None
        """Of the last server that was launched."""
        self._seating = seating
        self._launching = launching

    def open(self, lanes: int, shape: CaseShape) -> Seat:
        """Launches a server of so many slots that the shape's requests fit, and warms it up."""
        seating = self._seating
        self._launching(lanes)
        server = seating.launcher.launch(lanes)
        seat = LaunchedSeat(server, seating.request_timeout_s)
        try:
            check_fits(server.facts, seating.model_file)
            check_items_fit(server.client, shape.items, seating.sampling, seating.ctx)
            self._warm_up(seat, shape)
        except BaseException:
            seat.close()
            raise
        self.facts = server.facts
        return seat

    def check_room(self, shape: CaseShape, n_attempts: int) -> None:
        """A server of our own sets no limit."""

    def _warm_up(self, seat: LaunchedSeat, shape: CaseShape) -> None:
        """One request per slot, released together: it takes a server's odd first reply away."""
        override: dict[str, object] = {"ignore_eos": True, "max_tokens": WARMUP_TOKENS}
        body = build_body(shape.subject.item, self._seating.sampling, override)
        for _ in seat.run(wave_pass([0] * seat.lanes, seat.lanes), lambda _: body):
            pass
