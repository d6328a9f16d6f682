"""A server that stays up while many attempts at a case are made on it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.attempts import AttemptPlan, Rate
from batch_invariance.invariance_diff.case import CaseShape, Reference, Seen
from batch_invariance.invariance_diff.case_judge import (
    Measured,
    Wanted,
    answer_sha256,
    gather,
)
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    FailureKind,
    Trial,
    TrialKey,
)
from batch_invariance.invariance_diff.request import Sampling, build_body
from batch_invariance.invariance_diff.schedule import PassSchedule, pinned_pass
from batch_invariance.live_invariance.answers import broke_by_death, read_result
from batch_invariance.live_invariance.case_seat import Seat, Seats
from batch_invariance.live_invariance.dispatch import Answered, LaneLost
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.interrupts import check
from batch_invariance.live_invariance.process import ExitStatus
from batch_invariance.live_invariance.recording import UNSCORED
from batch_invariance.scorer_api import ScoringSession

MOST_DEATHS = 3
ALONE_TIMES = 2
"""How often the target is asked alone: twice the same answer is a reference."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What all attempts share. `session` scores, None where only tokens or logprobs are
    compared."""

    seats: Seats
    sampling: Sampling
    session: ScoringSession | None
    wanted: Wanted
    reference: Reference


@dataclass(frozen=True, slots=True)
class Tried:
    """What attempts at one shape came to. `alone`: the answer that they were held against, None
    where the target has no one answer alone; `other`: the first that differed."""

    rate: Rate
    seen: tuple[Seen, ...]
    alone: Trial | None
    other: Trial | None


class CaseBench:
    """Makes attempts at shapes; a context manager that gives up its seats on the way out.

    A seat is opened for the number of lanes that a shape asks for and kept until another number
    is asked for. A server that dies is launched again; raises ServerError after `MOST_DEATHS`.
    """

    def __init__(self, settings: BenchSettings) -> None:
        self.n_attempts = 0
        self._settings = settings
        self._crowd: Seat | None = None
        self._single: Seat | None = None
        self._deaths = 0

    def __enter__(self) -> CaseBench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Gives the seats up; the next attempt opens another."""
        seats, self._crowd, self._single = (self._crowd, self._single), None, None
        for seat in seats:
            if seat is not None:
                seat.close()

    def client(self, shape: CaseShape) -> Client:
        """The server that the shape's attempts are made on."""
        return self._seat_for(shape).client

    def tries(self, shape: CaseShape, plan: AttemptPlan) -> Tried:
        """Attempts until the plan is decided, either way."""
        return self._tried(shape, plan.limit, plan.needed)

    def rate(self, shape: CaseShape, n: int) -> Tried:
        """`n` attempts."""
        return self._tried(shape, n, None)

    def measure(self, shape: CaseShape, n: int) -> Measured:
        """The case on seats opened for it: one slot first, where there can be one, then its own
        number."""
        self.stop()
        one_slot = self._on_one_slot(shape) if self._settings.seats.has_single else ()
        alone = [self._alone_again(shape) for _ in range(ALONE_TIMES)]
        attempts = tuple(self._attempt(shape) for _ in range(n))
        alone.append(self._alone_again(shape))
        return Measured(one_slot, tuple(alone), attempts)

    def _on_one_slot(self, shape: CaseShape) -> tuple[Trial, ...]:
        single = self._settings.seats.open(1, shape)
        try:
            return tuple(self._ask_alone(single, shape, 0) for _ in range(ALONE_TIMES))
        finally:
            single.close()

    def _tried(self, shape: CaseShape, limit: int, needed: int | None) -> Tried:
        self._settings.seats.check_room(shape, limit)
        alone = self._reference(shape)
        if alone is None:
            return Tried(Rate(0, 0), (), None, None)
        n = lost = 0
        seen: list[Seen] = []
        other: Trial | None = None
        while n < limit:
            if needed is not None and not needed - len(seen) <= limit - n:
                break
            trial = self._attempt(shape)
            n += 1
            lost += not isinstance(trial.result, Completion)
            found = self._settings.wanted.seen(alone, trial)
            if found is not None:
                seen.append(found)
                other = other or trial
            if needed is not None and len(seen) >= needed:
                break
        return Tried(Rate(n, len(seen), lost), gather(seen), alone, other)

    def _reference(self, shape: CaseShape) -> Trial | None:
        """The target's answer alone; None where it has no one answer, or the server died."""
        if self._settings.reference is Reference.ONE_SLOT:
            seat, lane = self._single_seat(shape), 0
        else:
            seat = self._seat_for(shape)
            lane = seat.place(shape.subject.lane)
        key = (shape.subject.item, lane)
        if key not in seat.alone:
            trials = [self._ask_alone(seat, shape, lane) for _ in range(ALONE_TIMES)]
            answered = [t for t in trials if isinstance(t.result, Completion)]
            stable = len(answered) == len(trials) and len({*map(answer_sha256, answered)}) == 1
            if self._died(seat):
                return None
            seat.alone[key] = trials[0] if stable else None
        return seat.alone[key]

    def _alone_again(self, shape: CaseShape) -> Trial:
        seat = self._seat_for(shape)
        return self._ask_alone(seat, shape, seat.place(shape.subject.lane))

    def _ask_alone(self, seat: Seat, shape: CaseShape, lane: int) -> Trial:
        schedule = pinned_pass([(shape.target, lane)], seat.lanes)
        return self._target(seat, shape, schedule, Arm.A)

    def _attempt(self, shape: CaseShape) -> Trial:
        self.n_attempts += 1
        seat = self._seat_for(shape)
        trial = self._target(seat, shape, shape.schedule(), Arm.C)
        self._died(seat)
        return trial

    def _target(self, seat: Seat, shape: CaseShape, schedule: PassSchedule, arm: Arm) -> Trial:
        """Runs a schedule over the shape's requests and gives the target's trial."""
        check()
        sampling = self._settings.sampling
        bodies = [build_body(item, sampling) for item in shape.items]
        found: Trial | None = None
        detail = "the server died before it was asked"
        try:
            for answer in seat.run(schedule, bodies.__getitem__):
                if answer.entry.item == shape.target:
                    found = self._trial(seat, shape, answer, arm)
        except LaneLost as lost:
            # A slot that does not let go would be part of every later attempt.
            detail = str(lost)
            self.stop()
        if found is not None:
            return found
        key, lane = TrialKey(arm, 0, shape.target), shape.subject.lane or 0
        failure = Failure(FailureKind.SERVER_DIED, detail)
        sha = bodies[shape.target].sha256
        return Trial(key, shape.subject.item.id, lane, None, sha, 0.0, 0.0, failure, None)

    def _trial(self, seat: Seat, shape: CaseShape, answer: Answered, arm: Arm) -> Trial:
        exchange, item = answer.exchange, shape.subject.item
        died = broke_by_death(exchange, seat.dead)
        settings, scored = self._settings, None
        limit = item.max_tokens or settings.sampling.max_tokens
        result = read_result(exchange, limit, died, settings.seats.names)
        session = settings.session
        if isinstance(result, Completion):
            scored = UNSCORED if session is None else session.score(item, result)
        return Trial(
            key=TrialKey(arm, 0, shape.target),
            item_id=item.id,
            lane=answer.lane,
            wave=answer.entry.wave,
            request_sha256=answer.body.sha256,
            dispatch_ts=exchange.dispatch_ts,
            complete_ts=exchange.complete_ts,
            result=result,
            scored=scored,
        )

    def _seat_for(self, shape: CaseShape) -> Seat:
        seat = self._crowd
        if seat is not None and (seat.lanes != shape.lanes or seat.dead.is_set()):
            self._crowd = None
            seat.close()
        if self._crowd is None:
            self._crowd = self._settings.seats.open(shape.lanes, shape)
        return self._crowd

    def _single_seat(self, shape: CaseShape) -> Seat:
        seat = self._single
        if seat is not None and seat.dead.is_set():
            self._single = None
            seat.close()
        if self._single is None:
            self._single = self._settings.seats.open(1, shape)
        return self._single

    def _died(self, seat: Seat) -> bool:
        """Whether the server died. Raises ServerError when that has happened too often."""
        if not seat.dead.is_set():
            return False
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            ended = seat.close()
            raise ServerError(
                f"the server died {self._deaths} times under the case's requests "
                f"({ExitStatus(ended.code, ended.signal)}). The end of its log:\n{ended.log_tail}"
            )
        return True
