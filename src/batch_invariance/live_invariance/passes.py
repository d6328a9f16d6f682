"""The passes of one server lifetime: warm-up, planned arms, confirm trials, positive control."""

from __future__ import annotations

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.invariance_diff.control import plan_ban, planted_body
from batch_invariance.invariance_diff.model import Arm, Completion
from batch_invariance.invariance_diff.plan import (
    length_schedule,
    seeded_schedule,
    serial_schedule,
)
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    PassEnd,
    PassPlan,
    PassStart,
    WaveEnd,
)
from batch_invariance.invariance_diff.request import Body, build_body
from batch_invariance.invariance_diff.schedule import (
    DispatchKind,
    Entry,
    Ordering,
    PassSchedule,
    pinned_pass,
    wave_pass,
)
from batch_invariance.live_invariance.answers import broke_by_death
from batch_invariance.live_invariance.dispatch import Answered, BodyFor, Dispatcher, LaneLost
from batch_invariance.live_invariance.log_follower import LogFollower
from batch_invariance.live_invariance.recording import PassRef, Recorder, StopRun
from batch_invariance.live_invariance.server import RunningServer
from batch_invariance.live_invariance.telemetry import LlamaTelemetry, Telemetry

WARMUP_TOKENS = 24


class ServerDied(BatchInvarianceError):
    """The server ended while `arm` ran; `how` and `log_tail` are known once it was reaped."""

    def __init__(self, arm: Arm) -> None:
        super().__init__(f"the server died in arm {arm.value}")
        self.arm = arm
        self.how = "exit status unknown"
        self.log_tail = ""


class Passes:
    """Runs passes on one server and writes down each: its start, trials, ends of waves, forward
    passes by the log, its end. A context manager."""

    def __init__(
        self,
        recorder: Recorder,
        server: RunningServer,
        lifetime: int,
        dispatcher: Dispatcher,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._recorder = recorder
        self._telemetry = telemetry or LlamaTelemetry(server.client)
        self._n_generated = 0
        self._server = server
        self._lifetime = lifetime
        self._dispatcher = dispatcher
        self._log = LogFollower(recorder.write, server)
        self._n_items = len(recorder.items)

    def __enter__(self) -> Passes:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.__exit__()

    def warm_up(self) -> None:
        """One request per lane, released together, of equal length.

        It takes a server's odd first reply away and shows what the server can co-batch.
        """
        lanes = self._server.facts.parallel
        self._recorder.observer.stage("warm-up")
        order = [lane % self._n_items for lane in range(lanes)]
        sampling = self._recorder.header.plan.sampling
        override: dict[str, object] = {"max_tokens": WARMUP_TOKENS}
        if sampling.dialect is None or "ignore_eos" in sampling.dialect.stated:
            override["ignore_eos"] = True

        def body_for(entry: Entry) -> Body:
            return build_body(self._recorder.items[entry.item], sampling, override)

        ref = PassRef(Arm.WARMUP, self._lifetime, WARMUP_TOKENS)
        self._run(ref, wave_pass(order, lanes), body_for)

    def planned(self, plan: PassPlan) -> None:
        """One pass of A, A2, B or C as planned."""
        recorder, header = self._recorder, self._recorder.header
        n, seed = header.cell.dispatch_n, header.plan.schedule_seed
        if plan.arm is not Arm.C:
            schedule = serial_schedule(plan.arm, self._n_items, n)
            recorder.observer.stage(f"arm {plan.arm.value}, {schedule.n_requests} requests")
        else:
            if plan.ordering is Ordering.LISTED:
                schedule = header.plan.listed[plan.pass_index]
            elif plan.ordering is Ordering.BY_LENGTH:
                schedule = length_schedule(self._lengths(), n, seed, plan.pass_index)
            else:
                schedule = seeded_schedule(self._n_items, n, seed, plan.pass_index)
            recorder.observer.stage(f"arm C, pass {plan.pass_index} ({plan.kind.value})")
        self._run(PassRef(plan.arm, plan.pass_index), schedule, self._plain_body)

    def _plain_body(self, entry: Entry) -> Body:
        return self._recorder.bodies[entry.item]

    def _lengths(self) -> list[int]:
        lengths = []
        for item in range(self._n_items):
            trial = self._recorder.reference.get(item)
            result = trial.result if trial is not None else None
            known = isinstance(result, Completion) and result.completion_tokens
            lengths.append(known or 0)
        return lengths

    def confirm(self) -> None:
        """Each diverging (item, lane) once more, alone, on that lane, up to the plan's limit.

        Every item comes at least once before any comes on a second lane.
        """
        recorder = self._recorder
        first: dict[int, tuple[int, int]] = {}
        for pair in recorder.divergent:
            first.setdefault(pair[0], pair)
        leading = set(first.values())
        chosen = [*first.values(), *(pair for pair in recorder.divergent if pair not in leading)]
        limit = recorder.header.plan.confirm_limit
        if len(chosen) > limit:
            recorder.event("confirm_limited", f"{limit} of {len(chosen)} diverging (item, lane)")
        if not chosen:
            return
        recorder.observer.stage(f"confirming {len(chosen[:limit])} divergences serially")
        schedule = pinned_pass(chosen[:limit], self._server.facts.parallel)
        self._run(PassRef(Arm.CONFIRM, 0), schedule, self._plain_body)

    def control(self) -> None:
        """The positive control: one wave in which one item may not begin as it did in arm A."""
        recorder = self._recorder
        plan = self._plan_control()
        if plan is None:
            recorder.event("no_control", "arm A has no answer that a change could be planted in")
            return
        recorder.observer.stage("positive control")
        lanes = self._server.facts.parallel
        order = [(plan.item + i) % self._n_items for i in range(lanes)]
        schedule = wave_pass(order, lanes)
        perturbed = planted_body(plan, recorder.items, recorder.header.plan.sampling)

        def body_for(entry: Entry) -> Body:
            planted = entry.item == plan.item and entry.occurrence == 0
            return perturbed if planted else recorder.bodies[entry.item]

        recorder.write(plan)
        self._run(PassRef(Arm.P, 0), schedule, body_for)

    def _plan_control(self) -> ControlPlan | None:
        return plan_ban(self._recorder.reference)

    def _run(
        self,
        ref: PassRef,
        schedule: PassSchedule,
        body_for: BodyFor,
    ) -> None:
        recorder, telemetry = self._recorder, self._telemetry
        before = telemetry.begin()
        self._n_generated = 0
        self._log.begin(ref, before.decode_total)
        recorder.write(PassStart(ref.arm, ref.index, self._lifetime, schedule, before))
        try:
            with telemetry.sampler(schedule.kind is not DispatchKind.SERIAL) as sampler:
                self._collect(ref, schedule, body_for)
        except LaneLost as lost:
            recorder.event("lane_lost", str(lost), ref.arm, ref.index)
            raise StopRun(f"arm {ref.arm.value} lost: {lost}") from lost
        if self._server.dead.is_set():
            raise ServerDied(ref.arm)
        after = telemetry.read(self._n_generated)
        fault = self._log.finish(after.decode_total)
        for record in sampler.records(ref.arm, ref.index):
            recorder.write(record)
        recorder.write(PassEnd(ref.arm, ref.index, after, sampler.slots(), fault))
        recorder.sync()

    def _collect(
        self,
        ref: PassRef,
        schedule: PassSchedule,
        body_for: BodyFor,
    ) -> None:
        for answer in self._dispatcher.run(schedule, body_for):
            if isinstance(answer, int):
                counters = self._telemetry.read(self._n_generated)
                self._recorder.write(WaveEnd(ref.arm, ref.index, answer, counters))
            else:
                died = broke_by_death(answer.exchange, self._server.dead)
                trial = self._recorder.answered(ref, answer, died)
                if isinstance(trial.result, Completion):
                    self._n_generated += trial.result.completion_tokens or 0
                self._recorded(ref, answer)

    def _recorded(self, ref: PassRef, answer: Answered) -> None:
        """A place for what a run wants to do after each trial."""
