"""Runs a probe on one launched server: a warm-up wave, the serial control, then the load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.decode_witness import DecodeTally
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Item,
    Scored,
    Trial,
    TrialKey,
)
from batch_invariance.invariance_diff.probe import (
    NO_LOG,
    LoadLog,
    ProbeResult,
    ProbeRun,
    WaveCount,
    judge_probe,
    read_load_log,
)
from batch_invariance.invariance_diff.records import SlotSamples
from batch_invariance.invariance_diff.request import Body, Sampling, build_body
from batch_invariance.invariance_diff.schedule import (
    PassSchedule,
    pinned_pass,
    saturated_pass,
    wave_pass,
)
from batch_invariance.invariance_diff.tracker import NO_COUNTERS
from batch_invariance.invariance_diff.ubatch import Layout
from batch_invariance.live_invariance.answers import broke_by_death, read_result
from batch_invariance.live_invariance.dispatch import Answered, Dispatcher, LaneLost
from batch_invariance.live_invariance.fit import check_items_fit
from batch_invariance.live_invariance.interrupts import deferred
from batch_invariance.live_invariance.log_follower import LogFollower
from batch_invariance.live_invariance.passes import WARMUP_TOKENS
from batch_invariance.live_invariance.recording import PassRef
from batch_invariance.live_invariance.server import Launcher, RunningServer, check_fits
from batch_invariance.live_invariance.telemetry import SlotSampler, read_counters

NOT_SCORED = Scored(None, None, "not_scored", None, None)
NOTHING = WaveCount(NO_COUNTERS, NO_COUNTERS, 0)
LOAD = "the load"


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What is asked: one item, how often on how many slots, and of which server.

    `ctx` is per slot. `model_file`: the name of the file that the server must say it serves.
    `layout`: how it cuts a forward pass, by which its log is read.
    """

    item: Item
    sampling: Sampling
    parallel: int
    n_serial: int
    n_concurrent: int
    ctx: int
    model_file: str
    request_timeout_s: float
    layout: Layout


class ProbeObserver(Protocol):
    """Is told what happens, for a person to read."""

    def stage(self, text: str, n_requests: int) -> None:
        """A part of the probe begins; `n_requests` will be answered in it."""

    def trial(self, trial: Trial) -> None:
        """A request was answered or lost."""


@dataclass(slots=True)
class _Recorded:
    """What has come in so far."""

    serial: list[Trial] = field(default_factory=list)
    concurrent: list[Trial] = field(default_factory=list)
    warmup: WaveCount = NOTHING
    load: WaveCount = NOTHING
    slots: SlotSamples | None = None
    log: LoadLog = NO_LOG
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeEnd:
    """A probe's result, and the end of the log of a server that died under its load."""

    result: ProbeResult
    log_tail: str = ""


def run_probe(request: ProbeRequest, launcher: Launcher, observer: ProbeObserver) -> ProbeEnd:
    """Launches a server of `parallel` slots, sends the requests and judges what came back.

    A lost request is data, as is a server that dies under the load. Raises ServerError when the
    launch fails or the server dies before, WorkSetError when the prompt does not fit.
    """
    with deferred():
        observer.stage(f"launching the server with {request.parallel} slots", 0)
        server = launcher.launch(request.parallel)
        recorded = _Recorded()
        died: str | None = None
        try:
            check_fits(server.facts, request.model_file)
            check_items_fit(server.client, [request.item], request.sampling, request.ctx)
            with Dispatcher(
                server.client, request.parallel, request.request_timeout_s, server.dead
            ) as dispatcher:
                died = _Probing(request, server, dispatcher, observer, recorded).run()
        finally:
            ended = server.stop()
    tail = ""
    if died is not None:
        tail = ended.log_tail
        how = server.ending
        if died != LOAD:
            raise ServerError(
                f"the server died in {died} ({how}): no result. The end of its log:\n{tail}"
            )
        recorded.ended = f"the server died in {died} ({how})"
    return ProbeEnd(judge_probe(_as_run(request, recorded)), tail)


def _as_run(request: ProbeRequest, recorded: _Recorded) -> ProbeRun:
    return ProbeRun(
        parallel=request.parallel,
        n_serial=request.n_serial,
        n_concurrent=request.n_concurrent,
        serial=tuple(recorded.serial),
        concurrent=tuple(recorded.concurrent),
        warmup=recorded.warmup,
        load=recorded.load,
        slots=recorded.slots,
        log=recorded.log,
        ended=recorded.ended,
    )


class _Probing:
    """The three parts of a probe on one server."""

    def __init__(
        self,
        request: ProbeRequest,
        server: RunningServer,
        dispatcher: Dispatcher,
        observer: ProbeObserver,
        recorded: _Recorded,
    ) -> None:
        self._request = request
        self._server = server
        self._dispatcher = dispatcher
        self._observer = observer
        self._recorded = recorded
        self._body = build_body(request.item, request.sampling)

    def run(self) -> str | None:
        """Runs all parts; the name of the one in which the server died."""
        parts = (
            ("the warm-up", self._warm_up),
            ("the serial control", self._serial),
            (LOAD, self._load),
        )
        for name, part in parts:
            try:
                part()
            except LaneLost as lost:
                self._recorded.ended = f"ended in {name}: {lost}"
                break
            if self._server.dead.is_set():
                return name
        return None

    def _warm_up(self) -> None:
        """One request per slot, released together, of equal length: it takes a server's odd first
        reply away and shows what the server can co-batch."""
        lanes = self._request.parallel
        self._observer.stage("warm-up", 0)
        override: dict[str, object] = {"ignore_eos": True, "max_tokens": WARMUP_TOKENS}
        body = build_body(self._request.item, self._request.sampling, override)
        before = read_counters(self._server.client)
        trials = list(self._trials(Arm.WARMUP, wave_pass([0] * lanes, lanes), body, WARMUP_TOKENS))
        after = read_counters(self._server.client)
        self._recorded.warmup = WaveCount(before, after, _n_tokens(trials))

    def _serial(self) -> None:
        n, lanes = self._request.n_serial, self._request.parallel
        self._observer.stage(f"{n} requests one at a time over {lanes} slots", n)
        schedule = pinned_pass([(0, place % lanes) for place in range(n)], lanes)
        for trial in self._trials(Arm.B, schedule, self._body, self._request.sampling.max_tokens):
            self._recorded.serial.append(trial)
            self._observer.trial(trial)

    def _load(self) -> None:
        n, lanes = self._request.n_concurrent, self._request.parallel
        self._observer.stage(f"{n} requests at once on {lanes} slots", n)
        client, recorded = self._server.client, self._recorded
        schedule = saturated_pass([0] * n, lanes)
        tally = DecodeTally(self._request.layout)
        sampler = SlotSampler(client)
        with LogFollower(lambda record: tally.add(record.runs), self._server) as log:
            before = read_counters(client)
            log.begin(PassRef(Arm.C, 0), before.decode_total)
            try:
                with sampler:
                    limit = self._request.sampling.max_tokens
                    for trial in self._trials(Arm.C, schedule, self._body, limit):
                        recorded.concurrent.append(trial)
                        self._observer.trial(trial)
            finally:
                after = NO_COUNTERS if self._server.dead.is_set() else read_counters(client)
                load = WaveCount(before, after, _n_tokens(recorded.concurrent))
                recorded.load, recorded.slots = load, sampler.slots()
                fault = log.finish(after.decode_total)
                if fault is None:
                    recorded.log = read_load_log(tally, recorded.concurrent, load)
                else:
                    recorded.log = LoadLog(None, fault)

    def _trials(
        self, arm: Arm, schedule: PassSchedule, body: Body, max_tokens: int
    ) -> Iterator[Trial]:
        for answer in self._dispatcher.run(schedule, lambda entry: body):
            if not isinstance(answer, int):
                yield self._trial(arm, answer, max_tokens)

    def _trial(self, arm: Arm, answer: Answered, max_tokens: int) -> Trial:
        entry, exchange = answer.entry, answer.exchange
        died = broke_by_death(exchange, self._server.dead)
        result = read_result(exchange, max_tokens, died)
        return Trial(
            key=TrialKey(arm, 0, entry.item, entry.occurrence),
            item_id=self._request.item.id,
            lane=answer.lane,
            wave=entry.wave,
            request_sha256=answer.body.sha256,
            dispatch_ts=exchange.dispatch_ts,
            complete_ts=exchange.complete_ts,
            result=result,
            scored=NOT_SCORED if isinstance(result, Completion) else None,
        )


def _n_tokens(trials: list[Trial]) -> int:
    """Tokens that the answers say they have: a lower bound where one does not say."""
    answers = [trial.result for trial in trials if isinstance(trial.result, Completion)]
    return sum(answer.completion_tokens or 0 for answer in answers)
