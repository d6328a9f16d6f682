"""One pass followed trial by trial: small passes, every figure by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.endpoint import Engine, Sharing
from batch_invariance.invariance_diff.gauge import Poll
from batch_invariance.invariance_diff.model import Arm, Failure, FailureKind, Trial, TrialKey
from batch_invariance.invariance_diff.records import (
    Counters,
    DecodeRuns,
    Header,
    PassEnd,
    PassStart,
    Record,
    SlotSamples,
    WaveEnd,
)
from batch_invariance.invariance_diff.schedule import (
    DispatchKind,
    PassSchedule,
    pinned_pass,
    saturated_pass,
    wave_pass,
)
from batch_invariance.invariance_diff.tracker import PassFacts, PassTracker, tracker_of
from batch_invariance.invariance_diff.ubatch import Layout
from core_fixtures import NO_LOG, Ideal, a_completion, a_trial
from endpoint_ideal import DIALECT, IdealEndpoint

SPLIT, UNIFIED = Layout(False, 512), Layout(True, 512)
START = Counters(100, 1000, 5000, 10)
UNTOLD = Counters(None, None, None)


def tracked(
    schedule: PassSchedule,
    arm: Arm = Arm.C,
    layout: Layout = SPLIT,
    sharing: Sharing | None = None,
    counters: Counters = START,
) -> PassTracker:
    own = Sharing.ANY_LANE if layout.kv_unified else Sharing.NEIGHBOURS
    return PassTracker(PassStart(arm, 0, 0, schedule, counters), layout, sharing or own)


def trial(
    item: int,
    lane: int,
    tokens: int | None = 4,
    at: tuple[float, float] = (1.0, 2.0),
    wave: int | None = None,
    **changes: Any,
) -> Trial:
    """`tokens` None: an answer that does not count them; its prompt has 40."""
    changes.setdefault("occurrence", 0)
    key = TrialKey(Arm.C, 0, item, changes.pop("occurrence"))
    result = changes.pop("result", None) or a_completion(
        range(tokens or 0), completion_tokens=tokens, prompt_tokens=changes.pop("prompt", 40)
    )
    return a_trial(
        result, None, key, lane=lane, wave=wave, dispatch_ts=at[0], complete_ts=at[1], **changes
    )


LOST = Failure(FailureKind.TIMEOUT, "")


def wave_of(
    tokens: Sequence[int | None],
    decodes: int | None,
    lanes: Sequence[int] | None = None,
    **how: Any,
) -> PassTracker:
    """One wave, item n in lane n or in those named; `decodes` passes by the server's counter."""
    lanes = range(len(tokens)) if lanes is None else lanes
    schedule = PassSchedule(
        kind=DispatchKind.WAVES,
        lanes=max(lanes) + 1,
        groups=(tuple(range(len(tokens))),),
        pinned=tuple(lanes),
    )
    tracker = tracked(schedule, **how)
    for item, (lane, n) in enumerate(zip(lanes, tokens, strict=True)):
        tracker.add(trial(item, lane, n, wave=0))
    tracker.end_wave(WaveEnd(Arm.C, 0, 0, after(decodes)))
    return tracker


def after(decodes: int | None, predicted: int | None = None) -> Counters:
    return Counters(
        None if decodes is None else 100 + decodes,
        None if predicted is None else 1000 + predicted,
        None,
    )


def ended(
    tracker: PassTracker,
    counters: Counters = UNTOLD,
    log_fault: str | None = NO_LOG,
    alone_s: float | None = None,
    slots: SlotSamples | None = None,
) -> PassFacts:
    return tracker.finish(PassEnd(Arm.C, 0, counters, slots, log_fault), alone_s)


def members(tracker: PassTracker) -> dict[int, tuple[int, int | None]]:
    """By item: the passes it took, and those that it shared."""
    return {m.sent.item: (m.own, m.shared) for m in tracker.members}


# What is planned, and what comes: the facts of a pass.


def test_counts_of_a_pass_that_goes_as_planned() -> None:
    tracker = tracked(saturated_pass([0, 1, 2], 2))
    tracker.add(trial(0, 0, 3, (1.0, 2.0)))
    tracker.add(trial(1, 1, 5, (1.5, 4.0)))
    tracker.add(trial(2, 0, 2, (2.5, 3.0)))
    end = Counters(108, 1010, 5120, 17)
    facts = ended(tracker, end, slots=SlotSamples(5, 2))
    assert (facts.n_planned, facts.n_answered, facts.n_lost) == (3, 3, 0)
    assert (facts.n_missing, facts.n_unexpected, facts.ended) == (0, 0, True)
    assert (facts.tokens, facts.tokens_known, facts.prompt_tokens) == (10, True, 120)
    assert (facts.decodes, facts.predicted, facts.prompt_counted, facts.cached) == (8, 10, 120, 7)
    assert (facts.client_depth, facts.decode_peak, facts.slot_peak) == (2, 2, 2)
    assert (facts.lanes, facts.n_lanes, facts.seconds) == ((0, 1), 2, 3.0)
    assert (facts.gauge, facts.gauge_fault is None) == (None, False)


def test_counts_of_a_pass_in_which_nothing_came() -> None:
    facts = ended(tracked(saturated_pass([0, 1], 2)))
    assert (facts.n_planned, facts.n_answered, facts.n_missing) == (2, 0, 2)
    assert (facts.seconds, facts.client_depth, facts.decode_peak) == (0.0, 0, None)
    assert (facts.companions, facts.slot_peak, facts.lanes) == (None, None, ())
    assert facts.log_fault == NO_LOG
    assert ended(tracked(saturated_pass([], 2)), after(0), None).log_fault == "no trial"


def test_a_pass_without_an_end_counts_nothing_of_the_server() -> None:
    tracker = tracked(saturated_pass([0], 1))
    tracker.add(trial(0, 0))
    facts = tracker.finish(None)
    assert (facts.ended, facts.decodes, facts.log_fault) == (False, None, "the pass did not end")


@pytest.mark.parametrize(
    "came",
    [
        trial(7, 0, wave=0),
        trial(0, 0, wave=0, occurrence=1),
        trial(0, 1, wave=0),
        trial(0, 0, wave=1),
        trial(0, 0, wave=None),
    ],
)
def test_counts_of_a_trial_that_was_not_planned_here(came: Trial) -> None:
    """Another item, again, in another lane, in another wave or in none: no part of its wave."""
    tracker = tracked(wave_pass([0, 1], 2))
    tracker.add(came)
    tracker.add(trial(1, 1, 4, wave=0))
    for number in (0, 1):
        tracker.end_wave(WaveEnd(Arm.C, 0, number, after(4)))
    assert members(tracker) == {1: (4, 0)}
    assert tracker.companions({0, 1, 7}) == {(1, 0): set()}
    facts = ended(tracker, after(4), None)
    assert (facts.n_unexpected, facts.n_answered) == (1, 2)
    assert facts.n_missing == (came.key.item == 7 or came.key.occurrence == 1)
    assert facts.log_fault == "the pass did not go as planned"


@pytest.mark.parametrize(("lane", "unexpected"), [(-1, 1), (0, 0), (1, 0), (2, 1)])
def test_counts_of_a_free_lane_that_there_is_or_is_not(lane: int, unexpected: int) -> None:
    tracker = tracked(saturated_pass([0, 1], 2))
    tracker.add(trial(0, lane))
    assert ended(tracker).n_unexpected == unexpected


def test_counts_of_two_trials_that_nobody_planned() -> None:
    tracker = tracked(saturated_pass([0], 2))
    for item in (5, 6):
        tracker.add(trial(item, 0))
    assert ended(tracker).n_unexpected == 2


@pytest.mark.parametrize(
    ("last", "lost", "tokens", "known", "prompt"),
    [
        (trial(1, 1, 6), 0, 10, True, 80),
        (trial(1, 1, None), 0, 4, False, 80),
        (trial(1, 1, 6, prompt=None), 0, 10, True, 40),
        (trial(1, 1, result=LOST), 1, 4, False, 40),
    ],
)
def test_facts_of_answers_that_say_less(
    last: Trial, lost: int, tokens: int, known: bool, prompt: int
) -> None:
    tracker = tracked(saturated_pass([0, 1], 2))
    tracker.add(trial(0, 0, 4))
    tracker.add(last)
    facts = ended(tracker, after(5))
    assert (facts.n_answered, facts.n_lost) == (2 - lost, lost)
    assert (facts.tokens, facts.tokens_known, facts.prompt_tokens) == (tokens, known, prompt)
    # Ten tokens in five passes: two at once, where all of them are known.
    assert facts.decode_peak == (2 if known else None)


@pytest.mark.parametrize(
    ("slots", "peak"), [(None, None), (SlotSamples(0, 0, "no"), None), (SlotSamples(1, 3), 3)]
)
def test_busy_slots_are_known_from_the_first_sample_on(
    slots: SlotSamples | None, peak: int | None
) -> None:
    tracker = tracked(saturated_pass([0], 4))
    assert ended(tracker, slots=slots).slot_peak == peak


# What a wave shared, by the counter: the members.


@pytest.mark.parametrize(
    ("decodes", "shared"),
    [
        # Of 8 passes lane 1 was in 5: lane 0 shared 5, lane 1 all of its own, lane 2 all as well.
        (8, {0: (8, 5), 1: (5, 5), 2: (3, 3)}),
        # Two passes more, in which each of them may have been alone.
        (10, {0: (8, 3), 1: (5, 3), 2: (3, 1)}),
        (16, {0: (8, 0), 1: (5, 0), 2: (3, 0)}),
        (None, {0: (8, None), 1: (5, None), 2: (3, None)}),
    ],
)
def test_members_of_a_wave_by_the_longest_of_the_others(
    decodes: int | None, shared: dict[int, tuple[int, int | None]]
) -> None:
    tracker = wave_of([8, 5, 3], decodes, layout=UNIFIED)
    assert members(tracker) == shared
    assert not any(m.by_gauge or m.tally is not None for m in tracker.members)
    assert ended(tracker).decode_peak == (None if decodes is None else -(-16 // decodes))


def test_members_of_a_wave_of_equals_are_each_others_company() -> None:
    assert members(wave_of([6, 6], 7, layout=UNIFIED)) == {0: (6, 5), 1: (6, 5)}
    assert members(wave_of([6], 6, layout=UNIFIED)) == {0: (6, 0)}


def test_members_under_split_caches_share_with_neighbours_alone() -> None:
    """Lanes 0, 1 and 3: lane 3 has no neighbour, and lane 0 none but lane 1."""
    assert members(wave_of([4, 3, 9], 9, [0, 1, 3])) == {0: (4, 0), 1: (3, 0), 2: (9, 0)}
    assert members(wave_of([4, 3, 4], 4, [0, 1, 3])) == {0: (4, 3), 1: (3, 3), 2: (4, 0)}
    assert members(wave_of([4, 3, 4], 4, [2, 1, 0])) == {0: (4, 3), 1: (3, 3), 2: (4, 3)}


@pytest.mark.parametrize(
    ("sharing", "first"), [(None, 0), (Sharing.NEIGHBOURS, 0), (Sharing.ANY_LANE, 4)]
)
def test_members_share_as_the_server_is_known_to(sharing: Sharing | None, first: int) -> None:
    apart = wave_of([4, 4], 4, [0, 2], sharing=sharing)
    assert members(apart) == {0: (4, first), 1: (4, first)}
    untold = wave_of([4, 4], 4, layout=UNIFIED, sharing=Sharing.UNTOLD)
    assert members(untold) == {0: (4, 0), 1: (4, 0)}


OWN, FOREIGN = Ideal([4] * 4).records()[0], IdealEndpoint([4] * 4).records()[0]


def _header(described: Record, engine: Engine, dialect: bool, **cell: object) -> Header:
    assert isinstance(described, Header)
    sampling = replace(described.plan.sampling, dialect=DIALECT if dialect else None)
    endpoint = described.endpoint
    return replace(
        described,
        endpoint=None if endpoint is None else replace(endpoint, engine=engine),
        plan=replace(described.plan, sampling=sampling),
        cell=replace(described.cell, **cell),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("header", "beside", "apart"),
    [
        (_header(OWN, Engine.VLLM, False, kv_unified=True), 4, 4),
        (_header(OWN, Engine.VLLM, False, kv_unified=False), 4, 0),
        (_header(OWN, Engine.VLLM, False, kv_unified=None), 4, 0),
        (_header(FOREIGN, Engine.VLLM, True, kv_unified=False), 4, 4),
        (_header(FOREIGN, Engine.LLAMA_CPP, True, kv_unified=True), 0, 0),
        # Half a description is none.
        (_header(OWN, Engine.VLLM, True, kv_unified=False), 4, 0),
        (_header(FOREIGN, Engine.VLLM, False, kv_unified=False), 4, 0),
    ],
)
def test_members_share_as_the_header_says(header: Header, beside: int, apart: int) -> None:
    """Of four tokens in four passes, with a neighbour and with a gap between the lanes."""
    for lanes, shared in (((0, 1), beside), ((0, 2), apart)):
        schedule = PassSchedule(DispatchKind.WAVES, 3, ((0, 1),), lanes)
        tracker = tracker_of(PassStart(Arm.C, 0, 0, schedule, START), header)
        for item, lane in enumerate(lanes):
            tracker.add(trial(item, lane, 4, wave=0))
        tracker.end_wave(WaveEnd(Arm.C, 0, 0, after(4)))
        assert members(tracker) == {0: (4, shared), 1: (4, shared)}


def test_members_of_waves_one_after_the_other() -> None:
    """Each wave has its own passes; the best of them is the pass's."""
    tracker = tracked(wave_pass([0, 1, 2, 3, 4, 5], 2), layout=UNIFIED)
    decodes = 0
    for number, (tokens, took) in enumerate(((4, 8), (6, 6), (5, 10))):
        for lane in range(2):
            tracker.add(trial(2 * number + lane, lane, tokens, wave=number))
        decodes += took
        tracker.end_wave(WaveEnd(Arm.C, 0, number, after(decodes)))
    assert [m.shared for m in tracker.members] == [0, 0, 6, 6, 0, 0]
    assert ended(tracker, after(decodes)).decode_peak == 2


def test_members_are_those_whose_tokens_are_known() -> None:
    assert members(wave_of([4, None], 8, layout=UNIFIED)) == {0: (4, 0)}
    nobody = wave_of([None], 8)
    assert (members(nobody), ended(nobody, after(8)).decode_peak) == ({}, None)


@pytest.mark.parametrize(("decodes", "impossible"), [(7, 1), (8, 0)])
def test_a_wave_takes_no_fewer_passes_than_its_longest(decodes: int, impossible: int) -> None:
    tracker = wave_of([8, 5], decodes, layout=UNIFIED)
    facts = ended(tracker, after(decodes))
    assert facts.impossible_waves == impossible
    assert (facts.decode_peak is None) is bool(impossible)
    assert [m.shared is None for m in tracker.members] == [bool(impossible)] * 2
    # The wave after it is counted from there on.
    tracker = tracked(wave_pass([0, 1, 2, 3], 2), layout=UNIFIED)
    for item in range(4):
        tracker.add(trial(item, item % 2, 8, wave=item // 2))
    tracker.end_wave(WaveEnd(Arm.C, 0, 0, after(decodes)))
    tracker.end_wave(WaveEnd(Arm.C, 0, 1, after(decodes + 8)))
    assert [m.shared for m in tracker.members] == [*([None] * 2 if impossible else [8] * 2), 8, 8]


def test_every_impossible_wave_is_counted() -> None:
    tracker = tracked(wave_pass([0, 1], 1))
    for item in range(2):
        tracker.add(trial(item, 0, 8, wave=item))
        tracker.end_wave(WaveEnd(Arm.C, 0, item, after(item)))
    assert ended(tracker, after(1)).impossible_waves == 2


def test_a_wave_of_no_tokens_and_no_passes_proves_no_batch() -> None:
    assert ended(wave_of([0], 0), after(0)).decode_peak == 0


# Who met whom: the companions.


def test_companions_of_a_wave_are_the_rest_of_it() -> None:
    tracker = tracked(wave_pass([3, 0, 2, 1], 2))
    for place, item in enumerate((3, 0, 2, 1)):
        start = 1.0 + place // 2
        tracker.add(trial(item, place % 2, at=(start, start + 1), wave=place // 2))
    everyone = {(3, 0): {0}, (0, 0): {3}, (2, 0): {1}, (1, 0): {2}}
    assert tracker.companions({0, 1, 2, 3}) == everyone
    assert tracker.companions({3}) == {(3, 0): {0}}
    assert tracker.companions(set()) == {}
    assert ended(tracker).companions == digest_of([(0, 3), (1, 2)])


def test_companions_of_an_item_are_never_itself() -> None:
    """A short last wave is filled from the order's beginning."""
    tracker = tracked(wave_pass([0, 1, 2], 4))
    tracker.add(trial(0, 0, wave=0))
    for lane, item in ((1, 1), (2, 2)):
        tracker.add(trial(item, lane, wave=0))
    tracker.add(trial(0, 3, wave=0, occurrence=1))
    assert tracker.companions({0}) == {(0, 0): {1, 2}, (0, 1): {1, 2}}


def _in_flight(lanes: int) -> PassTracker:
    tracker = tracked(saturated_pass([0, 1, 2], lanes))
    tracker.add(trial(0, 0, at=(1.0, 3.0)))
    tracker.add(trial(1, 1, at=(2.0, 5.0)))
    tracker.add(trial(2, 0, at=(4.0, 6.0)))
    return tracker


def test_companions_of_a_saturated_pass_are_those_in_flight() -> None:
    tracker = _in_flight(2)
    assert tracker.companions({0, 1, 2}) == {(0, 0): {1}, (1, 0): {0, 2}, (2, 0): {1}}
    assert tracker.companions({2}) == {(2, 0): {1}}
    assert tracker.companions(set()) == {}
    assert ended(tracker).companions == digest_of([(0, 1), (1, 2)])


def test_no_companions_where_more_are_in_flight_than_there_are_lanes() -> None:
    tracker = _in_flight(1)
    assert tracker.companions({0, 1, 2}) == {}
    assert (ended(tracker).companions, ended(tracker).client_depth) == (None, 2)


def test_companions_that_nobody_had_have_no_digest() -> None:
    tracker = tracked(saturated_pass([0, 1], 2))
    tracker.add(trial(0, 0, at=(1.0, 2.0)))
    tracker.add(trial(1, 0, at=(2.0, 3.0)))
    assert ended(tracker).companions is None
    serial = tracked(pinned_pass([(0, 0), (1, 1)], 2), arm=Arm.B)
    for item in range(2):
        serial.add(trial(item, item))
    assert ended(serial).companions is None


# The server's log as the witness.

RUNS = (
    (1, 0, 70, 40),
    (1, 0, 70, 0, 1, 71, 40),
    (2, 0, 70, 0, 1, 71, 0),
    (1, 1, 71, 0, 0, 72, 40),
    (1, 0, 72, 0),
)
"""Items 0, 1 and 2: tasks 70 of 4 tokens, 71 of 4 and 72 of 2; items 0 and 2 never met."""


def _logged(runs: Iterable[tuple[int, ...]] = RUNS, lanes: int = 2) -> PassTracker:
    tracker = tracked(saturated_pass([0, 1, 2], lanes), layout=UNIFIED)
    # By the clock all three were in flight at once: the answers were read late.
    for item, (lane, tokens) in enumerate(((0, 4), (1, 4), (0, 2))):
        tracker.add(trial(item, lane, tokens, at=(1.0 + item / 10, 2.0)))
    tracker.add_runs(DecodeRuns(Arm.C, 0, tuple(runs)))
    return tracker


def test_the_log_says_what_each_shared_and_with_whom() -> None:
    tracker = _logged()
    facts = ended(tracker, after(6), None)
    assert facts.log_fault is None
    assert (facts.log_peak, facts.log_crowded) == (2, 4)
    assert members(tracker) == {0: (4, 3), 1: (4, 4), 2: (2, 1)}
    assert [m.tally.task for m in tracker.members if m.tally] == [70, 71, 72]
    assert not any(m.by_gauge for m in tracker.members)
    assert tracker.largest_pass == 41
    # The clock says three at once in two lanes; the log, who they were.
    assert tracker.companions({0, 1, 2}) == {(0, 0): {1}, (1, 0): {0, 2}, (2, 0): {1}}
    assert tracker.companions({2}) == {(2, 0): {1}}


def test_companions_by_the_log_are_never_the_item_itself() -> None:
    tracker = tracked(saturated_pass([0, 1, 0], 3), layout=UNIFIED)
    for place, item in enumerate((0, 1, 0)):
        tracker.add(trial(item, place, 1, occurrence=place // 2))
    tracker.add_runs(DecodeRuns(Arm.C, 0, ((1, 0, 70, 40, 1, 71, 40, 2, 72, 40),)))
    assert ended(tracker, after(1), None).log_fault is None
    assert tracker.companions({0}) == {(0, 0): {1}, (0, 1): {1}}


@pytest.mark.parametrize("spoilt", ["fault", "runs", "counter", "missing", "unexpected", "open"])
def test_a_log_that_is_no_witness_leaves_the_counter_and_the_clock(spoilt: str) -> None:
    tracker = _logged(RUNS[:-1] if spoilt == "runs" else RUNS, 3)
    if spoilt == "unexpected":
        tracker.add(trial(9, 2, at=(3.0, 4.0), result=LOST))
    if spoilt == "missing":
        tracker = tracked(saturated_pass([0, 1, 2, 3], 3), layout=UNIFIED)
        for item, (lane, tokens) in enumerate(((0, 4), (1, 4), (0, 2))):
            tracker.add(trial(item, lane, tokens, at=(1.0 + item / 10, 2.0)))
        tracker.add_runs(DecodeRuns(Arm.C, 0, RUNS))
    end = PassEnd(Arm.C, 0, after(7 if spoilt == "counter" else 6), None, None)
    if spoilt == "fault":
        end = PassEnd(Arm.C, 0, after(6), None, "it was cut off")
    facts = tracker.finish(None if spoilt == "open" else end)
    assert facts.log_fault is not None
    assert {
        "fault": "it was cut off",
        "missing": "the pass did not go as planned",
        "unexpected": "the pass did not go as planned",
        "open": "the pass did not end",
    }.get(spoilt, "the log shows") in facts.log_fault
    assert (facts.log_peak, facts.log_crowded, tracker.members) == (None, 0, [])
    # All three were in flight at once, and the log does not say otherwise.
    assert tracker.companions({0, 1}) == {(0, 0): {1, 2}, (1, 0): {0, 2}}


def test_the_log_takes_the_place_of_the_counter() -> None:
    """A wave of two, which by the counter shared all; by the log they were read one by one."""
    tracker = tracked(wave_pass([0, 1], 2))
    for item in range(2):
        tracker.add(trial(item, item, 3, wave=0))
    tracker.end_wave(WaveEnd(Arm.C, 0, 0, after(4)))
    assert members(tracker) == {0: (3, 2), 1: (3, 2)}
    runs = ((1, 0, 70, 40), (1, 1, 71, 40), (2, 0, 70, 0, 1, 71, 0))
    tracker.add_runs(DecodeRuns(Arm.C, 0, runs))
    assert ended(tracker, after(4), None).log_fault is None
    assert members(tracker) == {0: (3, 2), 1: (3, 2)}
    assert all(m.tally is not None for m in tracker.members)
    assert len(tracker.members) == 2


def test_a_run_that_cannot_be_is_refused_by_its_name() -> None:
    with pytest.raises(EvidenceError, match="decode_runs: a run of no passes or of nobody"):
        tracked(saturated_pass([0], 1)).add_runs(DecodeRuns(Arm.C, 0, ((0, 0, 1, 1),)))


# A gauge as the witness: where no passes are counted and all tokens are ours.

POLLS: list[Poll] = [(1.1, 1.2, 2, 0), (1.3, 1.4, 2, 0), (1.5, 1.6, 1, 1), (2.5, 2.6, 1, 0)]
"""Two of the three polls beside both trials show both running; one is beside item 1 alone."""
PREDICTED_ALONE = Counters(None, 1000, None)
TOGETHER_S = 2.0
ENOUGH_S = 2.5
"""0.8 of it is what the pass took."""


def _polled(
    last: Trial | None = None, polls: Sequence[Poll] = POLLS, counters: Counters = PREDICTED_ALONE
) -> PassTracker:
    tracker = tracked(saturated_pass([0, 1], 2), sharing=Sharing.ANY_LANE, counters=counters)
    tracker.add(trial(0, 0, 4, (1.0, 2.0)))
    tracker.add(last or trial(1, 1, 5, (1.0, 1.0 + TOGETHER_S)))
    tracker.add_polls(polls[:1])
    tracker.add_polls(polls[1:])
    return tracker


def test_a_gauge_shows_company() -> None:
    tracker = _polled()
    facts = ended(tracker, after(None, 9), alone_s=ENOUGH_S)
    assert facts.gauge_fault is None
    assert facts.gauge is not None
    assert (facts.gauge.n_polls, facts.gauge.peak, facts.gauge.n_over) == (4, 2, 0)
    # Item 0: three polls inside, two of them beside item 1; item 1: four, two of them.
    assert members(tracker) == {0: (3, 2), 1: (4, 2)}
    assert all(m.by_gauge and m.tally is None for m in tracker.members)


def test_company_that_the_polls_do_not_prove_is_none() -> None:
    tracker = _polled(polls=[POLLS[0], *POLLS[2:]])
    assert ended(tracker, after(None, 9), alone_s=ENOUGH_S).gauge_fault is None
    assert members(tracker) == {0: (2, 0), 1: (3, 0)}


@pytest.mark.parametrize(
    ("predicted", "alone_s", "fault"),
    [
        (9, ENOUGH_S, None),
        (9, 2.49, "it took 80% of the time that its requests take one at a time"),
        (9, None, "how long its requests take alone is not known"),
        (9, 0.0, "how long its requests take alone is not known"),
        (9, -1.0, "how long its requests take alone is not known"),
        (10, ENOUGH_S, "other traffic"),
        (8, ENOUGH_S, "other traffic"),
        (None, ENOUGH_S, "other traffic"),
    ],
)
def test_a_gauge_is_no_witness_beside_others_or_of_a_slow_pass(
    predicted: int | None, alone_s: float | None, fault: str | None
) -> None:
    tracker = _polled()
    found = ended(tracker, after(None, predicted), alone_s=alone_s).gauge_fault
    if fault is None:
        assert found is None
        return
    assert found is not None
    assert found.startswith(fault)
    assert tracker.members == []


def test_a_gauge_is_no_witness_of_tokens_that_are_not_known() -> None:
    tracker = _polled(trial(1, 1, None, (1.0, 3.0)))
    fault = ended(tracker, after(None, 4), alone_s=ENOUGH_S).gauge_fault
    assert fault is not None
    assert fault.startswith("other traffic")


def test_a_gauge_says_less_than_a_count_of_passes() -> None:
    tracker = _polled(counters=START)
    fault = ended(tracker, after(9, 9), alone_s=ENOUGH_S).gauge_fault
    assert fault == "the server counts its forward passes, which says more"
    assert tracker.members == []


def test_without_polls_a_gauge_says_nothing() -> None:
    tracker = _polled(polls=[])
    facts = ended(tracker, after(None, 9), alone_s=ENOUGH_S)
    assert (facts.gauge, tracker.members) == (None, [])


def test_the_gauge_takes_the_place_of_a_wave_that_nobody_counted() -> None:
    tracker = tracked(wave_pass([0, 1], 2), counters=PREDICTED_ALONE)
    for item in range(2):
        tracker.add(trial(item, item, 4, (1.0, 2.0), wave=0))
    tracker.end_wave(WaveEnd(Arm.C, 0, 0, UNTOLD))
    assert members(tracker) == {0: (4, None), 1: (4, None)}
    tracker.add_polls([(1.1, 1.2, 2, 0), (1.3, 1.4, 2, 0)])
    ended(tracker, after(None, 8), alone_s=2.0)
    assert members(tracker) == {0: (2, 2), 1: (2, 2)}
    assert len(tracker.members) == 2
