"""A run against a server of someone else, from the first request to evidence.

Arms A, A2, C, the confirm trials, the positive control, and A3 at the end. Like every run it
records what happened and judges nothing.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.invariance_diff.control import plan_ban, plan_exchange
from batch_invariance.invariance_diff.endpoint_report import RATE_LIMITED
from batch_invariance.invariance_diff.model import Arm, FailureKind
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    ExitInfo,
    Identity,
    LifetimeEnd,
    LifetimeStart,
    ServerSaid,
)
from batch_invariance.invariance_diff.schedule import PassSchedule
from batch_invariance.live_invariance.binaries import RunningBinary
from batch_invariance.live_invariance.dispatch import Answered, BodyFor, Dispatcher
from batch_invariance.live_invariance.endpoint_client import EndpointClient
from batch_invariance.live_invariance.endpoint_facts import look
from batch_invariance.live_invariance.endpoint_probe import Found
from batch_invariance.live_invariance.endpoint_telemetry import EndpointTelemetry
from batch_invariance.live_invariance.http import Client
from batch_invariance.live_invariance.passes import Passes
from batch_invariance.live_invariance.recording import PassRef, Recorder, StopRun
from batch_invariance.live_invariance.run import conclude
from batch_invariance.live_invariance.server import ServerFacts

GONE_AFTER = 3
"""Requests in a row that get no connection, after which the server is taken to be gone."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server of a run: clients for its requests and its metrics, and what the probes found."""

    client: EndpointClient
    metrics: Client
    found: Found


class EndpointServer:
    """A server that is there already; see `server.RunningServer`. It is never seen to die."""

    def __init__(self, target: Target, concurrency: int, ctx: int) -> None:
        self.client: Client = target.client
        self.log_path: Path | None = None
        self.dead = threading.Event()
        self.facts = ServerFacts(
            parallel=concurrency,
            n_ctx=ctx,
            argv=(),
            omitted_flags=(),
            identity=target.found.identity,
            key_enforced=False,
            socket_owned=None,
            system_info=None,
            binary=RunningBinary(),
        )

    @property
    def ending(self) -> str:
        """How it ended is not for us to see."""
        return "is not ours to watch"

    def stop(self) -> ExitInfo:
        """Leaves it as it is."""
        return ExitInfo(None, None, "")


class EndpointPasses(Passes):
    """Passes that obey the limits of the run and those of the server."""

    def __init__(
        self, recorder: Recorder, target: Target, dispatcher: Dispatcher, ctx: int
    ) -> None:
        found = target.found.endpoint
        self._watch = EndpointTelemetry(target.client, target.metrics, found.engine, found.offered)
        server = EndpointServer(target, recorder.header.cell.dispatch_n, ctx)
        super().__init__(recorder, server, 0, dispatcher, self._watch)
        self._target = target
        self._lost_in_a_row = 0

    def all_of_them(self) -> None:
        """Every pass of the plan in its order, A3 when all else is done."""
        self.warm_up()
        plans = self._recorder.header.plan.passes
        for plan in plans:
            if plan.arm is not Arm.A3:
                self.planned(plan)
            self._learn_pace()
        self.confirm()
        self.control()
        for plan in plans:
            if plan.arm is Arm.A3:
                self.planned(plan)

    def _learn_pace(self) -> None:
        spans = [t.complete_ts - t.dispatch_ts for t in self._recorder.reference.values()]
        self._watch.typical_s = statistics.median(spans) if spans else 0.0

    def _plan_control(self) -> ControlPlan | None:
        heeded = self._target.found.endpoint.capabilities.logit_bias
        plan = plan_ban if heeded else plan_exchange
        return plan(self._recorder.reference)

    def _collect(self, ref: PassRef, schedule: PassSchedule, body_for: BodyFor) -> None:
        try:
            super()._collect(ref, schedule, body_for)
        finally:
            self._tell_waits(ref)

    def _died(self, answer: Answered) -> bool:
        """Nothing tells of a foreign server's death; a run that gets no answers any more ends."""
        failure = answer.exchange.failure
        if failure is None or failure.kind is not FailureKind.CONNECTION:
            self._lost_in_a_row = 0
        else:
            self._lost_in_a_row += 1
        return False

    def _recorded(self, ref: PassRef, answer: Answered) -> None:
        self._tell_waits(ref)
        failure = answer.exchange.failure
        if failure is not None and failure.kind is FailureKind.NOT_SENT:
            raise StopRun(f"stopped: {failure.detail}")
        if self._lost_in_a_row >= GONE_AFTER:
            raise StopRun(f"the server cannot be reached any more in arm {ref.arm.value}")

    def _tell_waits(self, ref: PassRef) -> None:
        for text in self._target.client.waits():
            self._recorder.event(RATE_LIMITED, text, ref.arm, ref.index)


def run_endpoint(recorder: Recorder, target: Target, request_timeout_s: float) -> None:
    """Runs all arms against the server as it was found, and leaves evidence with a footer; without
    one where a signal interrupted it."""
    recorder.write(recorder.header)
    conclude(recorder, lambda: _lifetime(recorder, target, request_timeout_s))


def _lifetime(recorder: Recorder, target: Target, timeout_s: float) -> None:
    header, client = recorder.header, target.client
    n, ctx = header.cell.dispatch_n, header.cell.ctx
    told = target.found.told
    recorder.write(
        LifetimeStart(
            index=0,
            parallel=n,
            n_ctx=ctx,
            argv=(),
            omitted_flags=(),
            identity=told.identity,
            key_enforced=False,
            socket_owned=None,
            system_info=None,
            executable_sha256=None,
            libraries={},
            ts=time.monotonic(),
        )
    )
    recorder.write(ServerSaid(0, False, told.facts))
    idle = EndpointTelemetry(
        client, target.metrics, target.found.endpoint.engine, target.found.endpoint.offered
    )

    def is_idle(lane: int) -> bool:
        seen = idle.running()
        return seen is not None and seen[0] == 0

    try:
        with Dispatcher(client, n, timeout_s, threading.Event(), is_idle) as dispatcher:
            passes = EndpointPasses(recorder, target, dispatcher, ctx)
            with passes:
                passes.all_of_them()
    finally:
        client.close()
        _say_goodbye(recorder, target)


def _say_goodbye(recorder: Recorder, target: Target) -> None:
    """Asks the server once more who it is."""
    end = look(target.client, target.metrics, recorder.header.cell.model)
    silent = end.identity == Identity(None, None, None, None)
    if not silent:
        recorder.write(ServerSaid(0, True, end.facts))
    recorder.write(LifetimeEnd(0, None if silent else end.identity, None, time.monotonic()))
