"""A server that stays up while many attempts at a case are made on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    Item,
    Trial,
    TrialKey,
)
from batch_invariance.invariance_diff.records import ExitInfo
from batch_invariance.invariance_diff.request import Body, Sampling, build_body
from batch_invariance.invariance_diff.schedule import PassSchedule, pinned_pass, wave_pass
from batch_invariance.live_invariance.answers import broke_by_death, read_result
from batch_invariance.live_invariance.dispatch import Answered, Dispatcher, LaneLost
from batch_invariance.live_invariance.fit import check_items_fit
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.interrupts import check
from batch_invariance.live_invariance.passes import WARMUP_TOKENS
from batch_invariance.live_invariance.process import ExitStatus
from batch_invariance.live_invariance.recording import UNSCORED
from batch_invariance.live_invariance.server import (
    Launcher,
    RunningServer,
    ServerFacts,
    check_fits,
)
from batch_invariance.scorer_api import ScoringSession

MOST_DEATHS = 3
ALONE_TIMES = 2
"""How often the target is asked alone: twice the same answer is a reference."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What all attempts share. `ctx` is per slot; `model_file` is the name of the file that the
    server must say it serves; `session` scores, None where only tokens or logprobs are compared."""

    launcher: Launcher
    model_file: str
    ctx: int
    sampling: Sampling
    session: ScoringSession | None
    request_timeout_s: float
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


class _Seat:
    """One running server with its dispatcher."""

    def __init__(self, server: RunningServer, timeout_s: float) -> None:
        self.server = server
        self.lanes = server.facts.parallel
        self._dispatcher = Dispatcher(server.client, self.lanes, timeout_s, server.dead)
        self.alone: dict[tuple[Item, int], Trial | None] = {}

    def run(self, schedule: PassSchedule, bodies: Callable[[int], Body]) -> Iterator[Answered]:
        for answer in self._dispatcher.run(schedule, lambda entry: bodies(entry.item)):
            if not isinstance(answer, int):
                yield answer

    def close(self) -> ExitInfo:
        self._dispatcher.__exit__()
        return self.server.stop()


class CaseBench:
    """Makes attempts at shapes; a context manager that stops its servers on the way out.

    A server is launched for the number of slots that a shape asks for and kept until another number
    is asked for. One that dies is launched again; raises ServerError after `MOST_DEATHS`.
    """

    def __init__(self, settings: BenchSettings, launching: Callable[[int], None]) -> None:
        """`launching` is told the number of slots before each launch."""
        self.n_attempts = 0
        self.facts: ServerFacts | None = None
        """Of the last server that was launched for a shape."""
        self._settings = settings
        self._launching = launching
        self._crowd: _Seat | None = None
        self._single: _Seat | None = None
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
        """Stops what runs; the next attempt launches again."""
        seats, self._crowd, self._single = (self._crowd, self._single), None, None
        for seat in seats:
            if seat is not None:
                seat.close()

    def client(self, shape: CaseShape) -> Client:
        """The server that the shape's attempts are made on."""
        return self._seat_for(shape).server.client

    def tries(self, shape: CaseShape, plan: AttemptPlan) -> Tried:
        """Attempts until the plan is decided, either way."""
        return self._tried(shape, plan.limit, plan.needed)

    def rate(self, shape: CaseShape, n: int) -> Tried:
        """`n` attempts."""
        return self._tried(shape, n, None)

    def measure(self, shape: CaseShape, n: int) -> Measured:
        """The case on servers launched for it: one slot first, then its own number."""
        self.stop()
        single = self._launch(1, shape)
        try:
            one_slot = tuple(self._ask_alone(single, shape, 0) for _ in range(ALONE_TIMES))
        finally:
            single.close()
        alone = [self._alone_again(shape) for _ in range(ALONE_TIMES)]
        attempts = tuple(self._attempt(shape) for _ in range(n))
        alone.append(self._alone_again(shape))
        return Measured(one_slot, tuple(alone), attempts)

    def _tried(self, shape: CaseShape, limit: int, needed: int | None) -> Tried:
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
            seat, lane = self._seat_for(shape), shape.subject.lane or 0
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
        return self._ask_alone(self._seat_for(shape), shape, shape.subject.lane or 0)

    def _ask_alone(self, seat: _Seat, shape: CaseShape, lane: int) -> Trial:
        schedule = pinned_pass([(shape.target, lane)], seat.lanes)
        return self._target(seat, shape, schedule, Arm.A)

    def _attempt(self, shape: CaseShape) -> Trial:
        self.n_attempts += 1
        seat = self._seat_for(shape)
        trial = self._target(seat, shape, shape.schedule(), Arm.C)
        self._died(seat)
        return trial

    def _target(self, seat: _Seat, shape: CaseShape, schedule: PassSchedule, arm: Arm) -> Trial:
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

    def _trial(self, seat: _Seat, shape: CaseShape, answer: Answered, arm: Arm) -> Trial:
        exchange, item = answer.exchange, shape.subject.item
        died = broke_by_death(exchange, seat.server.dead)
        result = read_result(exchange, item.max_tokens or self._settings.sampling.max_tokens, died)
        session, scored = self._settings.session, None
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

    def _seat_for(self, shape: CaseShape) -> _Seat:
        seat = self._crowd
        if seat is not None and (seat.lanes != shape.lanes or seat.server.dead.is_set()):
            self._crowd = None
            seat.close()
        if self._crowd is None:
            self._crowd = self._launch(shape.lanes, shape)
            self.facts = self._crowd.server.facts
        return self._crowd

    def _single_seat(self, shape: CaseShape) -> _Seat:
        seat = self._single
        if seat is not None and seat.server.dead.is_set():
            self._single = None
            seat.close()
        if self._single is None:
            self._single = self._launch(1, shape)
        return self._single

    def _launch(self, lanes: int, shape: CaseShape) -> _Seat:
        settings = self._settings
        self._launching(lanes)
        server = settings.launcher.launch(lanes)
        seat = _Seat(server, settings.request_timeout_s)
        try:
            check_fits(server.facts, settings.model_file)
            check_items_fit(server.client, shape.items, settings.sampling, settings.ctx)
            self._warm_up(seat, shape)
        except BaseException:
            seat.close()
            raise
        return seat

    def _warm_up(self, seat: _Seat, shape: CaseShape) -> None:
        """One request per slot, released together: it takes a server's odd first reply away."""
        override: dict[str, object] = {"ignore_eos": True, "max_tokens": WARMUP_TOKENS}
        body = build_body(shape.subject.item, self._settings.sampling, override)
        for _ in seat.run(wave_pass([0] * seat.lanes, seat.lanes), lambda _: body):
            pass

    def _died(self, seat: _Seat) -> bool:
        """Whether the server died. Raises ServerError when that has happened too often."""
        if not seat.server.dead.is_set():
            return False
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            ended = seat.close()
            raise ServerError(
                f"the server died {self._deaths} times under the case's requests "
                f"({ExitStatus(ended.code, ended.signal)}). The end of its log:\n{ended.log_tail}"
            )
        return True
