"""What the server's log of forward passes proves, and when it is not believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.model import Arm, Outcome, Verdict
from batch_invariance.invariance_diff.proof import DECODE_COUNT, DECODE_LOG
from batch_invariance.invariance_diff.records import (
    DecodeRuns,
    Header,
    PassEnd,
    PassStart,
    Record,
    WaveEnd,
)
from core_fixtures import Ideal, Records, mutate, on_cell, recertify, remeasure
from decode_fixtures import Runs, with_log

LENGTHS = (12, 20, 9, 16, 14, 11, 18, 10, 15, 13)


def outcome(cert: Certificate, gate: str) -> tuple[Outcome, str | None]:
    row = next(g for g in cert.gates if g.gate == gate)
    return row.outcome, row.reason


@pytest.fixture(scope="module")
def logged() -> Records:
    return with_log(Ideal(LENGTHS).records())


def spoil(arm: Arm, index: int, to: Runs) -> Records:
    """A run whose log says something else about one pass."""

    def change(start: PassStart, runs: Runs) -> Runs:
        return to if (start.arm, start.pass_index) == (arm, index) else runs

    return with_log(Ideal(LENGTHS).records(), change)


def only(arm: Arm, index: int, fn: object) -> Records:
    def change(start: PassStart, runs: Runs) -> Runs:
        if (start.arm, start.pass_index) != (arm, index):
            return runs
        assert callable(fn)
        result: Runs = fn(runs)
        assert result != runs
        return result

    return with_log(Ideal(LENGTHS).records(), change)


def test_the_log_proves_every_id(logged: Records) -> None:
    cert = recertify(logged)
    assert cert.verdict is Verdict.GREEN
    assert cert.overlap.witness == DECODE_LOG
    assert cert.overlap.log_fault is None
    assert cert.overlap.tested_n == 4
    assert cert.cobatch_coverage.n_co_batched == len(LENGTHS)
    assert {row.witness for row in cert.rows} == {DECODE_LOG}
    # Both waves and saturated passes give proof; a long one may run on alone.
    assert all(row.n_c_co_batched >= 2 for row in cert.rows)


def test_saturated_trials_are_proved_only_by_the_log(logged: Records) -> None:
    plain = recertify(Ideal(LENGTHS, wave_decodes=max).records())
    assert plain.overlap.witness == DECODE_COUNT
    assert plain.overlap.log_fault == "arm C pass 0: no log was read"
    with_it = recertify(logged)
    assert with_it.sensitivity.n_hot_trials > plain.sensitivity.n_hot_trials


def test_what_each_trial_shared_is_exact(logged: Records) -> None:
    cert = recertify(logged)
    # In a wave of four neighbours every pass of the shortest is shared, and all but its own prompt,
    # which is cut from the others' under split KV, count.
    for row, length in zip(cert.rows, LENGTHS, strict=True):
        assert row.own_decodes == length
        assert 0 < row.proved_shared_decodes <= length


def test_queueing_server_proves_no_batch() -> None:
    """One request after the other, whatever was in flight: the log has one participant a pass."""

    def queue(start: PassStart, runs: Runs) -> Runs:
        if start.arm is not Arm.C:
            return runs
        alone: list[tuple[int, ...]] = []
        tasks: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        for run in runs:
            for k in range(1, len(run), 3):
                tasks.setdefault((run[k], run[k + 1]), []).append((1, *run[k : k + 3]))
        for steps in tasks.values():
            alone += steps
        return tuple(alone)

    records = with_log(Ideal(LENGTHS).records(), queue)
    counted: list[Record] = []
    # The counter agrees with such a log: every pass of C took as many decodes as it has tokens.
    decodes = 0
    shift = 0
    for record in records:
        if isinstance(record, PassStart):
            record = replace(
                record,
                counters=replace(
                    record.counters, decode_total=record.counters.decode_total + shift
                ),
            )
            decodes = record.counters.decode_total or 0
        elif isinstance(record, DecodeRuns):
            decodes += sum(run[0] for run in record.runs)
        elif isinstance(record, PassEnd):
            shift += decodes - (record.counters.decode_total + shift)
            record = replace(record, counters=replace(record.counters, decode_total=decodes))
        counted.append(record)
    counted = [
        replace(r, counters=replace(r.counters, decode_total=None)) if isinstance(r, WaveEnd) else r
        for r in counted
    ]
    cert = recertify(counted)
    assert cert.verdict is Verdict.UNVERIFIED
    assert outcome(cert, "F1_overlap")[0] is Outcome.FAIL
    assert outcome(cert, "F3_coverage") == (Outcome.FAIL, "coverage")
    assert cert.cobatch_coverage.n_co_batched == 0


def test_a_shared_pass_in_a_serial_arm_is_seen() -> None:
    def crowd(runs: Runs) -> Runs:
        first, second = runs[0], runs[1]
        stranger = (first[1] + 1, 999, 0)
        return ((*first, *stranger), second, *runs[2:])

    # The stranger has no trial, so the log is not believed; the crowd must be an own task.
    cert = recertify(only(Arm.B, 0, crowd))
    assert cert.verdict is Verdict.GREEN

    def overlap(runs: Runs) -> Runs:
        """The last pass of the first request also carries the first pass of the second."""
        n_first = next(i for i, run in enumerate(runs) if run[1] != runs[0][1])
        last, following = runs[n_first - 1], runs[n_first]
        return (*runs[: n_first - 1], (1, *last[1:], *following[1:]), *runs[n_first + 1 :])

    records = only(Arm.B, 0, overlap)
    fewer: list[Record] = []
    off = 0
    for record in records:
        if isinstance(record, PassStart) and record.arm is Arm.C and not record.pass_index:
            off = 1
        if isinstance(record, (PassStart, PassEnd)) or hasattr(record, "wave"):
            counters = getattr(record, "counters", None)
            if isinstance(record, PassEnd) and record.arm is Arm.B:
                off = 1
            if counters is not None and off:
                record = replace(
                    record, counters=replace(counters, decode_total=counters.decode_total - off)
                )
        fewer.append(record)
    cert = recertify(fewer)
    assert outcome(cert, "isolation") == (Outcome.FAIL, "not_isolated")
    assert "by the server's log" in next(g for g in cert.gates if g.gate == "isolation").measured


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda runs: runs[:-1], "the log shows"),
        (lambda runs: (*runs[:-1], (1, *runs[-1][1:2], 7777, *runs[-1][3:])), "worked on"),
        (
            lambda runs: ((1, *runs[0][1:3], runs[0][3] + 1, *runs[0][4:]), *runs[1:]),
            "prompt tokens",
        ),
        (lambda runs: (*runs[:-1], (1, *runs[-1][1:3], 5, *runs[-1][4:])), "passes"),
        (lambda runs: (), "the log shows 0"),
    ],
)
def test_a_log_that_does_not_add_up_is_not_believed(fn: object, said: str) -> None:
    cert = recertify(only(Arm.C, 1, fn))
    assert cert.overlap.log_fault is not None
    assert cert.overlap.log_fault.startswith("arm C pass 1: ")
    assert said in cert.overlap.log_fault
    assert cert.overlap.witness == DECODE_COUNT
    assert cert.verdict is Verdict.GREEN


def test_a_log_that_was_not_read_names_its_reason(logged: Records) -> None:
    def unread(record: Record) -> Record:
        if isinstance(record, PassEnd) and record.arm is Arm.C and record.pass_index == 2:
            return replace(record, log_fault="the format is not understood")
        return record

    cert = recertify(mutate(logged, unread))
    assert cert.overlap.log_fault == "arm C pass 2: the format is not understood"
    assert cert.overlap.witness == DECODE_COUNT


@pytest.mark.parametrize(
    "runs",
    [
        ((0, 0, 1, 0),),
        ((1,),),
        ((),),
        ((1, 0, 1),),
        ((1, 0, 1, 0, 0, 2, 0),),
        ((1, -1, 1, 0),),
        ((1, 0, 1, -2),),
    ],
)
def test_runs_that_cannot_be_are_refused(runs: Runs) -> None:
    with pytest.raises(EvidenceError):
        recertify(spoil(Arm.C, 0, runs))


def test_a_micro_batch_without_tokens_is_refused(logged: Records) -> None:
    def empty(record: Record) -> Record:
        if isinstance(record, Header):
            return replace(record, cell=replace(record.cell, n_ubatch=0))
        return record

    with pytest.raises(EvidenceError, match="micro-batch"):
        recertify(mutate(logged, empty))


def test_the_space_of_schedules(logged: Records) -> None:
    cert = recertify(logged)
    space = cert.schedule_space
    assert (space.n_passes, space.n_passes_by_log) == (4, 4)
    assert space.ids_at_batch_size is not None
    assert set(space.ids_at_batch_size) == {"1", "2", "3", "4"}
    assert space.ids_at_batch_size["4"] == len(LENGTHS)
    assert space.ids_prefill_with_prefill == len(LENGTHS)
    assert space.ids_prefill_with_decode
    assert space.ids_decode_with_prefill
    assert sum(space.ids_on_lane.values()) >= len(LENGTHS)
    assert space.n_pairs_possible == 45
    assert 10 <= (space.n_pairs or 0) <= 45
    assert space.largest_pass == 160
    crossed = {b.tokens: b.crossed for b in space.boundaries}
    # Prompts of 40 tokens and at most 20 more stay below every boundary.
    assert crossed == {64: False, 256: False, 512: False}


def test_the_boundaries_are_those_of_the_rules_and_the_micro_batch(logged: Records) -> None:
    cert = recertify(on_cell(n_ubatch=128)(logged))
    assert [b.tokens for b in cert.schedule_space.boundaries] == [64, 128, 256, 512]


@pytest.mark.parametrize(("n", "usable"), [(0, False), (256, True), (257, False)])
def test_a_cell_has_1_to_256_slots(logged: Records, n: int, usable: bool) -> None:
    records = on_cell(dispatch_n=n)(logged)
    if usable:
        assert remeasure(records).header.cell.dispatch_n == 256
    else:
        with pytest.raises(EvidenceError, match=f"the cell has {n} slots, not 1 to 256"):
            remeasure(records)


def test_a_boundary_is_crossed_by_going_over_it_or_by_lying_on_both_sides() -> None:
    cert = recertify(with_log(Ideal(LENGTHS, prompt_tokens=50).records()))
    at_64 = next(b for b in cert.schedule_space.boundaries if b.tokens == 64)
    assert at_64.crossed
    assert at_64.n_ids_across == sum(50 + n >= 64 for n in LENGTHS)
    assert at_64.n_ids_below == sum(50 + n < 64 for n in LENGTHS)


def test_without_a_log_the_space_is_unknown() -> None:
    space = recertify(Ideal(LENGTHS).records()).schedule_space
    assert space.n_passes_by_log == 0
    assert space.ids_at_batch_size is None
    assert space.n_pairs is None
    assert space.largest_pass is None
    assert sum(space.ids_on_lane.values()) >= len(LENGTHS)
