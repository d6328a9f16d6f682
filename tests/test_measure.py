"""The fold over the records of a run: small runs with one thing changed, every figure by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from typing import Any

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.endpoint import Engine
from batch_invariance.invariance_diff.facts import Facts, LostTrial
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import Arm, FailureKind, Source, Trial
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    DecodeRuns,
    Event,
    Footer,
    GaugeSamples,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassPlan,
    PassStart,
    Record,
    Resumed,
    ServerSaid,
    SharedArm,
    WaveEnd,
)
from batch_invariance.invariance_diff.schedule import Ordering, wave_pass
from batch_invariance.invariance_diff.shared_arm import shared_header
from batch_invariance.invariance_diff.tracker import PassFacts, PassTracker
from core_fixtures import (
    Change,
    Ideal,
    Records,
    a_completion,
    at_end_of,
    confirmed,
    encode,
    first,
    in_arm,
    lost,
    measured,
    on_cell,
    on_header,
    on_kind,
    on_plan,
    on_trials,
    pass_span,
    recertify,
    recount,
    shift_decodes,
    then,
    with_result,
    with_scored,
    without_pass,
)
from endpoint_ideal import IdealEndpoint, without_steps

LENGTHS = (6, 2, 5, 4, 3)
IDEAL = Ideal(LENGTHS, n=3, passes=2)
RECORDS = IDEAL.records()
FOREIGN = IdealEndpoint(LENGTHS, n=3, passes=2).records()


def pass_of(facts: Facts, arm: Arm, index: int = 0) -> PassFacts:
    (found,) = (p for p in facts.passes if (p.arm, p.pass_index) == (arm, index))
    return found


def refused(records: Iterable[Record], says: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        measure(tuple(records))
    assert says in str(caught.value)


def inserted(place: int, *new: Record) -> Records:
    return (*RECORDS[:place], *new, *RECORDS[place:])


def replaced(place: int, new: Record) -> Records:
    return (*RECORDS[:place], new, *RECORDS[place + 1 :])


def header_of(records: Records) -> Header:
    header = records[0]
    assert isinstance(header, Header)
    return header


def test_an_ideal_run_has_no_fault() -> None:
    for records in (RECORDS, FOREIGN):
        facts = measure(records)
        assert (facts.plan_faults, facts.ran_back, facts.lost, facts.untested) == ([], [], [], [])
        assert (facts.n_c_divergent, facts.confirm_wanted, facts.n_void_passes) == (0, 0, 0)
        n_answers = sum(isinstance(r, Trial) and r.key.arm is not Arm.WARMUP for r in records)
        assert astuple(facts.isolation) == (n_answers, 0, 0, 0, 0, 0, 0, 0)
        assert (facts.n_co_batched_divergent, facts.confirm_done) == (0, 0)
        assert (facts.confirm_divergent, facts.control.companions_divergent) == (0, 0)


# The header.


def test_evidence_begins_with_a_header_under_known_rules() -> None:
    for records in ((), RECORDS[1:]):
        refused(records, "the file is empty or does not begin with a header")
    refused(on_header(lambda h: replace(h, rules_version=3))(RECORDS), "unknown rules: version 3")


@pytest.mark.parametrize(
    "change",
    [
        lambda h: replace(h, source=Source.LIVE),
        lambda h: replace(h, endpoint=None),
        lambda h: replace(h, plan=replace(h.plan, sampling=replace(h.plan.sampling, dialect=None))),
        lambda h: replace(header_of(RECORDS), source=Source.ENDPOINT),
    ],
)
def test_a_source_that_is_not_what_is_described_is_refused(
    change: Callable[[Header], Header],
) -> None:
    records = on_header(change)(FOREIGN)
    refused(records, "the source and the description of the server disagree")


def test_a_context_holds_a_token_unless_a_stranger_does_not_tell() -> None:
    assert measure(on_cell(ctx=1)(RECORDS)).plan_faults == []
    refused(on_cell(ctx=0)(RECORDS), "the cell's context holds no token")
    assert measure(on_cell(ctx=0)(FOREIGN)).plan_faults == []
    refused(on_cell(ctx=-1)(FOREIGN), "the cell's context holds no token")


def test_a_micro_batch_holds_a_token() -> None:
    assert measure(on_cell(n_ubatch=1)(RECORDS)).plan_faults == []
    refused(on_cell(n_ubatch=0)(RECORDS), "the cell's micro-batch holds no token")


def test_a_cell_has_one_slot_or_more() -> None:
    refused(on_cell(dispatch_n=0)(RECORDS), "the cell has 0 slots, not 1 to 256")
    assert measure(on_cell(dispatch_n=1)(RECORDS)).header.cell.dispatch_n == 1


@pytest.mark.parametrize("drift", ["0", "0.5", "bits"])
def test_an_epsilon_of_logits_from_zero_on(drift: str) -> None:
    assert measure(on_plan(logit_drift=drift)(RECORDS)).header.plan.logit_drift == drift


@pytest.mark.parametrize("drift", ["-0.5", "inf", "nan", "some"])
def test_no_other_epsilon(drift: str) -> None:
    refused(on_plan(logit_drift=drift)(RECORDS), "logit_drift is neither bits nor an epsilon")


# The order of records.


def test_a_refusal_names_the_line() -> None:
    with pytest.raises(EvidenceError) as caught:
        measure((*RECORDS, RECORDS[1]))
    assert list(caught.value.issues) == [f"line {len(RECORDS) + 1}: a record follows the footer"]


@pytest.mark.parametrize(
    "make",
    [
        lambda index: WaveEnd(Arm.C, index, 0, header_free(index)),
        lambda index: DecodeRuns(Arm.C, index, ()),
        lambda index: GaugeSamples(Arm.C, index, ()),
        lambda index: PassEnd(Arm.C, index, header_free(index), None, None),
        lambda index: replace(RECORDS[pass_span(RECORDS, Arm.C, index)[0] + 1]),
    ],
)
def test_what_belongs_to_a_pass_comes_while_it_is_open(make: Callable[[int], Record]) -> None:
    start, stop = pass_span(RECORDS, Arm.C)
    refused(inserted(start, make(0)), "C pass 0 is not open")
    refused(inserted(start + 1, make(1)), "C pass 1 is not open")
    refused(inserted(stop, make(0)), "C pass 0 is not open")


def header_free(index: int) -> Any:
    """Counters as they stand at the beginning of a pass of C."""
    start = RECORDS[pass_span(RECORDS, Arm.C, index)[0]]
    assert isinstance(start, PassStart)
    return start.counters


def test_launches_end_in_their_order() -> None:
    facts = measure(RECORDS)
    ends = [life.end.index for life in facts.lifetimes if life.end is not None]
    assert (ends, [life.start.index for life in facts.lifetimes]) == ([0, 1], [0, 1])
    assert [life.cut_off for life in facts.lifetimes] == [False, False]
    ended = first(RECORDS, LifetimeEnd, index=1)
    other = replace(RECORDS[ended], index=0)  # type: ignore[type-var]
    refused(replaced(ended, other), "a server lifetime ends that never began")
    refused(inserted(1, other), "a server lifetime ends that never began")


@pytest.mark.parametrize(
    ("item", "other", "known"),
    [(0, None, True), (4, 0, True), (0, 4, True), (-1, None, False), (5, None, False),
     (0, 5, False), (0, -1, False), (5, 0, False), (-1, 0, False)],
)  # fmt: skip
def test_controls_are_planned_on_known_items(item: int, other: int | None, known: bool) -> None:
    place = first(RECORDS, ControlPlan)
    plan = ControlPlan(item, 7, 0, other)
    if known:
        assert measure(replaced(place, plan)).control.plan == plan
    else:
        refused(replaced(place, plan), "the control plan names an unknown item")


@pytest.mark.parametrize(
    ("item", "item_id"), [(5, "i5"), (-1, "i4"), (0, "i1"), (4, "i0"), (-6, "i0")]
)
def test_a_trial_is_of_a_known_item(item: int, item_id: str) -> None:
    place = pass_span(RECORDS, Arm.B)[0] + 1
    trial = RECORDS[place]
    assert isinstance(trial, Trial)
    wrong = replace(trial, key=replace(trial.key, item=item), item_id=item_id)
    refused(replaced(place, wrong), f"trial of an unknown item '{item_id}'")


def test_what_is_said_and_what_happens_is_kept_in_order() -> None:
    said = (ServerSaid(1, False, {"version": "1"}), ServerSaid(1, True, {"version": "2"}))
    events = Event("one", "", 0.0), Event("two", "", 1.0)
    facts = measure(inserted(2, *said, *events))
    assert tuple(facts.events) == events
    assert tuple(facts.said) == said


# Passes against the plan.


def test_a_pass_that_never_ends_is_closed_by_the_next_one_and_by_the_end() -> None:
    place = first(RECORDS, PassEnd, arm=Arm.B)
    facts = measure((*RECORDS[:place], *RECORDS[place + 1 :]))
    assert facts.plan_faults == ["arm B pass 0 never ended"]
    assert (pass_of(facts, Arm.B).ended, pass_of(facts, Arm.C).ended) == (False, True)
    place = first(RECORDS, PassEnd, arm=Arm.P)
    ends = measure((*RECORDS[:place],))
    assert ends.plan_faults == ["arm P pass 0 never ended"]
    assert not pass_of(ends, Arm.P).ended


def test_a_pass_that_runs_twice_or_never_is_a_fault() -> None:
    start, stop = pass_span(RECORDS, Arm.C, 1)
    twice = measure(inserted(stop, *RECORDS[start:stop]))
    assert "arm C pass 1 ran twice" in twice.plan_faults
    never = measure(without_pass(Arm.C, 1, planned=True)(RECORDS))
    assert never.plan_faults == ["arm C pass 1 never ran"]


def test_a_pass_that_was_not_planned_is_a_fault() -> None:
    passes = tuple(p for p in header_of(RECORDS).plan.passes if p.arm is not Arm.B)
    facts = measure(on_plan(passes=passes)(RECORDS))
    assert facts.plan_faults == ["arm B pass 0 was not planned"]


def _waves(records: Records, order: list[int], index: int = 0) -> PassStart:
    start = records[pass_span(records, Arm.C, index)[0]]
    assert isinstance(start, PassStart)
    return replace(start, schedule=wave_pass(order, 3))


def _with_start(start: PassStart, ordering: Ordering | None = None) -> Records:
    """The pass runs along this schedule, which is planned where an ordering is given."""
    place = pass_span(RECORDS, start.arm, start.pass_index)[0]
    records = replaced(place, start)
    if ordering is None:
        return records
    schedule = start.schedule
    planned = PassPlan(
        start.arm, start.pass_index, schedule.kind, ordering, schedule.n_requests, schedule.digest
    )
    passes = tuple(
        planned if (p.arm, p.pass_index) == (start.arm, start.pass_index) else p
        for p in header_of(RECORDS).plan.passes
    )
    return on_plan(passes=passes)(records)


def test_a_pass_covers_the_work_set_unless_a_file_lists_it() -> None:
    short = _waves(RECORDS, [3, 1, 2], 1)
    assert measure(_with_start(short, Ordering.LISTED)).plan_faults == []
    uncovered = ["arm C pass 1 does not cover the work-set"]
    assert measure(_with_start(short, Ordering.SEEDED)).plan_faults == uncovered
    assert measure(_with_start(short)).plan_faults == [
        *uncovered,
        "arm C pass 1 ran another schedule than planned",
    ]
    unplanned = on_plan(
        passes=tuple(p for p in header_of(RECORDS).plan.passes if p.pass_index != 1)
    )(_with_start(short))
    assert measure(unplanned).plan_faults == [*uncovered, "arm C pass 1 was not planned"]


def test_the_serial_arms_cover_the_work_set_though_they_are_listed() -> None:
    start = RECORDS[pass_span(RECORDS, Arm.B)[0]]
    assert isinstance(start, PassStart)
    short = replace(start, schedule=replace(start.schedule, groups=start.schedule.groups[:3]))
    faults = measure(_with_start(short, Ordering.LISTED)).plan_faults
    assert faults == ["arm B pass 0 does not cover the work-set"]


def test_another_schedule_than_planned_is_a_fault() -> None:
    other = _waves(RECORDS, [0, 1, 2, 3, 4], 1)
    faults = measure(_with_start(other)).plan_faults
    assert faults == ["arm C pass 1 ran another schedule than planned"]
    assert measure(_with_start(other, Ordering.SEEDED)).plan_faults == []
    assert measure(RECORDS).plan_faults == []


def test_confirm_trials_run_one_at_a_time() -> None:
    records = confirmed((1, 0))(RECORDS)
    assert measure(records).plan_faults == []
    place = first(records, PassStart, arm=Arm.CONFIRM)
    start = records[place]
    assert isinstance(start, PassStart)
    waves = replace(start, schedule=wave_pass([1], 1))
    facts = measure((*records[:place], waves, *records[place + 1 :]))
    assert facts.plan_faults == [f"arm {Arm.CONFIRM.value} pass 0 was not serial"]


def test_a_schedule_that_cannot_be_is_refused() -> None:
    bad = replace(_waves(RECORDS, [0, 1, 2], 1))
    bad = replace(bad, schedule=replace(bad.schedule, groups=((0, 5),)))
    refused(_with_start(bad), "arm C pass 1: item 5 is not in the work-set")


def test_a_work_set_of_another_digest_is_a_fault() -> None:
    records = on_header(lambda h: replace(h, workset=replace(h.workset, sha256="0" * 64)))(RECORDS)
    assert measure(records).plan_faults == ["the work-set's digest is not that of its items"]


def _counted(records: Records, *readings: tuple[int, int]) -> Records:
    """The wave ends at these places of the file say so many more or fewer passes."""
    out = list(records)
    for place, by in readings:
        record = out[place]
        assert isinstance(record, WaveEnd)
        total = record.counters.decode_total
        assert total is not None
        out[place] = replace(record, counters=replace(record.counters, decode_total=total + by))
    return tuple(out)


def test_a_counter_that_runs_back_is_named_once_by_its_pass() -> None:
    ends = [i for i, r in enumerate(RECORDS) if isinstance(r, WaveEnd) and r.arm is Arm.C]
    assert len(ends) == 2
    once = measure(_counted(RECORDS, (ends[0], 50)))
    assert once.ran_back == ["arm C pass 0"]
    twice = measure(_counted(RECORDS, (ends[0], 50), (ends[1], 40)))
    assert twice.ran_back == ["arm C pass 0"]
    between = measure(_counted(RECORDS, (ends[1], 1)))
    assert between.ran_back == ["arm C pass 0"]


# What is shared, by the layout of the KV cache.


@pytest.mark.parametrize(("unified", "like"), [(True, True), (False, False), (None, False)])
def test_a_cache_that_is_not_known_to_be_unified_shares_less(
    unified: bool | None, like: bool
) -> None:
    """In a wave of 6, 2 and 5 tokens lane 0 and lane 2 are no neighbours."""
    shared = {}
    for layout in (True, False, unified):
        start = _waves(RECORDS, [0, 1, 2, 3, 4], 1)
        listed = _with_start(start, Ordering.SEEDED)
        header = header_of(listed)
        cell = replace(header.cell, kv_unified=layout)
        records = _rerun((replace(header, cell=cell), *listed[1:]), start)
        facts = measure(records)
        shared[layout] = [item.shared for item in facts.items]
    assert shared[unified] == shared[like]
    assert sum(shared[True]) > sum(shared[False])


def _rerun(records: Records, start: PassStart) -> Records:
    """Pass 1 of C in waves as long as their longest answer; pass 0 proves nothing."""
    place, stop = pass_span(records, Arm.C, 1)
    out: list[Record] = [
        r for r in records[:place] if not (isinstance(r, WaveEnd) and r.arm is Arm.C)
    ]
    by_item = {t.key.item: t for t in records[place:stop] if isinstance(t, Trial)}
    counters = start.counters
    out.append(start)
    for number, group in enumerate(start.schedule.groups):
        for lane, item in enumerate(group):
            key = replace(by_item[item].key, occurrence=number if item == 0 else 0)
            out.append(replace(by_item[item], key=key, lane=lane, wave=number))
        assert counters.decode_total is not None
        took = max(LENGTHS[item] for item in group)
        counters = replace(counters, decode_total=counters.decode_total + took)
        out.append(WaveEnd(Arm.C, 1, number, counters))
    return (*out, *records[stop - 1 :])


@pytest.mark.parametrize(("engine", "some"), [(Engine.VLLM, True), (Engine.LLAMA_CPP, False)])
def test_a_strangers_engine_says_who_shares(engine: Engine, some: bool) -> None:
    """llama.cpp behind an interface that names no slots tells nothing of who shared with whom."""

    def other(header: Header) -> Header:
        assert header.endpoint is not None
        return replace(header, endpoint=replace(header.endpoint, engine=engine))

    records = FOREIGN if engine is Engine.VLLM else on_header(other)(FOREIGN)
    assert any(item.shared for item in measure(records).items) is some


# Trials: what is counted of each.


def test_lost_trials_are_listed_in_full() -> None:
    records = on_trials(in_arm(Arm.C, 1, 2), lost(FailureKind.HTTP_ERROR, 503))(RECORDS)
    facts = measure(records)
    assert facts.lost == [LostTrial("i2", Arm.C, 1, 0, FailureKind.HTTP_ERROR.value, 503)]
    assert facts.isolation.n_checked == measure(RECORDS).isolation.n_checked - 1


def test_warm_up_trials_are_counted_and_otherwise_left_alone() -> None:
    trials = [r for r in RECORDS if isinstance(r, Trial)]
    warm = [t for t in trials if t.key.arm is Arm.WARMUP]
    facts = measure(RECORDS)
    assert facts.n_trials == len(trials)
    assert facts.isolation.n_checked == len(trials) - len(warm)
    changed = on_trials(in_arm(Arm.WARMUP), lambda t: replace(t, request_sha256="0" * 64))(RECORDS)
    assert measure(changed).isolation.foreign_bodies == 0
    gone = on_trials(in_arm(Arm.WARMUP), lost())(RECORDS)
    assert measure(gone).lost == []


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({"cache_n": None}, (1, 0, 0, 0, 0, 0)),
        ({"cache_n": 2}, (0, 1, 0, 0, 0, 0)),
        ({"truncated": None}, (0, 0, 1, 0, 0, 0)),
        ({"truncated": True}, (0, 0, 0, 1, 0, 0)),
        ({"draft_n": 3}, (0, 0, 0, 0, 1, 0)),
        ({"prompt_tokens": None}, (0, 0, 0, 0, 0, 1)),
    ],
)
def test_isolation_counts_what_an_answer_says(
    changes: dict[str, object], counted: tuple[int, ...]
) -> None:
    two = on_trials(lambda t: t.key.arm is Arm.B and t.key.item < 2, with_result(**changes))
    isolation = measure(two(RECORDS)).isolation
    assert astuple(isolation)[1:-1] == tuple(2 * n for n in counted)


def test_isolation_counts_each_foreign_body() -> None:
    changed = on_trials(in_arm(Arm.C, 0), lambda t: replace(t, request_sha256="0" * 64))(RECORDS)
    sent = sum(isinstance(r, Trial) and in_arm(Arm.C, 0)(r) for r in RECORDS)
    assert measure(changed).isolation.foreign_bodies == sent


PLANTED = next(r for r in RECORDS if isinstance(r, Trial) and r.perturbed)


def _marked(trial: Trial) -> Trial:
    return replace(trial, request_sha256=PLANTED.request_sha256, perturbed=True)


@pytest.mark.parametrize(
    ("change", "foreign"),
    [
        # The planted request in another arm, on another item, unmarked, or without a plan for it.
        (on_trials(in_arm(Arm.C, 1, PLANTED.key.item), _marked), 1),
        (on_trials(in_arm(Arm.P, 0, 1), _marked), 1),
        (on_trials(lambda t: t.perturbed, lambda t: replace(t, perturbed=False)), 1),
        (on_kind(ControlPlan, lambda r: None), 1),
        (on_trials(in_arm(Arm.P, 0, 1), lambda t: replace(t, perturbed=True)), 0),
    ],
)
def test_isolation_knows_the_planted_body_only_where_it_was_planned(
    change: Change, foreign: int
) -> None:
    assert measure(change(RECORDS)).isolation.foreign_bodies == foreign


@pytest.mark.parametrize("arm", [Arm.A, Arm.A2, Arm.A3, Arm.B, Arm.CONFIRM])
def test_isolation_of_a_serial_arm_is_broken_by_a_pass_that_is_shared(arm: Arm) -> None:
    records = FOREIGN if arm is Arm.A3 else confirmed((1, 0))(RECORDS)
    faults = measured(recertify(shift_decodes(at_end_of(arm, 0, -1))(records)), "isolation")
    assert f"arm {arm.value} pass 0 shared 1 " in faults
    assert "shared" not in measured(recertify(records), "isolation")


def test_isolation_of_a_confirm_trial_takes_no_planted_body() -> None:
    item = PLANTED.key.item
    records = confirmed((item, 0), change=_marked)(RECORDS)
    assert measure(records).isolation.foreign_bodies == 1


def test_failure_modes_are_those_of_the_planned_arms() -> None:
    records = confirmed((1, 0))(RECORDS)
    changed = on_trials(in_arm(Arm.C, 0, 1), with_scored(failure_mode="refusal"))(records)
    modes = measure(changed).failure_modes
    assert modes["A"] == modes["A2"] == modes["B"] == {"ok": 5}
    assert modes["C"] == {"ok": 10, "refusal": 1}
    assert set(modes) == {"A", "A2", "B", "C"}
    assert set(measure(FOREIGN).failure_modes) == {"A", "A2", "A3", "C"}


# Where each arm's trials go.


@pytest.mark.parametrize(
    ("arm", "pairs"),
    [
        (Arm.A, {"AA", "AB", "AC"}),
        (Arm.A2, {"AA"}),
        (Arm.B, {"AB", "BC"}),
        (Arm.C, {"AC", "BC"}),
        (Arm.P, set()),
        (Arm.WARMUP, set()),
    ],
)
def test_an_arm_that_differs_shows_in_its_pairs(arm: Arm, pairs: set[str]) -> None:
    changed = on_trials(lambda t: t.key.arm is arm and t.key.item == 1, with_result(text="other"))
    facts = measure(changed(RECORDS))
    assert {name for name, r in facts.pairs.items() if r.token_divergence_ids} == pairs
    assert facts.n_c_divergent == (len(_trials(RECORDS, Arm.C, 1)) if "AC" in pairs else 0)


def _trials(records: Records, arm: Arm, item: int) -> list[Trial]:
    return [r for r in records if isinstance(r, Trial) and (r.key.arm, r.key.item) == (arm, item)]


@pytest.mark.parametrize(("arm", "pair"), [(Arm.A2, "AA"), (Arm.A3, "AA3")])
def test_a_repeat_of_arm_a_on_a_strangers_server_shows_in_its_pair(arm: Arm, pair: str) -> None:
    facts = measure(on_trials(in_arm(arm, 0, 1), with_result(text="other"))(FOREIGN))
    assert {name for name, r in facts.pairs.items() if r.token_divergence_ids} == {pair}


DIVERGED = on_trials(in_arm(Arm.C, 0, 1), with_result(text="other"))
LANE = next(t.lane for t in _trials(RECORDS, Arm.C, 1) if t.key.pass_index == 0)


@pytest.mark.parametrize(
    ("pairs", "change", "done", "divergent"),
    [
        (((1, LANE),), None, 1, 0),
        (((1, LANE),), with_result(text="third"), 1, 1),
        (((1, LANE),), with_scored(score=0.5), 1, 1),
        (((1, LANE),), lost(), 0, 0),
        (((1, LANE), (1, LANE)), with_result(text="third"), 1, 2),
        (((2, LANE),), with_result(text="third"), 0, 0),
        (((1, (LANE + 1) % 3),), with_result(text="third"), 0, 0),
    ],
)
def test_confirm_trials_count_where_something_diverged(
    pairs: tuple[tuple[int, int], ...],
    change: Callable[[Trial], Trial] | None,
    done: int,
    divergent: int,
) -> None:
    facts = measure(confirmed(*pairs, change=change)(DIVERGED(RECORDS)))
    assert (facts.confirm_wanted, facts.confirm_done) == (1, done)
    assert facts.confirm_divergent == divergent


def test_no_more_is_confirmed_than_the_plan_allows() -> None:
    everything = on_trials(in_arm(Arm.C, 0), with_result(text="other"))(RECORDS)
    lanes = {(t.key.item, t.lane) for t in RECORDS if isinstance(t, Trial) and in_arm(Arm.C, 0)(t)}
    assert measure(everything).confirm_wanted == len(lanes)
    assert measure(on_plan(confirm_limit=2)(everything)).confirm_wanted == 2


# The positive control.


def _planted(**changes: Any) -> Change:
    return on_trials(lambda t: t.perturbed, lambda t: replace(t, **changes))


OWN = next(t for t in _trials(RECORDS, Arm.A, PLANTED.key.item))
IDS = [(0 * 31 + place * 7) % 900 + 3 for place in range(LENGTHS[0])]


@pytest.mark.parametrize(
    ("change", "token_seen", "score_seen"),
    [
        (on_trials(lambda t: t.perturbed, with_scored(score=0.5)), True, True),
        # The first token is banned: a difference that comes later is not the planted one.
        (_planted(result=a_completion([IDS[0], *range(5)])), False, False),
        (_planted(result=a_completion([7, *IDS[1:]])), True, False),
        (_planted(result=OWN.result), False, False),
        (_planted(lane=PLANTED.lane + 1), None, None),
        (on_trials(lambda t: t.perturbed, lost()), None, None),
        (on_kind(ControlPlan, lambda r: None), None, None),
    ],
)
def test_controls_see_the_planted_change_at_the_first_token(
    change: Change, token_seen: bool | None, score_seen: bool | None
) -> None:
    control = measure(change(RECORDS)).control
    assert (control.token_seen, control.score_seen) == (token_seen, score_seen)
    assert control.companions_divergent == 0


@pytest.mark.parametrize(
    ("result", "seen"),
    [(a_completion([IDS[0], *range(5)]), True), (OWN.result, False)],
)
def test_controls_by_another_prompt_see_it_anywhere(result: Any, seen: bool) -> None:
    place = first(RECORDS, ControlPlan)
    records = replaced(place, ControlPlan(PLANTED.key.item, None, PLANTED.lane, 1))
    control = measure(_planted(result=result)(records)).control
    assert (control.token_seen, control.score_seen) == (seen, False)


@pytest.mark.parametrize("change", [with_result(text="other"), with_scored(score=0.5)])
def test_controls_count_companions_that_differ(change: Callable[[Trial], Trial]) -> None:
    beside = [t for t in RECORDS if isinstance(t, Trial) and in_arm(Arm.P)(t) and not t.perturbed]
    changed = on_trials(lambda t: t.key.arm is Arm.P and not t.perturbed, change)(RECORDS)
    facts = measure(changed)
    assert facts.control.companions_divergent == len(beside) == 2
    assert facts.control.token_seen
    gone = on_kind(ControlPlan, lambda r: None)(changed)
    assert measure(gone).control.companions_divergent == 0


# How long the requests of a pass take alone, where a gauge is all there is.

GAUGED = without_steps(FOREIGN)
UNKNOWN_ALONE = "how long its requests take alone is not known"


def _spans(share: float, *arms: Arm) -> Change:
    """The trials of these arms take this share of their time."""
    return on_trials(
        lambda t: t.key.arm in arms,
        lambda t: replace(t, complete_ts=t.dispatch_ts + share * (t.complete_ts - t.dispatch_ts)),
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (None, None),
        (_spans(0.01, Arm.A), "it took "),
        (_spans(0.01, Arm.A2), "it took "),
        (_spans(100, Arm.A), None),
        (_spans(100, Arm.A2), None),
        (_spans(0.01, Arm.A3), None),
        (then(_spans(100, Arm.A3), _spans(0.01, Arm.A, Arm.A2)), "it took "),
        (on_trials(in_arm(Arm.A, 0, 1), lost()), None),
        (on_trials(lambda t: t.key.arm in (Arm.A, Arm.A2) and t.key.item == 1, lost()),
         UNKNOWN_ALONE),
    ],
)  # fmt: skip
def test_a_pass_of_c_is_held_against_the_faster_of_a_and_a2(
    change: Change | None, fault: str | None
) -> None:
    facts = measure(GAUGED if change is None else change(GAUGED))
    for index in range(2):
        found = pass_of(facts, Arm.C, index).gauge_fault
        assert (found is None) is (fault is None)
        assert (found or "").startswith(fault or "")


def test_the_serial_arms_and_the_control_have_no_time_alone() -> None:
    facts = measure(GAUGED)
    for arm in (Arm.A, Arm.A2, Arm.A3, Arm.P):
        assert pass_of(facts, arm).gauge_fault == UNKNOWN_ALONE


def test_the_time_alone_is_the_sum_over_the_requests() -> None:
    """Item by item the faster of two: a hundredth of one arm each for half of the items."""
    some = on_trials(
        lambda t: t.key.arm is (Arm.A if t.key.item % 2 else Arm.A2),
        lambda t: replace(t, complete_ts=t.dispatch_ts + 0.01),
    )
    facts = measure(some(GAUGED))
    for index in range(2):
        found = pass_of(facts, Arm.C, index)
        alone = sum(
            min(0.01, LENGTHS[t.key.item] / 1000)
            for t in GAUGED
            if isinstance(t, Trial) and in_arm(Arm.C, index)(t)
        )
        slow = found.seconds > 0.8 * alone
        assert (found.gauge_fault is not None) is slow


# A run that was interrupted.

AGAIN = Resumed("2026-01-02T03:04:06Z", header_of(RECORDS).observer, 9.0)


def _interrupted(arm: Arm, index: int = 0, keep: int = 3, change: Change | None = None) -> Records:
    """The pass breaks off after so many records, and runs again whole under another launch."""
    start, _ = pass_span(RECORDS, arm, index)
    life = first(RECORDS, LifetimeStart, index=1)
    launch = RECORDS[life]
    assert isinstance(launch, LifetimeStart)
    begun = RECORDS[start : start + keep]
    if change is not None:
        begun = change(begun)
    rest = tuple(
        replace(r, lifetime=2) if isinstance(r, PassStart)
        else replace(r, index=2) if isinstance(r, LifetimeEnd) else r
        for r in RECORDS[start:]
    )  # fmt: skip
    records = (*RECORDS[:start], *begun, AGAIN, replace(launch, index=2), *rest)
    return recount(records)


class Watching(Onlooker):
    """Notes what it is shown: a record, or the trials and the figures of a pass that closed."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def feed(self, record: Record) -> None:
        self.seen.append(record)

    def pass_closed(self, tracker: PassTracker, facts: PassFacts | None) -> None:
        self.seen.append((len(tracker.sent), facts))


def _watched(records: Records) -> tuple[Facts, list[object]]:
    watching = Watching()
    return measure(records, watching), watching.seen


def test_an_onlooker_sees_every_record_and_every_pass_before_the_record_that_ends_it() -> None:
    records = _interrupted(Arm.C)
    facts, seen = _watched(records)
    assert [one for one in seen if not isinstance(one, tuple)] == list(records)
    closed = [(place, one) for place, one in enumerate(seen) if isinstance(one, tuple)]
    enders = [seen[place + 1] for place, _ in closed]
    assert {type(one) for one in enders} == {PassEnd, Resumed}
    assert [one for _, (_, one) in closed if one is not None] == facts.passes
    ((void, _),) = [(n, one) for _, (n, one) in closed if one is None]
    assert void == 2


def test_an_onlooker_sees_the_pass_in_which_the_evidence_breaks_off() -> None:
    start, end = pass_span(RECORDS, Arm.C, 1)
    facts, seen = _watched(RECORDS[: end - 1])
    n_trials = sum(isinstance(r, Trial) for r in RECORDS[start : end - 1])
    assert seen[-1] == (n_trials, facts.passes[-1])
    assert not facts.passes[-1].ended


def test_a_pass_that_was_interrupted_is_void_and_runs_again() -> None:
    facts = measure(_interrupted(Arm.C))
    assert (facts.resumed, facts.n_void_passes, facts.plan_faults) == ([AGAIN], 1, [])
    assert [life.cut_off for life in facts.lifetimes] == [False, True, False]
    assert len([p for p in facts.passes if p.arm is Arm.C]) == 2
    assert all(p.ended for p in facts.passes)
    plain = measure(RECORDS)
    assert facts.space.n_passes == plain.space.n_passes
    assert [i.n_compared for i in facts.items] != [i.n_compared for i in plain.items]
    assert [i.n_co_batched for i in facts.items] == [i.n_co_batched for i in plain.items]


def test_a_serial_pass_that_was_interrupted_runs_again() -> None:
    facts = measure(_interrupted(Arm.B))
    assert (facts.n_void_passes, facts.plan_faults) == (1, [])
    assert facts.pairs["AB"].n_compared == 5 + 2


def test_what_diverged_in_a_void_pass_stays_with_its_companions() -> None:
    start, _ = pass_span(RECORDS, Arm.C)
    trials = [r for r in RECORDS[start : start + 3] if isinstance(r, Trial)]
    # Two of a wave of three: when the pass runs again, there is one more.
    assert [t.wave for t in trials] == [0, 0]
    item = trials[1].key.item
    other = on_trials(in_arm(Arm.C, 0, item), with_result(text="other"))
    facts = measure(_interrupted(Arm.C, keep=3, change=other))
    assert facts.n_c_divergent == 1
    (entry,) = facts.pairs["AC"].per_id
    mates = {t.item_id for t in trials} - {f"i{item}"}
    assert set(entry.first_divergence.companions) == mates


def test_two_void_passes_are_two() -> None:
    once = _interrupted(Arm.C)
    place = first(once, Resumed)
    again = (
        *once[: place + 2],
        *once[pass_span(RECORDS, Arm.C)[0] : place],
        AGAIN,
        *once[place + 2 :],
    )
    start = once[place + 1]
    assert isinstance(start, LifetimeStart)
    facts = measure(again)
    assert (facts.n_void_passes, len(facts.resumed), facts.plan_faults) == (2, 2, [])


def test_an_interruption_between_passes_voids_nothing() -> None:
    start, _ = pass_span(RECORDS, Arm.C)
    facts = measure(inserted(start, AGAIN))
    assert (facts.n_void_passes, facts.plan_faults, len(facts.resumed)) == (0, [], 1)
    assert [life.cut_off for life in facts.lifetimes] == [False, True]


def test_an_interruption_outside_of_a_launch_cuts_none_off() -> None:
    for place in (1, first(RECORDS, LifetimeEnd, index=0) + 1):
        facts = measure(inserted(place, AGAIN))
        assert not any(life.cut_off for life in facts.lifetimes)
        assert (facts.n_void_passes, len(facts.resumed)) == (0, 1)


# The end of a run.


def test_an_item_of_one_side_alone_differs_only_in_a_run_that_is_complete() -> None:
    gone = on_trials(lambda t: t.key.arm is Arm.C and t.key.item == 1, lambda t: None)
    records = recount(gone(RECORDS))
    facts = measure(records)
    assert facts.pairs["AC"].only_x == ("i1",)
    assert facts.untested == ["i1"]
    assert astuple(facts.items[1]) == (0, 0, 0, 0, None, 0, 0, 0, 0, 0.0, 0, 0, 0)
    stopped = on_kind(Footer, lambda f: replace(f, ended="stopped"))(records)
    assert measure(stopped).pairs["AC"].only_x == ()
    assert measure(records[:-1]).pairs["AC"].only_x == ()


def test_each_reference_is_known_by_its_text_and_score() -> None:
    changed = then(
        on_trials(in_arm(Arm.A, 0, 0), with_result(text="first")),
        on_trials(in_arm(Arm.A, 0, 1), lost()),
        on_trials(in_arm(Arm.A, 0, 2), lambda t: None),
        on_trials(in_arm(Arm.A, 0, 3), with_scored(score=0.25)),
        on_trials(in_arm(Arm.A, 0, 4), with_scored(score=None)),
    )(RECORDS)
    facts = measure(changed)
    assert facts.content_a[0] == sha256_hex(b"first")
    assert [sha is None for sha in facts.content_a] == [False, True, True, False, False]
    assert facts.score_a == [1.0, None, None, 0.25, None]


def test_margins_are_of_the_positions_that_were_compared() -> None:
    facts = measure(RECORDS)
    assert facts.margins.n == sum(LENGTHS)
    untested = on_trials(lambda t: t.key.arm is Arm.C and t.key.item == 0, lambda t: None)
    assert measure(untested(RECORDS)).margins.n == sum(LENGTHS) - LENGTHS[0]


# Arms A and A2 that several cells share.


def shared(ended: str = "complete", **changes: Any) -> Records:
    """The run with its first launch copied from an origin of its own."""
    header = header_of(RECORDS)
    stop = first(RECORDS, LifetimeEnd, index=0) + 1
    copied = RECORDS[1:stop]
    footer = Footer(ended, sum(isinstance(r, Trial) for r in copied), 1.0)
    digest = sha256_hex(b"".join(encode((shared_header(header), *copied, footer))))
    record = SharedArm(
        "a.evidence.jsonl",
        digest,
        len(copied),
        header.ts_utc,
        header.observer,
        header.subject.model.sha256_from,
        footer,
    )
    return (header, replace(record, **changes), *copied, *RECORDS[stop:])


def test_a_shared_arm_is_taken_as_its_own() -> None:
    facts = measure(shared())
    assert facts.plan_faults == []
    assert [arm.file for arm in facts.shared_arms] == ["a.evidence.jsonl"]
    assert facts.pairs == measure(RECORDS).pairs


def test_a_shared_arm_that_ended_early_is_a_fault() -> None:
    assert measure(shared("stopped")).plan_faults == ["the shared arm ended early: stopped"]


def test_a_shared_arm_stands_at_the_beginning() -> None:
    records = shared()
    for place in (3, len(records) - 2):
        moved = (records[0], *records[2:place], records[1], *records[place:])
        refused(moved, "a shared arm stands elsewhere than at the beginning")


def test_a_copy_that_was_changed_or_breaks_off_is_refused() -> None:
    records = shared()
    refused(records[:5], "records are missing")
    refused(shared(sha256="0" * 64), "not those of its origin")
    place = next(i for i, r in enumerate(records) if isinstance(r, Trial))
    trial = records[place]
    assert isinstance(trial, Trial)
    changed = (*records[:place], replace(trial, lane=trial.lane + 1), *records[place + 1 :])
    refused(changed, "not those of its origin")
