"""Each gate by itself: one change to a GREEN run, one gate that leaves PASS, its colour.

The evidence is that of a real driver run against the in-process mock; where a figure must lie
exactly on a boundary, it is that of an ideal run worked out by `core_fixtures.Ideal`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.diff import TOKEN_FIELDS
from batch_invariance.invariance_diff.gates import GATES
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    FailureKind,
    Outcome,
    Source,
    Trial,
    Verdict,
)
from batch_invariance.invariance_diff.packed import (
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from batch_invariance.invariance_diff.proof import Overlap, coverage_of, overlap_of
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    Counters,
    Event,
    Footer,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    SlotSamples,
    WaveEnd,
)
from batch_invariance.invariance_diff.schedule import DispatchKind
from core_fixtures import (
    COLOURS,
    Change,
    Ideal,
    Records,
    at_end_of,
    confirmed,
    departures,
    first_trial,
    in_arm,
    lost,
    measured,
    mutate,
    on_header,
    on_kind,
    on_plan,
    on_trials,
    outcomes,
    pass_span,
    reason,
    recertify,
    recount,
    remeasure,
    shift_decodes,
    then,
    trial_of,
    with_result,
    with_scored,
    without_pass,
)

if TYPE_CHECKING:
    from conftest import DriverEvidence

FAIL, UNKNOWN, PASS, NA = Outcome.FAIL, Outcome.UNKNOWN, Outcome.PASS, Outcome.NOT_APPLICABLE
ITEM = 5
NO_COUNTERS = Counters(None, None, None)


def _c(change: Callable[[Trial], Trial], pass_index: int = 0) -> Change:
    """Changes one trial of C and adds the confirm trial that the driver would have run."""

    def changed(records: Records) -> Records:
        where = in_arm(Arm.C, pass_index, ITEM)
        lane = trial_of(records, where).lane
        return confirmed((ITEM, lane))(on_trials(where, change)(records))

    return changed


def _one(arm: Arm, change: Callable[[Trial], Trial | None], pass_index: int = 0) -> Change:
    return on_trials(in_arm(arm, pass_index, ITEM), change)


def _everywhere(change: Callable[[Trial], Trial], *items: int) -> Change:
    """Alike in every arm, so that no arm differs from another."""
    return on_trials(
        lambda t: t.key.arm is not Arm.WARMUP and (not items or t.key.item in items), change
    )


def _other_finish(trial: Trial) -> Trial:
    return with_result(finish_reason="another")(trial)


def _other_token(place: int) -> Callable[[Trial], Trial]:
    """Another token id whose text is the same."""

    def changed(trial: Trial) -> Trial:
        assert isinstance(trial.result, Completion)
        ids = list(unpack_ids(trial.result.token_ids or ""))
        ids[place] += 1
        return with_result(token_ids=pack_ids(ids))(trial)

    return changed


def _moved_logprob(by: float, place: int = 3) -> Callable[[Trial], Trial]:
    def changed(trial: Trial) -> Trial:
        assert isinstance(trial.result, Completion)
        values = list(unpack_floats(trial.result.logprobs or ""))
        values[place] += by
        return with_result(logprobs=pack_floats(values))(trial)

    return changed


def _armed(drift: str, *changes: Change) -> Change:
    return then(on_plan(logit_drift=drift), *changes)


def _c_slots(samples: SlotSamples | None) -> Change:
    """What slot polling saw in arm C; a run that is fast enough was never polled."""
    return lambda records: tuple(
        replace(r, slots=samples) if isinstance(r, PassEnd) and r.arm is Arm.C else r
        for r in records
    )


def _blunted(size: int, arm: Arm = Arm.C) -> Change:
    """The arm takes so many more forward passes that no batch above `size` is proved."""

    def blunted(records: Records) -> Records:
        extras: dict[int, int] = {}
        tokens = wave_tokens = before = start = 0
        for record in records:
            if isinstance(record, Trial):
                if record.key.arm is arm and isinstance(record.result, Completion):
                    tokens += record.result.completion_tokens or 0
                    wave_tokens += record.result.completion_tokens or 0
            elif not isinstance(record, (PassStart, WaveEnd, PassEnd)) or record.arm is not arm:
                continue
            elif isinstance(record, PassStart):
                tokens = wave_tokens = 0
                before = start = record.counters.decode_total or 0
            elif isinstance(record, WaveEnd):
                now = record.counters.decode_total or 0
                extras[id(record)] = max(0, -(-wave_tokens // size) - (now - before))
                before, wave_tokens = now, 0
            elif wave_tokens:
                decodes = (record.counters.decode_total or 0) - start
                extras[id(record)] = max(0, -(-tokens // size) - decodes)
        return shift_decodes(lambda r: extras.get(id(r), 0))(records)

    return blunted


def _one_after_the_other(records: Records) -> Records:
    """Arm C's client intervals laid end to end."""
    clock = [1000.0]

    def moved(record: Record) -> Record:
        if not isinstance(record, Trial) or record.key.arm is not Arm.C:
            return record
        clock[0] += 1.0
        return replace(record, dispatch_ts=clock[0], complete_ts=clock[0] + 1.0)

    return mutate(records, moved)


def _only_waves_counted(*kept: tuple[int, int]) -> Change:
    """Only these (pass, wave) of C keep their decode counters."""
    return on_kind(
        WaveEnd,
        lambda r: (
            r
            if r.arm is not Arm.C or (r.pass_index, r.wave) in kept
            else replace(r, counters=NO_COUNTERS)
        ),
    )


def _start(index: int, **changes: object) -> Change:
    return on_kind(LifetimeStart, lambda r: replace(r, **changes) if r.index == index else r)


def _says(index: int, at_end: bool = True, /, **changes: str | int | None) -> Change:
    """What launch `index` says of itself, at its start and, unless told otherwise, at its end."""

    def said(record: Record) -> Record:
        if isinstance(record, LifetimeStart) and record.index == index:
            return replace(record, identity=replace(record.identity, **changes))  # type: ignore[arg-type]
        if isinstance(record, LifetimeEnd) and record.index == index and at_end:
            assert record.identity is not None
            return replace(record, identity=replace(record.identity, **changes))  # type: ignore[arg-type]
        return record

    return lambda records: mutate(records, said)


def _both_say(**changes: str | None) -> Change:
    return then(_says(0, **changes), _says(1, **changes))


def _footer(**changes: object) -> Change:
    return on_kind(Footer, lambda r: replace(r, **changes))


def _footer_counts(off_by: int) -> Change:
    return on_kind(Footer, lambda r: replace(r, n_trials=r.n_trials + off_by))


def _event(what: str) -> Change:
    return lambda records: (*records[:-1], Event(what, "made up"), records[-1])


def _dropped(arm: Arm, pass_index: int = 0) -> Change:
    return lambda records: recount(_one(arm, lambda t: None, pass_index)(records))


def _doubled(records: Records) -> Records:
    place = first_trial(records, in_arm(Arm.C, 1, ITEM))
    return recount((*records[: place + 1], *records[place:]))


def _ran_twice(records: Records) -> Records:
    start, stop = pass_span(records, Arm.A2)
    return recount((*records[:stop], *records[start:stop], *records[stop:]))


def _another_order(records: Records) -> Records:
    """Two items of a saturated pass trade places in the schedule that ran."""

    def swapped(record: Record) -> Record:
        if not isinstance(record, PassStart) or (record.arm, record.pass_index) != (Arm.C, 1):
            return record
        (group,) = record.schedule.groups
        order = (group[1], group[0], *group[2:])
        return replace(record, schedule=replace(record.schedule, groups=(order,)))

    return mutate(records, swapped)


def _not_by_length(records: Records) -> Records:
    """The first pass of C in another order of equally full waves than arm A's lengths ask for."""

    def swapped(record: Record) -> Record:
        if not isinstance(record, PassStart) or (record.arm, record.pass_index) != (Arm.C, 0):
            return record
        groups = record.schedule.groups
        swap = (groups[1], groups[0], *groups[2:])
        return replace(record, schedule=replace(record.schedule, groups=swap))

    def renumbered(record: Record) -> Record:
        if isinstance(record, Trial) and (record.key.arm, record.key.pass_index) == (Arm.C, 0):
            wave = record.wave
            assert wave is not None
            return replace(record, wave=1 - wave if wave < 2 else wave)
        if isinstance(record, WaveEnd) and (record.arm, record.pass_index) == (Arm.C, 0):
            return replace(record, wave=1 - record.wave if record.wave < 2 else record.wave)
        return record

    return mutate(mutate(records, swapped), renumbered)


def _unplanned(records: Records) -> Records:
    return on_header(
        lambda h: replace(h, plan=replace(h.plan, passes=h.plan.passes[:-1])),
    )(records)


def _without_end(arm: Arm, pass_index: int) -> Change:
    return on_kind(PassEnd, lambda r: None if (r.arm, r.pass_index) == (arm, pass_index) else r)


def _planted(records: Records) -> int:
    return next(r.item for r in records if isinstance(r, ControlPlan))


def _planted_answers(change: Callable[[Trial], Trial]) -> Change:
    """The planted trial answers as A did, but for `change`."""

    def answered(records: Records) -> Records:
        a = change(trial_of(records, in_arm(Arm.A, 0, _planted(records))))
        return on_trials(lambda t: t.perturbed, lambda t: replace(t, result=a.result))(records)

    return answered


def _companion(records: Records) -> Callable[[Trial], bool]:
    """The first trial of P that is not the planted one."""
    found = trial_of(records, lambda t: t.key.arm is Arm.P and not t.perturbed)
    return lambda t: t.key == found.key


def _without_companion(records: Records) -> Records:
    return recount(on_trials(_companion(records), lambda t: None)(records))


def _companion_lost(records: Records) -> Records:
    return on_trials(_companion(records), lost())(records)


def _lane_moved(records: Records) -> Records:
    """A trial of a wave on a neighbour's lane."""
    return _one(Arm.C, lambda t: replace(t, lane=(t.lane + 1) % 4))(records)


def _as_planted(trial: Trial) -> Trial:
    return replace(trial, perturbed=True, request_sha256="0" * 64)


def _no_lifetimes(records: Records) -> Records:
    return tuple(r for r in records if not isinstance(r, (LifetimeStart, LifetimeEnd)))


@dataclass(frozen=True)
class Case:
    """`also`: the other gates that the change must by nature touch, and `why` it must."""

    gate: str
    label: str
    change: Change
    outcome: Outcome = FAIL
    reason: str | None = None
    also: dict[str, Outcome] = field(default_factory=dict)
    why: str = ""

    @property
    def alone(self) -> bool:
        return not self.also


CASES = (
    Case("F0_score", "score", _c(with_scored(score=0.5)), reason="score_divergence"),
    Case("F0_score", "passed", _c(with_scored(passed=True))),
    Case("F0_score", "answer", _c(with_scored(extracted_answer="another"))),
    Case("F0_score", "expected answer", _c(with_scored(expected_answer="another"))),
    Case("F0_score", "failure mode", _c(with_scored(failure_mode="refused"))),
    Case("F0_score", "prompt count", _c(with_result(prompt_tokens=1))),
    Case("F0_score", "type of the score", _c(with_scored(score=0))),
    Case("F0_score", "in the last pass", _c(with_scored(score=0.5), 3)),
    Case(
        "F0_score",
        "no prompt counts",
        _everywhere(with_result(prompt_tokens=None)),
        UNKNOWN,
        "prompt_tokens_unknown",
    ),
    Case(
        "F0_score",
        "nothing compared",
        then(on_trials(in_arm(Arm.C), lost()), _c_slots(None)),
        UNKNOWN,
        "nothing_compared",
        also={
            "lost": FAIL,
            "F1_overlap": UNKNOWN,
            "F2_completion_floor": UNKNOWN,
            "F3_coverage": UNKNOWN,
            "control_b": UNKNOWN,
            "tokens": UNKNOWN,
            "sample": FAIL,
        },
        why="without a single answer of C nothing about C can be known",
    ),
    Case("completeness", "a trial missing", _dropped(Arm.C, 1), reason="incomplete"),
    Case("completeness", "a control trial missing", _without_companion),
    Case("completeness", "a trial twice", _doubled),
    Case("completeness", "a pass twice", _ran_twice),
    Case("completeness", "no footer", lambda records: records[:-1]),
    Case("completeness", "ended early", _footer(ended="stopped")),
    Case("completeness", "the footer counts one more", _footer_counts(1)),
    Case("completeness", "the footer counts one less", _footer_counts(-1)),
    Case("completeness", "another seeded schedule", _another_order),
    Case("completeness", "another schedule by length", _not_by_length),
    Case("completeness", "a pass that was not planned", _unplanned),
    Case("completeness", "a pass that never ran", without_pass(Arm.C, 3, planned=True)),
    Case("completeness", "a pass that never ended", _without_end(Arm.WARMUP, 1)),
    Case("completeness", "a trial on another lane", _lane_moved),
    Case("completeness", "the server died", _event("server_died")),
    Case("completeness", "the run was stopped", _event("stopped")),
    Case("completeness", "a lane was lost", _event("lane_lost")),
    Case(
        "completeness",
        "a divergence without its confirm trial",
        _one(Arm.C, with_scored(score=0.5)),
        also={"F0_score": FAIL},
        why="only a divergence asks for a confirm trial",
    ),
    Case(
        "completeness",
        "the last pass never ended",
        _without_end(Arm.P, 0),
        also={"isolation": UNKNOWN},
        why="a pass without its end has no decode count",
    ),
    Case("lost", "in A2", _one(Arm.A2, lost()), reason="lost_trials"),
    Case("lost", "in B", _one(Arm.B, lost())),
    Case("lost", "in a wave of C", _one(Arm.C, lost())),
    Case("lost", "in a saturated pass of C", _one(Arm.C, lost(FailureKind.HTTP_ERROR, 500), 1)),
    Case("lost", "beside the planted change", _companion_lost),
    Case("lost", "in confirm", confirmed((ITEM, 1), change=lost())),
    Case(
        "F1_overlap",
        "proved N - 1",
        then(_blunted(3), _c_slots(None)),
        FAIL,
        "batch_of_n_not_proved",
    ),
    Case(
        "F1_overlap",
        "slots that saw N - 1",
        then(_blunted(3), _c_slots(SlotSamples(9, 3))),
        FAIL,
        "batch_of_n_not_proved",
    ),
    Case("F1_overlap", "client depth 1", _one_after_the_other, FAIL, "no_overlap"),
    Case(
        "F1_overlap",
        "server depth 1",
        then(_blunted(1), _c_slots(SlotSamples(9, 1))),
        FAIL,
        "no_overlap",
        also={"F3_coverage": FAIL, "sample": FAIL},
        why="what never shared a forward pass covers nothing",
    ),
    Case(
        "F1_overlap",
        "server depth 0",
        then(
            without_pass(Arm.C, 1, 3),
            _only_waves_counted(),
            _c_slots(SlotSamples(9, 0)),
        ),
        FAIL,
        "no_overlap",
        also={"F3_coverage": UNKNOWN, "sample": FAIL},
        why="slot samples alone cover nothing",
    ),
    Case(
        "F1_overlap",
        "no server witness",
        then(without_pass(Arm.C, 1, 3), _only_waves_counted(), _c_slots(None)),
        UNKNOWN,
        "no_server_witness",
        also={"F3_coverage": UNKNOWN, "sample": FAIL},
        why="coverage needs a server witness too",
    ),
    Case(
        "F2_completion_floor",
        "a quarter of the answers empty",
        _everywhere(with_scored(failure_mode="empty"), 2, 5, 8, 11, 14),
        reason="completion_floor",
    ),
    Case(
        "F2_completion_floor",
        "nothing scored in C",
        then(on_trials(in_arm(Arm.C), lost()), _c_slots(None)),
        UNKNOWN,
        "nothing_scored",
        also={
            "F0_score": UNKNOWN,
            "lost": FAIL,
            "F1_overlap": UNKNOWN,
            "F3_coverage": UNKNOWN,
            "control_b": UNKNOWN,
            "tokens": UNKNOWN,
            "sample": FAIL,
        },
        why="without a single answer of C nothing about C can be known",
    ),
    Case(
        "F3_coverage",
        "three waves of five counted",
        _only_waves_counted((0, 0), (0, 1), (0, 2)),
        reason="coverage",
    ),
    Case(
        "F3_coverage",
        "slot samples alone",
        then(without_pass(Arm.C, 1, 3), _only_waves_counted(), _c_slots(SlotSamples(9, 4))),
        UNKNOWN,
        "weak_witness",
        also={"F1_overlap": FAIL, "sample": FAIL},
        why="slot samples alone prove no batch of N and cover nothing",
    ),
    Case(
        "F4_logit_drift",
        "one bit",
        _armed("bits", _one(Arm.C, _moved_logprob(1e-6), 2)),
        FAIL,
        "logit_drift",
    ),
    Case("F4_logit_drift", "an epsilon", _armed("0.25", _one(Arm.C, _moved_logprob(0.5)))),
    Case(
        "F4_logit_drift",
        "no logprobs in one trial",
        _armed("bits", _one(Arm.C, with_result(logprobs=None))),
        UNKNOWN,
        "logprobs_unknown",
    ),
    Case(
        "F4_logit_drift",
        "no logprobs at all",
        _armed("bits", _everywhere(with_result(logprobs=None))),
        UNKNOWN,
        "logprobs_unknown",
    ),
    Case(
        "F4_logit_drift",
        "with other tokens",
        _armed("bits", _c(_other_token(10)), _one(Arm.C, _moved_logprob(0.5))),
        FAIL,
        "token_and_logit_drift",
        also={"tokens": FAIL},
        why="the reason says that tokens differ as well",
    ),
    *(
        Case(
            "F5_provenance",
            source.value,
            on_header(lambda h, source=source: replace(h, source=source)),  # type: ignore[misc]
            FAIL,
            f"source_{source.value}",
        )
        for source in (Source.MOCK, Source.CANARY)
    ),
    Case("isolation", "cache used", _one(Arm.C, with_result(cache_n=1)), FAIL, "not_isolated"),
    Case("isolation", "cache used in A2", _one(Arm.A2, with_result(cache_n=1))),
    Case("isolation", "truncated", _one(Arm.C, with_result(truncated=True))),
    Case("isolation", "speculated", _one(Arm.C, with_result(draft_n=1))),
    Case("isolation", "another body", _one(Arm.B, lambda t: replace(t, request_sha256="0" * 64))),
    Case(
        "isolation",
        "another planted body than planned",
        on_trials(lambda t: t.perturbed, _as_planted),
    ),
    Case("isolation", "planted outside P", _one(Arm.C, _as_planted)),
    *(
        Case("isolation", f"shared decodes in {arm.value}", shift_decodes(at_end_of(arm, 0, -1)))
        for arm in (Arm.A, Arm.A2, Arm.B)
    ),
    Case(
        "isolation",
        "shared decodes in confirm",
        then(confirmed((ITEM, 1)), shift_decodes(at_end_of(Arm.CONFIRM, 0, -1))),
    ),
    *(
        Case("isolation", f"foreign traffic in {arm.value}", shift_decodes(at_end_of(arm, 0, 1)))
        for arm in (Arm.A2, Arm.B)
    ),
    Case("isolation", "foreign traffic in A", shift_decodes(at_end_of(Arm.A, 0, 999))),
    Case("isolation", "foreign traffic in C", shift_decodes(at_end_of(Arm.C, 1, 999))),
    Case(
        "isolation",
        "no cache report",
        _one(Arm.C, with_result(cache_n=None)),
        UNKNOWN,
        "isolation_unknown",
    ),
    Case("isolation", "no word on its end", _one(Arm.B, with_result(truncated=None)), UNKNOWN),
    Case(
        "isolation",
        "no decode count",
        on_kind(PassEnd, lambda r: replace(r, counters=NO_COUNTERS) if r.arm is Arm.B else r),
        UNKNOWN,
    ),
    Case(
        "isolation",
        "no decode count at its start",
        on_kind(PassStart, lambda r: replace(r, counters=NO_COUNTERS) if r.arm is Arm.B else r),
        UNKNOWN,
    ),
    Case(
        "isolation", "a counter that runs back", shift_decodes(at_end_of(Arm.B, 0, -9999)), UNKNOWN
    ),
    Case("identity", "slots", _says(1, total_slots=5), reason="identity_mismatch"),
    Case("identity", "context", _says(0, n_ctx=256)),
    Case("identity", "changed while it ran", _says(1, False, build="b2")),
    *(
        Case("identity", f"{name} differs between launches", _says(1, **{name: "another"}))
        for name in ("model", "build", "chat_template_sha256")
    ),
    Case("identity", "another executable", _start(1, executable_sha256="0" * 64)),
    Case("identity", "another library", _start(1, libraries={"libggml.so": "0" * 64})),
    Case("identity", "A on two slots", then(_start(0, parallel=2), _says(0, total_slots=2))),
    Case("identity", "B and C on five slots", then(_start(1, parallel=5), _says(1, total_slots=5))),
    *(
        Case("identity", f"no {name}", _both_say(**{name: None}), UNKNOWN, "identity_unknown")
        for name in ("total_slots", "n_ctx", "model", "build")
    ),
    Case("identity", "no launch", _no_lifetimes, UNKNOWN, "identity_unknown"),
    *(
        Case(
            "identity",
            f"not proved to be the child ({owned})",
            _start(1, key_enforced=False, socket_owned=owned),
            UNKNOWN,
        )
        for owned in (None, False)
    ),
    Case(
        "identity",
        "not asked at its end",
        on_kind(LifetimeEnd, lambda r: replace(r, identity=None)),
        UNKNOWN,
    ),
    Case("identity", "no end", on_kind(LifetimeEnd, lambda r: None), UNKNOWN),
    Case("control_b", "finish", _one(Arm.B, _other_finish), FAIL, "AC_agree_B_disagrees"),
    Case("control_b", "token", _one(Arm.B, _other_token(2))),
    Case("control_b", "score", _one(Arm.B, with_scored(score=0.5))),
    Case("control_b", "no B", without_pass(Arm.B), UNKNOWN, "arm_b_missing"),
    Case(
        "control_b",
        "B and C each differ",
        then(_c(with_scored(score=0.5)), _one(Arm.B, _other_finish)),
        FAIL,
        "B_disagrees",
        also={"F0_score": FAIL},
        why="the reason says that C differs as well",
    ),
    Case("reference", "finish", _one(Arm.A2, _other_finish), FAIL, "reference_unstable"),
    Case("reference", "token", _one(Arm.A2, _other_token(0))),
    Case("reference", "score", _one(Arm.A2, with_scored(score=0.5))),
    Case("reference", "no A2", without_pass(Arm.A2), UNKNOWN, "reference_missing"),
    Case(
        "reference",
        "no token ids",
        _everywhere(with_result(token_ids=None), ITEM),
        UNKNOWN,
        "tokens_unknown",
        also={"tokens": UNKNOWN},
        why="ids that A lacks are missing from every comparison with A",
    ),
    Case("tokens", "token", _c(_other_token(4)), FAIL, "token_only"),
    *(
        Case("tokens", name, _c(with_result(**{name: "another"})))
        for name in ("text", "finish_reason", "reasoning", "tool_calls")
    ),
    Case(
        "tokens",
        "count",
        _c(with_result(completion_tokens=23)),
    ),
    Case(
        "tokens",
        "score too",
        _c(lambda t: with_scored(score=0.5)(_other_finish(t))),
        FAIL,
        "token_divergence",
        also={"F0_score": FAIL},
        why="the reason says that the score differs as well",
    ),
    Case(
        "tokens",
        "no token ids",
        _everywhere(with_result(token_ids=None), ITEM),
        UNKNOWN,
        "tokens_unknown",
        also={"reference": UNKNOWN},
        why="ids that A lacks are missing from every comparison with A",
    ),
    Case("positive_control", "not seen", _planted_answers(lambda t: t), FAIL, "control_not_seen"),
    Case("positive_control", "seen too late", _planted_answers(_other_token(1))),
    Case(
        "positive_control",
        "no plan",
        on_kind(ControlPlan, lambda r: None),
        UNKNOWN,
        "control_missing",
        also={"isolation": FAIL},
        why="a body that nobody planned is a foreign one",
    ),
    Case("positive_control", "not run", without_pass(Arm.P), UNKNOWN, "control_missing"),
    Case(
        "positive_control",
        "another item planted",
        on_kind(ControlPlan, lambda r: replace(r, item=r.item + 1)),
        UNKNOWN,
        also={"isolation": FAIL},
        why="a body that nobody planned is a foreign one",
    ),
    Case(
        "positive_control",
        "the planted trial lost",
        on_trials(lambda t: t.perturbed, lost()),
        UNKNOWN,
        also={"lost": FAIL},
        why="a lost trial is lost in P too",
    ),
    Case("sample", "one pass of C", without_pass(Arm.C, 1, 2, 3), FAIL, "sample_too_small"),
)


def _named(case: Case) -> str:
    return f"{case.gate}-{case.label}".replace(" ", "_")


def test_the_unchanged_run_is_green_and_promotable(driver_evidence: DriverEvidence) -> None:
    certificate = recertify(driver_evidence.records)
    assert departures(certificate) == {}
    assert (certificate.verdict, certificate.promotable) == (Verdict.GREEN, True)
    assert certificate.to_bytes() == driver_evidence.certificate_bytes


@pytest.mark.parametrize("case", CASES, ids=_named)
def test_one_change_costs_one_gate(case: Case, driver_evidence: DriverEvidence) -> None:
    certificate = recertify(case.change(driver_evidence.records))
    assert departures(certificate) == {case.gate: case.outcome, **case.also}
    if case.reason is not None:
        assert reason(certificate, case.gate) == case.reason
    colours = [
        Verdict.UNVERIFIED if outcome is UNKNOWN else COLOURS[gate]
        for gate, outcome in departures(certificate).items()
    ]
    order = (None, Verdict.AMBER, Verdict.UNVERIFIED, Verdict.RED)
    worst = max(colours, key=order.index)
    assert certificate.verdict is (worst or Verdict.GREEN)
    assert not certificate.promotable


def test_the_table_is_the_design() -> None:
    assert {gate.name: gate.colour for gate in GATES} == COLOURS
    assert len(GATES) == len(COLOURS)


@pytest.mark.parametrize("gate", COLOURS)
def test_every_gate_can_fail_alone(gate: str) -> None:
    assert [c for c in CASES if c.gate == gate and c.outcome is FAIL and c.alone]


def test_what_touches_a_second_gate_says_why() -> None:
    assert all(bool(case.why) is not case.alone for case in CASES)


@pytest.mark.parametrize("gate", COLOURS)
def test_which_gates_can_be_unknown(gate: str) -> None:
    """Whether a run is complete, lost nothing, was live and was large enough is always known."""
    always_known = {"completeness", "lost", "F5_provenance", "sample"}
    has_case = any(c.gate == gate and c.outcome is UNKNOWN for c in CASES)
    assert has_case is (gate not in always_known)


def test_only_the_drift_gate_can_be_without_application(driver_evidence: DriverEvidence) -> None:
    unarmed = outcomes(recertify(driver_evidence.records))
    assert {g for g, o in unarmed.items() if o is NA} == {"F4_logit_drift"}


def test_the_source_and_the_description_of_the_server_must_agree(
    driver_evidence: DriverEvidence,
) -> None:
    undescribed = on_header(lambda h: replace(h, source=Source.ENDPOINT))
    with pytest.raises(EvidenceError, match="disagree"):
        recertify(undescribed(driver_evidence.records))


# What a gate must not trip over.


@pytest.mark.parametrize(
    "change",
    [
        confirmed((ITEM, 1)),
        _start(1, key_enforced=False, socket_owned=True),
        _start(0, key_enforced=True, socket_owned=None),
        _event("confirm_limited"),
        on_trials(in_arm(Arm.WARMUP, 1), lost()),
        _armed("bits"),
        _armed("0"),
        _armed("0.5", _one(Arm.C, _moved_logprob(0.5))),
        _one(Arm.C, with_result(draft_n=0)),
        _everywhere(with_scored(failure_mode="empty"), 2, 5, 8, 11),
        _only_waves_counted((0, 0), (0, 1), (0, 2), (0, 3)),
        without_pass(Arm.C, 2, 3),
        then(_blunted(3), _c_slots(SlotSamples(3, 4))),
        _c_slots(SlotSamples(0, 0)),
        shift_decodes(at_end_of(Arm.C, 1, 20)),
        then(shift_decodes(at_end_of(Arm.A, 0, 3)), shift_decodes(at_end_of(Arm.A2, 0, 3))),
        then(
            shift_decodes(at_end_of(Arm.A, 0, 3)),
            shift_decodes(at_end_of(Arm.A2, 0, 3)),
            shift_decodes(at_end_of(Arm.B, 0, 3)),
        ),
    ],
    ids=[
        "confirm without a divergence",
        "own socket instead of a key",
        "key enforced",
        "an event that is a remark",
        "a warm-up reply lost",
        "drift armed, none there",
        "epsilon 0, none there",
        "drift of exactly the epsilon",
        "speculation off",
        "exactly 80 % ok",
        "exactly 80 % covered",
        "two passes of C",
        "warm-up and slots prove N",
        "never polled",
        "prompt chunks in C",
        "prompt chunks in A",
        "prompt chunks in B as in A",
    ],
)
def test_still_green(change: Change, driver_evidence: DriverEvidence) -> None:
    certificate = recertify(change(driver_evidence.records))
    assert departures(certificate) == {}
    assert certificate.promotable


def test_more_chunks_in_b_than_in_a_are_foreign(driver_evidence: DriverEvidence) -> None:
    alike = (shift_decodes(at_end_of(Arm.A, 0, 3)), shift_decodes(at_end_of(Arm.A2, 0, 3)))
    more = then(*alike, shift_decodes(at_end_of(Arm.B, 0, 4)))
    assert departures(recertify(more(driver_evidence.records))) == {"isolation": FAIL}


def test_a_chunk_for_each_32_prompt_tokens_explains_itself() -> None:
    for chunks, expected in ((2, {}), (3, {"isolation": FAIL})):
        run = Ideal([24] * 20, chunks=chunks, prompt_tokens=64)
        assert departures(recertify(run.records())) == expected


def test_fillers_of_a_wave_may_need_their_chunks_too() -> None:
    """17 items in waves of 4 send 20 requests; serially they are allowed A's chunks just once."""
    run = Ideal([40] * 17, chunks=1)
    run.wave_decodes = lambda lengths: sum(lengths)
    faults = measured(recertify(run.records()), "isolation")
    assert "decodes add up" in faults


def test_isolation_names_what_it_found(driver_evidence: DriverEvidence) -> None:
    change = then(
        _one(Arm.C, with_result(cache_n=1)),
        _one(Arm.B, with_result(truncated=True)),
        _one(Arm.C, with_result(draft_n=2), 1),
        _one(Arm.C, lambda t: replace(t, request_sha256="0" * 64), 2),
        shift_decodes(at_end_of(Arm.A2, 0, -2)),
    )
    assert measured(recertify(change(driver_evidence.records)), "isolation") == (
        "1 responses reused a prompt cache; 1 responses ended at the context's end; "
        "1 responses used speculation; 1 requests were not the item's one body; "
        "arm A2 pass 0 shared 2 decodes"
    )


def test_isolation_names_what_it_does_not_know(driver_evidence: DriverEvidence) -> None:
    change = then(
        _one(Arm.C, with_result(cache_n=None)),
        _one(Arm.B, with_result(truncated=None)),
        on_kind(PassEnd, lambda r: replace(r, counters=NO_COUNTERS) if r.arm is Arm.B else r),
    )
    assert measured(recertify(change(driver_evidence.records)), "isolation") == (
        "1 responses do not report their cache; 1 responses do not say how they ended; "
        "no decode count for arm B pass 0"
    )


def test_one_wave_that_proves_n_is_enough() -> None:
    """Later waves of the pass that prove less do not take it back."""
    slower = shift_decodes(
        lambda r: 24 * (isinstance(r, WaveEnd) and r.arm is Arm.C and r.wave > 0)
    )
    facts = remeasure(slower(Ideal([24] * 20).records()))
    peaks = [p.decode_peak for p in facts.passes if p.arm is Arm.C]
    assert peaks[0] == peaks[2] == 4


def test_a_quarter_too_many_empty_answers_in_c_alone() -> None:
    """Fillers count: with A at exactly 80 %, an empty filler brings C below it."""
    run = Ideal([24] * 15)
    records = run.records()
    fillers = {
        r.key.item
        for r in records
        if isinstance(r, Trial) and r.key.arm is Arm.C and r.key.occurrence
    }
    assert fillers
    spare = [i for i in range(15) if i not in fillers]
    few = _everywhere(with_scored(failure_mode="empty"), *spare[:3])
    assert departures(recertify(few(records))) == {}
    with_filler = (*fillers, *spare)[:3]
    many = _everywhere(with_scored(failure_mode="empty"), *with_filler)
    assert departures(recertify(many(records))) == {"F2_completion_floor": FAIL}


def test_score_gate_names_the_first_ids(driver_evidence: DriverEvidence) -> None:
    change = on_trials(lambda t: t.key.arm is Arm.C and t.key.item < 7, with_scored(score=0.25))
    text = measured(recertify(change(driver_evidence.records)), "F0_score")
    assert text == "7 ids differ: q00, q01, q02, q03, q04 and 2 more"


# Boundaries, over runs that are worked out.


def _ideal(lengths: list[int], change: Change | None = None, **how: object) -> dict[str, Outcome]:
    run = Ideal(lengths, slots=SlotSamples(9, 4), **how)  # type: ignore[arg-type]
    return departures(recertify(run.records() if change is None else change(run.records())))


@pytest.mark.parametrize(
    ("own", "decodes", "enough"),
    [
        (40, 64, True),  # 16 shared decodes
        (40, 65, False),  # 15 of 40
        (20, 30, True),  # 10 of 20: half
        (20, 31, False),  # 9 of 20
        (19, 28, True),  # 10 of 19
        (19, 29, False),  # 9 of 19
    ],
)
def test_half_of_the_decodes_or_sixteen(own: int, decodes: int, enough: bool) -> None:
    """A wave of four alike: each shares at least 2 * own - decodes."""
    result = _ideal([own] * 20, wave_decodes=lambda lengths: decodes)
    assert result == ({} if enough else {"F3_coverage": FAIL, "sample": FAIL})


@pytest.mark.parametrize(("short", "enough"), [(4, True), (5, False)])
def test_four_fifths_of_the_ids(short: int, enough: bool) -> None:
    """Items of 4 tokens in waves of max + 8 decodes prove nothing of their own."""
    lengths = [24] * (20 - short) + [4] * short
    result = _ideal(lengths, wave_decodes=lambda lengths: max(lengths) + 8)
    assert result == ({} if enough else {"F3_coverage": FAIL})


@pytest.mark.parametrize(("bodies", "enough"), [(8, True), (7, False)])
def test_eight_distinct_bodies(bodies: int, enough: bool) -> None:
    assert _ideal([24] * 20, bodies=bodies) == ({} if enough else {"sample": FAIL})


@pytest.mark.parametrize(("last", "enough"), [(8, True), (7, False)])
def test_sixty_four_tokens(last: int, enough: bool) -> None:
    assert _ideal([8] * 7 + [last]) == ({} if enough else {"sample": FAIL})


@pytest.mark.parametrize(("passes", "enough"), [(2, True), (1, False)])
def test_two_passes(passes: int, enough: bool) -> None:
    assert _ideal([24] * 20, passes=passes) == ({} if enough else {"sample": FAIL})


def test_companions_that_never_change_are_one_pass() -> None:
    """Four items on four lanes always meet the same three."""
    facts = remeasure(Ideal([24] * 4, passes=3).records())
    assert overlap_of(facts).n_different_passes == 1


@pytest.mark.parametrize(("n_items", "enough"), [(1, False), (2, True)])
def test_two_ids_at_least(n_items: int, enough: bool) -> None:
    facts = remeasure(Ideal([24] * n_items, n=2).records())
    coverage = coverage_of(facts, overlap_of(facts))
    assert (coverage.n_co_batched, coverage.coverage_fraction) == (n_items, 1.0)
    assert coverage.cobatch_coverage_ok is enough
    assert coverage.required_co_batched == 2


@pytest.mark.parametrize(("n_items", "required"), [(2, 2), (5, 4), (12, 10), (20, 16)])
def test_required_ids(n_items: int, required: int) -> None:
    facts = remeasure(Ideal([24] * n_items).records())
    assert coverage_of(facts, overlap_of(facts)).required_co_batched == required


def _overlap(change: Change) -> Overlap:
    return overlap_of(remeasure(change(Ideal([24] * 20).records())))


@pytest.mark.parametrize(
    ("decode", "slots", "warmup", "tested"),
    [
        (4, None, 4, 4),
        (3, None, 4, 3),
        (3, 4, 4, 4),
        (3, 3, 4, 3),
        (3, 4, 3, 3),
        (2, 4, 4, 4),
        (2, 3, 4, 3),
        (1, 4, 4, 1),  # a server that never shares a decode: slots may only have been taken
        (2, 1, 4, 2),
    ],
)
def test_what_proves_a_batch(decode: int, slots: int | None, warmup: int, tested: int) -> None:
    """By decode counts, or by the warm-up wave together with slots seen busy during C."""
    changes = [_c_slots(None if slots is None else SlotSamples(9, slots))]
    if decode < 4:
        changes.append(_blunted(decode))
    if warmup < 4:
        changes.append(_blunted(warmup, Arm.WARMUP))
    overlap = _overlap(then(*changes))
    assert overlap.tested_n == tested
    assert overlap.warmup_peak == warmup
    assert overlap.overlap_ok is (tested == 4)
    assert overlap.server_peak_busy_slots == max(decode, slots or 0)
    assert overlap.witness == "decode_count"
    assert overlap.client_max_overlap_depth == 4


def test_slots_that_were_never_polled_show_nothing() -> None:
    overlap = _overlap(then(_blunted(3), _c_slots(SlotSamples(0, 4))))
    assert (overlap.tested_n, overlap.server_peak_busy_slots) == (3, 3)


def test_the_witness_is_the_strongest_there_is() -> None:
    uncounted = then(without_pass(Arm.C, 1, 3), _only_waves_counted())
    by_slots = _overlap(then(uncounted, _c_slots(SlotSamples(9, 4))))
    assert (by_slots.witness, by_slots.tested_n, by_slots.overlap_ok) == ("slot_samples", 0, False)
    assert by_slots.server_peak_busy_slots == 4
    by_client = _overlap(then(uncounted, _c_slots(None)))
    assert (by_client.witness, by_client.tested_n) == ("client_intervals", 0)
    assert by_client.server_peak_busy_slots is None
    assert by_client.client_max_overlap_depth == 4
    assert not by_client.overlap_ok


def test_more_than_n_is_reported_as_n() -> None:
    """A counter that moves too slowly cannot prove a batch larger than the cell's."""
    overlap = _overlap(on_trials(in_arm(Arm.C), with_result(completion_tokens=60)))
    assert overlap.tested_n == 4


def test_two_in_flight_are_enough_depth_for_a_cell_of_two() -> None:
    certificate = recertify(Ideal([24] * 20, n=2).records())
    assert departures(certificate) == {}
    assert certificate.overlap.client_max_overlap_depth == 2
    assert certificate.overlap.tested_n == 2


def test_a_cell_of_one_is_never_green() -> None:
    certificate = recertify(Ideal([24] * 20, n=1).records())
    assert outcomes(certificate)["F1_overlap"] is FAIL
    assert certificate.verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize("kind", FailureKind)
def test_each_kind_of_loss_is_listed(kind: FailureKind, driver_evidence: DriverEvidence) -> None:
    certificate = recertify(_one(Arm.C, lost(kind, 500), 1)(driver_evidence.records))
    (entry,) = certificate.lost_trials
    assert (entry.id, entry.arm, entry.pass_index, entry.occurrence) == ("q05", Arm.C, 1, 0)
    assert (entry.kind, entry.http_status) == (kind.value, 500)
    assert measured(certificate, "lost") == f"1 {kind.value} in C"
    assert certificate.untested_ids == ()


def test_an_item_lost_in_every_pass_of_c_is_untested(driver_evidence: DriverEvidence) -> None:
    records = on_trials(in_arm(Arm.C, item=ITEM), lost())(driver_evidence.records)
    certificate = recertify(records)
    assert certificate.untested_ids == ("q05",)
    assert measured(certificate, "lost") == "4 timeout in C"
    assert certificate.cobatch_coverage.n_missing_interval == 1
    assert certificate.divergence_report["AC"].only_x == ()


def test_an_item_that_c_never_sent_is_a_divergence(driver_evidence: DriverEvidence) -> None:
    records = recount(on_trials(in_arm(Arm.C, item=ITEM), lambda t: None)(driver_evidence.records))
    certificate = recertify(records)
    assert certificate.divergence_report["AC"].only_x == ("q05",)
    assert certificate.divergence_report["BC"].only_x == ("q05",)
    assert certificate.mismatch == ("q05",)
    assert certificate.verdict is Verdict.RED
    assert departures(certificate) == {"F0_score": FAIL, "completeness": FAIL}


def test_an_item_that_a_never_sent_is_a_divergence(driver_evidence: DriverEvidence) -> None:
    certificate = recertify(_dropped(Arm.A)(driver_evidence.records))
    report = certificate.divergence_report
    assert [report[pair].only_y for pair in ("AC", "AB", "AA")] == [("q05",)] * 3
    assert report["BC"].only_y == ()
    assert certificate.verdict is Verdict.RED
    assert not certificate.arm_b.ab_passed
    assert certificate.arm_b.bc_passed


def test_b_may_differ_where_a_was_lost(driver_evidence: DriverEvidence) -> None:
    """Without A's answer only B against C can show that B computes something else."""
    change = then(_one(Arm.A, lost()), _one(Arm.B, with_scored(score=0.5)))
    certificate = recertify(change(driver_evidence.records))
    assert outcomes(certificate)["control_b"] is FAIL
    assert reason(certificate, "control_b") == "AC_agree_B_disagrees"
    assert certificate.arm_b.ab_passed


def test_b_that_explains_c_is_no_further_fault(driver_evidence: DriverEvidence) -> None:
    """Where C alone differs, BC differs in the same ids and control_b passes."""
    certificate = recertify(_c(with_scored(score=0.5))(driver_evidence.records))
    assert certificate.divergence_report["BC"].divergent_ids == ("q05",)
    assert outcomes(certificate)["control_b"] is PASS


def test_every_field_of_the_token_layer_is_compared(driver_evidence: DriverEvidence) -> None:
    assert set(TOKEN_FIELDS) == {
        "token_ids",
        "text",
        "finish_reason",
        "reasoning",
        "tool_calls",
        "completion_tokens",
    }
    for name in TOKEN_FIELDS:
        changed = 25 if name == "completion_tokens" else pack_ids([1]) if "ids" in name else "other"
        certificate = recertify(_c(with_result(**{name: changed}))(driver_evidence.records))
        counted = {"isolation": FAIL} if name == "completion_tokens" else {}
        assert departures(certificate) == {"tokens": FAIL, **counted}
        (entry,) = certificate.divergence_report["AC"].per_id
        assert entry.token_fields == (name,)
        assert entry.score_fields == ()


def test_tokens_that_no_request_of_ours_asked_for_are_foreign(
    driver_evidence: DriverEvidence,
) -> None:
    def foreign(record: PassEnd) -> PassEnd:
        if (record.arm, record.pass_index) != (Arm.C, 3):
            return record
        assert record.counters.predicted_total is not None
        more = replace(record.counters, predicted_total=record.counters.predicted_total + 1)
        return replace(record, counters=more)

    certificate = recertify(on_kind(PassEnd, foreign)(driver_evidence.records))
    assert departures(certificate) == {"isolation": FAIL}
    assert certificate.verdict is Verdict.UNVERIFIED


def test_a_work_set_that_is_not_the_digested_one_is_incomplete(
    driver_evidence: DriverEvidence,
) -> None:
    def swapped(header: Header) -> Header:
        return replace(header, workset=replace(header.workset, sha256="0" * 64))

    certificate = recertify(on_kind(Header, swapped)(driver_evidence.records))
    assert departures(certificate) == {"completeness": FAIL}
    (row,) = (gate for gate in certificate.gates if gate.gate == "completeness")
    assert "digest" in row.measured


def test_a_confirm_limit_bounds_what_is_asked_for(driver_evidence: DriverEvidence) -> None:
    unconfirmed = on_trials(
        lambda t: t.key.arm is Arm.C and t.key.item in (4, ITEM), with_scored(score=0.5)
    )
    for limit, complete in ((0, True), (1, False)):
        change = then(on_plan(confirm_limit=limit), unconfirmed)
        certificate = recertify(change(driver_evidence.records))
        assert (outcomes(certificate)["completeness"] is PASS) is complete
        assert certificate.controls.confirm_wanted == limit
    lane = trial_of(driver_evidence.records, in_arm(Arm.C, 0, ITEM)).lane
    one_of_one = then(on_plan(confirm_limit=1), unconfirmed, confirmed((ITEM, lane)))
    certificate = recertify(one_of_one(driver_evidence.records))
    assert outcomes(certificate)["completeness"] is PASS


def test_a_lost_confirm_trial_is_lost_not_missing(driver_evidence: DriverEvidence) -> None:
    records = _one(Arm.C, with_scored(score=0.5))(driver_evidence.records)
    lane = trial_of(records, in_arm(Arm.C, 0, ITEM)).lane
    certificate = recertify(confirmed((ITEM, lane), change=lost())(records))
    assert departures(certificate) == {"F0_score": FAIL, "lost": FAIL}


def test_b_and_c_must_use_every_slot() -> None:
    for arm in (Arm.B, Arm.C):
        records = on_trials(
            lambda t, arm=arm: t.key.arm is arm and t.lane == 3,  # type: ignore[misc]
            lambda t: replace(t, lane=2),
        )(Ideal([24] * 20).records())
        text = measured(recertify(records), "identity")
        assert text == f"arm {arm.value} did not use every slot"


def test_a_lane_beyond_the_schedule_is_not_planned() -> None:
    def lane(number: int) -> Change:
        return _one(Arm.C, lambda t: replace(t, lane=number), 1)

    for number, fault in ((4, True), (-1, True), (3, False), (0, False)):
        certificate = recertify(lane(number)(_in_lane_one(Ideal([24] * 20).records())))
        assert (outcomes(certificate)["completeness"] is FAIL) is fault


def _in_lane_one(records: Records) -> Records:
    """The trial that the test moves, on a lane where it does not end up."""
    return tuple(
        replace(r, lane=1) if isinstance(r, Trial) and in_arm(Arm.C, 1, ITEM)(r) else r
        for r in records
    )


# What the certificate says where there is nothing to say.


def test_five_ids_are_all_named(driver_evidence: DriverEvidence) -> None:
    change = on_trials(lambda t: t.key.arm is Arm.C and t.key.item < 5, with_scored(score=0.25))
    text = measured(recertify(change(driver_evidence.records)), "F0_score")
    assert text == "5 ids differ: q00, q01, q02, q03, q04"


def test_an_unknown_token_count_leaves_the_decodes_unexplained() -> None:
    """Not foreign traffic: nobody knows how many decodes the answer took."""
    records = _one(Arm.B, with_result(completion_tokens=None))(Ideal([24] * 20).records())
    certificate = recertify(records)
    assert departures(certificate) == {"isolation": UNKNOWN, "control_b": FAIL}
    assert "no decode count for arm B pass 0" in measured(certificate, "isolation")


def test_without_arm_c_nothing_is_concurrent() -> None:
    records = without_pass(Arm.C, 0, 1, 2, 3)(Ideal([24] * 20).records())
    certificate = recertify(records)
    overlap = certificate.overlap
    assert (overlap.client_max_overlap_depth, overlap.tested_n) == (0, 0)
    assert (overlap.server_peak_busy_slots, overlap.witness) == (None, "client_intervals")
    assert overlap.n_different_passes == 0
    assert reason(certificate, "F1_overlap") == "no_overlap"
    assert "server co-residency unknown" in measured(certificate, "F1_overlap")
    assert certificate.verdict is Verdict.RED  # every item is on one side only


def test_drift_of_nothing_is_unknown() -> None:
    change = _armed("bits", on_trials(in_arm(Arm.C), lost()))
    certificate = recertify(change(Ideal([24] * 20).records()))
    assert outcomes(certificate)["F4_logit_drift"] is UNKNOWN


def test_only_a_warm_up_wave_shows_what_is_batched(driver_evidence: DriverEvidence) -> None:
    """A warm-up that was not released at one moment proves nothing about N."""

    def saturated(record: Record) -> Record | None:
        if isinstance(record, PassStart) and record.arm is Arm.WARMUP:
            schedule = replace(record.schedule, kind=DispatchKind.SATURATE)
            return replace(record, schedule=schedule)
        if isinstance(record, Trial) and record.key.arm is Arm.WARMUP:
            return replace(record, wave=None)
        return None if isinstance(record, WaveEnd) and record.arm is Arm.WARMUP else record

    facts = remeasure(mutate(driver_evidence.records, saturated))
    assert overlap_of(facts).warmup_peak is None


def test_a_run_that_broke_off_is_not_red_for_what_it_never_sent() -> None:
    whole = without_pass(Arm.C, 0, 1, 2, 3, planned=True)(Ideal([24] * 20).records())
    for records, n, verdict in (
        (whole, 20, Verdict.RED),
        (whole[:-1], 0, Verdict.UNVERIFIED),
        (_footer(ended="stopped")(whole), 0, Verdict.UNVERIFIED),
    ):
        certificate = recertify(records)
        assert len(certificate.divergence_report["AC"].only_x) == n
        assert certificate.verdict is verdict
        assert outcomes(certificate)["completeness"] is FAIL
