"""The edges of what a run comes to: arm C trial by trial, and the certificate's own figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batch_invariance.invariance_diff.arm_c import ArmC, answered_tokens
from batch_invariance.invariance_diff.comparisons import Comparisons
from batch_invariance.invariance_diff.decode_witness import Sent
from batch_invariance.invariance_diff.facts import Facts, ItemFacts
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Item,
    Message,
    Outcome,
    Trial,
)
from batch_invariance.invariance_diff.packed import pack_ids, unpack_ids
from batch_invariance.invariance_diff.proof import DECODE_COUNT
from batch_invariance.invariance_diff.records import Header, PassStart
from batch_invariance.invariance_diff.schedule import saturated_pass
from batch_invariance.invariance_diff.schedule_space import SpaceTally
from batch_invariance.invariance_diff.tracker import NO_COUNTERS, Member, tracker_of
from core_fixtures import (
    Ideal,
    Records,
    a_completion,
    a_trial,
    in_arm,
    lost,
    measured,
    on_trials,
    outcomes,
    recertify,
    recount,
    with_result,
    with_scored,
    without_pass,
)
from decode_fixtures import with_log

LENGTHS = (14, 9, 12, 16, 11, 13, 10, 15, 12, 14)
ITEM = 3


def ideal(**changes: Any) -> Records:
    return Ideal(LENGTHS, **{"n": 3, "passes": 2, **changes}).records()


def parted_at(place: int) -> Callable[[Trial], Trial]:
    """The token ids are others from this position on."""

    def changed(trial: Trial) -> Trial:
        assert isinstance(trial.result, Completion)
        ids = list(unpack_ids(trial.result.token_ids or ""))
        return with_result(token_ids=pack_ids([*ids[:place], *(7000 + n for n in ids[place:])]))(
            trial
        )

    return changed


# Arm C.


@pytest.mark.parametrize(("place", "positions"), [(0, 1), (5, 6), (15, 16)])
@pytest.mark.parametrize("logged", [False, True])
def test_positions_compared_reach_to_where_answers_part(
    place: int, positions: int, logged: bool
) -> None:
    """Item 3 has 16 tokens: up to the first that differs, that one counted, or all of them."""
    records = on_trials(lambda t: in_arm(Arm.C)(t) and t.key.item == ITEM, parted_at(place))(
        ideal()
    )
    item = measure(with_log(records) if logged else records).items[ITEM]
    assert (item.horizon, item.n_positions) == (positions, positions)
    equal = measure(ideal()).items[ITEM]
    assert (equal.horizon, equal.n_positions) == (16, 16)


def test_the_longest_comparison_counts() -> None:
    records = on_trials(in_arm(Arm.C, 0, ITEM), parted_at(2))(ideal())
    item = measure(with_log(records)).items[ITEM]
    assert (item.horizon, item.n_positions, item.n_divergent) == (16, 16, 1)


def test_divergent_scores_in_proved_batches_are_counted() -> None:
    change = on_trials(in_arm(Arm.C, 0), with_scored(score=0.5))
    facts = measure(with_log(change(ideal())))
    # The last wave sends two of the ten again.
    n_sent = sum(isinstance(r, Trial) and in_arm(Arm.C, 0)(r) for r in ideal())
    assert facts.n_co_batched_divergent == facts.n_c_divergent == n_sent
    assert measure(with_log(ideal())).n_co_batched_divergent == 0
    tokens_only = on_trials(in_arm(Arm.C, 0), with_result(text="other"))
    assert measure(with_log(tokens_only(ideal()))).n_co_batched_divergent == 0


@pytest.mark.parametrize(
    ("shares", "best"),
    [
        ([(4, 4), (6, 4)], (4, 4)),
        ([(6, 4), (4, 4)], (6, 4)),
        ([(9, 2), (4, 3)], (4, 3)),
        ([(4, 3), (9, 2)], (4, 3)),
        ([(4, None), (5, 1), (6, None)], (5, 1)),
        ([(4, 0), (5, None)], (0, 0)),
    ],
)
def test_an_item_is_shown_by_the_first_trial_that_shared_most(
    shares: list[tuple[int, int | None]], best: tuple[int, int]
) -> None:
    """Each (own passes, shared ones) in a pass of its own."""
    header = ideal()[0]
    assert isinstance(header, Header)
    facts = Facts(header, SpaceTally(10), items=[ItemFacts() for _ in range(10)])
    arm = ArmC(facts, Comparisons(header.workset.items))
    for index, (own, shared) in enumerate(shares):
        start = PassStart(Arm.C, index, 0, saturated_pass([ITEM], 3), NO_COUNTERS)
        tracker = tracker_of(start, header)
        tracker.members = [Member(Sent(ITEM, 0, 0, 1.0, own, 40), own, shared)]
        arm.close(tracker)
    item = facts.items[ITEM]
    assert (item.own, item.shared) == best
    assert item.witness == (DECODE_COUNT if best[1] else None)
    assert facts.space.n_passes == len(shares)


def test_nothing_shared_has_no_witness() -> None:
    """A server that works one request after the other."""
    certificate = recertify(ideal(wave_decodes=sum))
    for row in certificate.rows:
        assert (row.proved_shared_decodes, row.own_decodes, row.witness) == (0, 0, None)
        assert not row.covered


@pytest.mark.parametrize(
    ("trial", "tokens"),
    [
        (None, 0),
        (lost()(a_trial(a_completion([1, 2]))), 0),
        (a_trial(a_completion([1, 2], completion_tokens=None)), 0),
        (a_trial(a_completion([1, 2])), 2),
    ],
)
def test_tokens_of_an_answer_or_none(trial: Trial | None, tokens: int) -> None:
    assert answered_tokens(trial) == tokens


LETTERS = (
    "Please write to my landlord that the boiler in Hazel Street has leaked since Tuesday",
    "Which river of northern France passes the cathedral town of Rouen before the sea",
    "Explain to a class of nine-year-olds why bread dough rises in a warm kitchen",
    "Draft a short speech for the retirement of our head gardener after forty years",
)


class Letters(Ideal):
    """Prompts that are long enough to be known again in an answer."""

    def items(self) -> tuple[Item, ...]:
        return tuple(Item(f"i{i}", (Message("user", LETTERS[i]),), "x") for i in range(4))


@pytest.mark.parametrize("pass_index", [0, 1])
def test_a_companions_prompt_in_an_answer_is_found(pass_index: int) -> None:
    records = Letters([12, 12, 12, 12], n=4, passes=2).records()
    certificate = recertify(
        on_trials(in_arm(Arm.C, pass_index, 2), with_result(text=f"Well: {LETTERS[1]}."))(records)
    )
    (entry,) = certificate.contamination
    assert (entry.id, entry.pass_index, [d.id for d in entry.donors]) == ("i2", pass_index, ["i1"])
    assert certificate.divergence_class == "contamination"
    assert recertify(records).contamination == ()


# The certificate.


def test_a_certificate_holds_no_nan() -> None:
    certificate = recertify(ideal())
    row = replace(certificate.rows[0], score=math.nan)
    with pytest.raises(ValueError):
        replace(certificate, rows=(row, *certificate.rows[1:])).to_bytes()


def test_completion_floor_counts_no_answer_of_an_arm_that_did_not_run() -> None:
    floor = recertify(ideal()).completion_floor
    assert (floor.n_ok_a, floor.n_ok_b, floor.n_ok_c) == (10, 10, 22)
    for arm in "ABC":
        indexes = (0, 1) if arm == "C" else (0,)
        floor = recertify(without_pass(Arm(arm), *indexes)(ideal())).completion_floor
        assert getattr(floor, f"n_ok_{arm.lower()}") == 0
        assert getattr(floor, f"n_failure_{arm.lower()}") == {}


def _arm_a_sends_nothing(records: Records) -> Records:
    def emptied(record: Any) -> Any:
        if isinstance(record, PassStart) and record.arm is Arm.A:
            return replace(record, schedule=replace(record.schedule, groups=(), pinned=None))
        return record

    return recount(on_trials(in_arm(Arm.A), lambda t: None)(tuple(map(emptied, records))))


def test_isolation_and_completeness_of_an_arm_a_that_sent_nothing() -> None:
    certificate = recertify(_arm_a_sends_nothing(ideal()))
    found = outcomes(certificate)
    assert found["completeness"] is Outcome.FAIL
    assert found["isolation"] is not Outcome.PASS


def test_isolation_counts_the_answers_that_count_no_prompt() -> None:
    records = on_trials(lambda trial: True, with_result(prompt_tokens=None))(ideal())
    trials = [r for r in records if isinstance(r, Trial) and r.key.arm is not Arm.WARMUP]
    certificate = recertify(records)
    found = outcomes(certificate)
    assert (found["F0_score"], found["isolation"]) == (Outcome.UNKNOWN, Outcome.PASS)
    text = f"{len(trials)} responses do not count their prompt"
    assert measured(certificate, "F0_score") == text
