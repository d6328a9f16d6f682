"""A case on a server that somebody else runs: nothing is launched, nothing is stopped.

A seat is a number of requests in flight. The limits of the run and those of the server hold as for
a certificate, and what the limits leave is kept for measuring the case that is found.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.case import CaseShape
from batch_invariance.invariance_diff.endpoint import Endpoint, TokenNames
from batch_invariance.invariance_diff.model import Failure, FailureKind
from batch_invariance.invariance_diff.records import ExitInfo
from batch_invariance.invariance_diff.request import Sampling, build_body
from batch_invariance.invariance_diff.schedule import PassSchedule
from batch_invariance.live_invariance.answers import read_result
from batch_invariance.live_invariance.case_amount import attempts_at, measurement_of, total
from batch_invariance.live_invariance.case_seat import Answers, BodyOf, Seat
from batch_invariance.live_invariance.dispatch import CHAT_PATH, Answered, Dispatcher
from batch_invariance.live_invariance.endpoint_client import EndpointClient
from batch_invariance.live_invariance.endpoint_facts import Told, Watchable, look, watchable
from batch_invariance.live_invariance.endpoint_probe import QUESTION, no_answer
from batch_invariance.live_invariance.endpoint_run import GONE_AFTER
from batch_invariance.live_invariance.endpoint_telemetry import EndpointTelemetry
from batch_invariance.live_invariance.http import Client, Exchange


@dataclass(frozen=True, slots=True)
class Heard:
    """What a server says of itself now: under which name it was asked, in its own words, and what
    it lets us watch."""

    model: str
    told: Told
    seen: Watchable

    def endpoint(self, recorded: Endpoint, url: str) -> Endpoint:
        """The recorded server as it is now."""
        seen = self.seen
        return replace(
            recorded, url=url, engine=seen.engine, said=self.told.facts, offered=seen.offered
        )


@dataclass(frozen=True, slots=True)
class EndpointSeating:
    """What all attempts share: clients for requests and for metrics, the server as it was recorded,
    the sampling in its dialect, how many attempts a measurement makes, and how long a request may
    take."""

    client: EndpointClient
    metrics: Client
    recorded: Endpoint
    sampling: Sampling
    attempts: int
    timeout_s: float

    @property
    def model(self) -> str:
        """The model's name in every request."""
        return "" if self.sampling.dialect is None else self.sampling.dialect.model


class EndpointSeat:
    """So many requests in flight; see `case_seat.Seat`. The server is never seen to die."""

    def __init__(self, seats: EndpointSeats, lanes: int, alone: Answers) -> None:
        seating = seats.seating
        self.lanes = lanes
        self.client: Client = seating.client
        self.dead = threading.Event()
        self.alone = alone
        self._seats = seats
        self._pins = seating.sampling.dialect is not None and seating.sampling.dialect.pins_slots
        recorded = seating.recorded
        gauge = EndpointTelemetry(
            seating.client, seating.metrics, recorded.engine, recorded.offered
        )

        def is_idle(lane: int) -> bool:
            seen = gauge.running()
            return seen is not None and seen[0] == 0

        self._dispatcher = Dispatcher(seating.client, lanes, seating.timeout_s, self.dead, is_idle)

    def place(self, lane: int | None) -> int:
        """Its own where requests name their slot, else any."""
        return lane or 0 if self._pins else 0

    def run(self, schedule: PassSchedule, bodies: BodyOf) -> Iterator[Answered]:
        """Raises ServerError where a limit is reached, and where the server is gone."""
        for answer in self._dispatcher.run(schedule, lambda entry: bodies(entry.item)):
            if not isinstance(answer, int):
                self._seats.heed(answer.exchange)
                yield answer

    def close(self) -> ExitInfo:
        """Sends nothing more, and leaves the server as it is."""
        self._dispatcher.__exit__()
        return ExitInfo(None, None, "")


class EndpointSeats:
    """Seats on one server of somebody else; see `case_seat.Seats`."""

    has_single = False

    def __init__(self, seating: EndpointSeating) -> None:
        dialect = seating.sampling.dialect
        self.seating = seating
        self.names = TokenNames.IDS if dialect is None else dialect.tokens
        self.n_waited = 0
        self._alone: Answers = {}
        self._lost_in_a_row = 0

    def open(self, lanes: int, shape: CaseShape) -> Seat:
        """Another number of requests in flight on the same server."""
        return EndpointSeat(self, lanes, self._alone)

    def check_room(self, shape: CaseShape, n_attempts: int) -> None:
        """Raises ServerError where the limits leave too little for the attempts and for measuring
        the shape afterwards."""
        seating = self.seating
        needed = total(
            [
                attempts_at(shape, seating.sampling, n_attempts),
                measurement_of(shape, seating.sampling, seating.attempts),
            ]
        )
        over = needed.exceeds(seating.client.left)
        if over is not None:
            raise ServerError(f"{over} to try and measure another candidate")

    def heed(self, exchange: Exchange) -> None:
        """Counts what a rate limit held up. Raises ServerError where nothing more can be sent."""
        self.n_waited += sum(1 for _ in self.seating.client.waits())
        failure = exchange.failure
        if failure is not None and failure.kind is FailureKind.NOT_SENT:
            raise ServerError(f"stopped: {failure.detail}")
        lost = failure is not None and failure.kind is FailureKind.CONNECTION
        self._lost_in_a_row = self._lost_in_a_row + 1 if lost else 0
        if self._lost_in_a_row >= GONE_AFTER:
            where = self.seating.client.base_url
            raise ServerError(f"{where} cannot be reached any more; see whether it still runs")

    def hear(self) -> Heard:
        """Asks the server who it is; nothing is generated for it."""
        client, metrics, model = self.seating.client, self.seating.metrics, self.seating.model
        told = look(client, metrics, model)
        return Heard(model, told, watchable(client, metrics, told.facts))

    def greet(self) -> Heard:
        """Asks one short question, whose answer names build and model, and who it is again. Raises
        ServerError where it is not answered."""
        seating = self.seating
        body = build_body(QUESTION, seating.sampling)
        exchange = seating.client.post(CHAT_PATH, body.for_slot(0), seating.timeout_s)
        result = read_result(exchange, QUESTION.max_tokens or 1, False, self.names)
        if isinstance(result, Failure):
            raise ServerError(no_answer(seating.client, seating.model, exchange))
        return self.hear()
