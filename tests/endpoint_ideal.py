"""The evidence of an ideal run on a server that someone else runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batch_invariance.invariance_diff.endpoint import (
    Capabilities,
    Dialect,
    Endpoint,
    Engine,
    Offered,
    TokenNames,
)
from batch_invariance.invariance_diff.model import Arm, Source, Trial
from batch_invariance.invariance_diff.plan import FOREIGN_ARMS, plan_passes
from batch_invariance.invariance_diff.records import (
    Counters,
    ExitInfo,
    Footer,
    GaugeSamples,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    ServerSaid,
    WaveEnd,
)
from batch_invariance.invariance_diff.request import Sampling
from core_fixtures import SEED, Ideal, Records, a_start, count_tokens, on_kind

SAID = {"version": "0.9", "system_fingerprint": "fp-1"}
DIALECT = Dialect("toy", ("temperature", "seed", "logprobs"), False, TokenNames.IDS)
ENDPOINT = Endpoint(
    url="http://127.0.0.1:1/v1",
    engine=Engine.VLLM,
    said=SAID,
    capabilities=Capabilities(
        logprobs=True,
        alternatives=True,
        tokens=TokenNames.IDS,
        usage=True,
        reports_cache=True,
        seed=True,
        cache_prompt=False,
        logit_bias=True,
        refused=(),
    ),
    offered=Offered("steps", "generated", "prompt", "cached", "running"),
    claim=None,
    n_probes=3,
)


@dataclass
class IdealEndpoint(Ideal):
    """An ideal run of one lifetime: arms A and A2, those of C, the planted change, and A3."""

    def records(self) -> Records:
        header = self._header()
        out: list[Record] = [header, _named(a_start(0, self.n)), ServerSaid(0, False, SAID)]
        self._warm_up(out, 0, self.n)
        for plan in header.plan.passes:
            if plan.arm is not Arm.A3:
                self._pass(out, plan.arm, plan.pass_index, 0, self._schedule(plan))
        self._control(out, 0)
        for plan in header.plan.passes:
            if plan.arm is Arm.A3:
                self._pass(out, plan.arm, plan.pass_index, 0, self._schedule(plan))
        start = out[1]
        assert isinstance(start, LifetimeStart)
        out.append(ServerSaid(0, True, SAID))
        out.append(LifetimeEnd(0, start.identity, ExitInfo(None, None, ""), 1.0))
        out.append(Footer("complete", sum(isinstance(r, Trial) for r in out), self._clock))
        return count_tokens(tuple(out))

    def sampling(self) -> Sampling:
        return Sampling(0, max(self.lengths), 2, DIALECT)

    def _header(self) -> Header:
        header = super()._header()
        passes = plan_passes(len(self.lengths), self.n, self.passes, SEED, FOREIGN_ARMS)
        plan = replace(header.plan, passes=passes)
        return replace(header, source=Source.ENDPOINT, endpoint=ENDPOINT, plan=plan)

    def _counters(self) -> Counters:
        return Counters(self._decodes, None, None, 0)


def _named(start: LifetimeStart) -> LifetimeStart:
    identity = replace(start.identity, total_slots=None, n_ctx=None, chat_template_sha256=None)
    return replace(start, identity=identity)


def with_polls(records: Records) -> Records:
    """Has the scheduler's gauge polled thrice inside every trial of C, P and the serial arms, each
    poll showing all that were in flight."""
    out: list[Record] = []
    trials: list[Trial] = []
    for record in records:
        if isinstance(record, PassStart):
            trials = []
        elif isinstance(record, Trial):
            trials.append(record)
        elif isinstance(record, PassEnd):
            moments = [
                t.dispatch_ts + part * (t.complete_ts - t.dispatch_ts)
                for t in trials
                for part in (0.3, 0.5, 0.7)
            ]
            polls = tuple(
                (at, at, sum(t.dispatch_ts <= at <= t.complete_ts for t in trials), 0)
                for at in moments
            )
            out.append(GaugeSamples(record.arm, record.pass_index, polls))
        out.append(record)
    return tuple(out)


def without_steps(records: Records) -> Records:
    """The server does not count its forward passes."""
    return on_kind(
        (PassStart, WaveEnd, PassEnd),
        lambda r: replace(r, counters=replace(r.counters, decode_total=None)),
    )(records)
