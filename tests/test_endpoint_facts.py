"""Edges of the gates of an endpoint, of its gauge, its wants and its lifetimes, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batch_invariance.invariance_diff.endpoint import Engine, TokenNames
from batch_invariance.invariance_diff.facts import Facts, Isolation, Lifetime
from batch_invariance.invariance_diff.gates import GATES, Examined, evaluate, examine
from batch_invariance.invariance_diff.gates_endpoint import (
    ENDPOINT_GATES,
    check_identity,
    check_isolation,
    check_reference,
    foreign_traffic,
    table_of,
)
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import Arm, Outcome
from batch_invariance.invariance_diff.proof import overlap_of
from batch_invariance.invariance_diff.reading import Reading
from batch_invariance.invariance_diff.records import ControlPlan
from batch_invariance.invariance_diff.tracker import PassFacts
from batch_invariance.invariance_diff.verdict import decide_status, divergence_class
from core_fixtures import (
    Ideal,
    Records,
    confirmed,
    in_arm,
    on_trials,
    trial_of,
    with_result,
    with_scored,
    without_pass,
)
from endpoint_ideal import IdealEndpoint, with_polls, without_steps

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
RECORDS = IdealEndpoint([12] * 11, passes=2).records()
GAUGED = without_steps(with_polls(RECORDS))

Alter = Callable[[Facts], None]


def _read(
    check: Callable[[Examined], Reading], *alter: Alter, records: Records = RECORDS
) -> Reading:
    facts = measure(records)
    for change in alter:
        change(facts)
    return check(examine(facts))


def _isolation(*alter: Alter, records: Records = RECORDS) -> Reading:
    return _read(check_isolation, *alter, records=records)


def _on_pass(arm: Arm, **changes: Any) -> Alter:
    """Changes figures of the first pass of an arm; a callable is given the pass."""

    def altered(facts: Facts) -> None:
        place = next(i for i, p in enumerate(facts.passes) if p.arm is arm)
        p = facts.passes[place]
        values = {n: v(p) if callable(v) else v for n, v in changes.items()}
        facts.passes[place] = replace(p, **values)

    return altered


def _extra(decodes: int) -> Callable[[PassFacts], int]:
    return lambda p: p.tokens + decodes


def test_the_ideal_run_passes_both_ways() -> None:
    for records in (RECORDS, GAUGED):
        facts = measure(records)
        results = evaluate(examine(facts), table_of(facts))
        assert {r.gate for r in results if r.outcome is not PASS} == {
            "F4_logit_drift",
            "F5_provenance",
            "control_b",
        }


# The table.


def test_the_rows_of_endpoint_gates_that_ask_otherwise() -> None:
    """In ENDPOINT_GATES each row that asks something else says so, and has its own check."""
    other = {g.name: g for g in GATES}
    said = {g.name: g.required for g in ENDPOINT_GATES if g.required != other[g.name].required}
    assert set(said) == {
        "F1_overlap",
        "F3_coverage",
        "isolation",
        "identity",
        "control_b",
        "reference",
        "positive_control",
    }
    assert said["control_b"] == "not applicable: the server is not ours"
    assert said["reference"] == "A, A2 and the closing A3 token-identical"
    assert said["positive_control"].endswith("heeds none, another item's prompt")
    checks = {g.name for g in ENDPOINT_GATES if g.check is not other[g.name].check}
    assert checks == {"isolation", "identity", "reference"}
    assert table_of(measure(Ideal([8] * 8).records())) is GATES


# Reference.


def test_reference_of_tokens_that_one_repeat_does_not_name() -> None:
    unnamed = on_trials(in_arm(Arm.A3, 0, 4), with_result(token_ids=None, completion_tokens=None))
    reading = _read(check_reference, records=unnamed(RECORDS))
    assert (reading.outcome, reading.reason) == (FAIL, "reference_unstable")

    def unknown(facts: Facts) -> None:
        facts.pairs["AA3"] = replace(facts.pairs["AA3"], n_tokens_unknown=1)

    reading = _read(check_reference, unknown)
    assert (reading.outcome, reading.reason) == (UNKNOWN, "tokens_unknown")
    assert reading.measured == (
        "A against A2: 0 score / 0 token-only of 11 ids; "
        "A against A3: 0 score / 0 token-only of 11 ids"
    )


# Isolation.


def test_isolation_of_a_server_that_is_not_described_is_unknown() -> None:
    reading = _isolation(records=Ideal([8] * 8).records())
    assert (reading.outcome, reading.reason) == (UNKNOWN, "isolation_unknown")
    assert reading.measured == "the server is not described"


def test_isolation_of_one_answer_is_known_and_of_none_is_not() -> None:
    def checked(n: int) -> Alter:
        return lambda facts: setattr(facts, "isolation", Isolation(n_checked=n))

    assert _isolation(checked(1)).outcome is PASS
    reading = _isolation(checked(0))
    assert (reading.outcome, reading.reason) == (UNKNOWN, "nothing_checked")


@pytest.mark.parametrize("n", [3, 4, 5])
def test_isolation_names_three_passes_that_nothing_counts(n: int) -> None:
    def uncounted(facts: Facts) -> None:
        arms = [i for i, p in enumerate(facts.passes) if p.arm is not Arm.WARMUP]
        for i in arms[:n]:
            facts.passes[i] = replace(facts.passes[i], predicted=None)

    reading = _isolation(uncounted)
    more = f" and {n - 3} more" if n > 3 else ""
    named = f"arm A pass 0, arm A2 pass 0, arm C pass 0{more}"
    assert reading.outcome is UNKNOWN
    assert reading.measured.startswith(f"no count of generated tokens for {named}: start vLLM ")


@pytest.mark.parametrize(
    "alter",
    [
        _on_pass(Arm.WARMUP, predicted=None),
        _on_pass(Arm.WARMUP, predicted=1),
        _on_pass(Arm.C, predicted=None, n_lost=1),
        _on_pass(Arm.A2, predicted=0, n_missing=1),
        _on_pass(Arm.A2, predicted=0, n_unexpected=1),
    ],
)
def test_isolation_asks_nothing_of_a_pass_that_another_gate_judges(alter: Alter) -> None:
    assert _isolation(alter).outcome is PASS


def test_isolation_of_a_serial_arm_is_shown_by_passes_or_by_polls() -> None:
    assert _isolation(_on_pass(Arm.A2, gauge=None)).outcome is PASS
    assert _isolation(records=GAUGED).outcome is PASS
    reading = _isolation(_on_pass(Arm.A2, gauge=None), records=GAUGED)
    assert reading.outcome is UNKNOWN
    assert reading.measured.startswith("nothing shows that arm A2 pass 0 ran alone: start vLLM ")


def test_isolation_compares_prompt_tokens_where_ours_are_known() -> None:
    assert _isolation(_on_pass(Arm.A2, prompt_tokens=0, prompt_counted=9)).outcome is PASS
    assert _isolation(_on_pass(Arm.A2, prompt_tokens=9, prompt_counted=None)).outcome is PASS
    assert _isolation(_on_pass(Arm.A2, prompt_tokens=9, prompt_counted=9)).outcome is PASS
    reading = _isolation(_on_pass(Arm.A2, prompt_tokens=1, prompt_counted=3))
    assert reading.outcome is FAIL
    assert reading.measured == (
        "other traffic beside arm A2 pass 0: 2 prompt tokens that are not ours"
    )


def test_isolation_of_a_pass_that_was_shared_once() -> None:
    reading = _isolation(_on_pass(Arm.A3, decodes=_extra(-1)))
    assert reading.outcome is FAIL
    assert reading.measured == "arm A3 pass 0 shared 1 forward passes"


def _as_a_took(extra: int, n_planned: int = 11) -> Alter:
    return _on_pass(Arm.A, decodes=_extra(extra), n_planned=n_planned)


@pytest.mark.parametrize(
    ("alter", "outcome"),
    [
        # What arm A took for its prompts is what a later pass of as many requests may take.
        ((_as_a_took(5), _on_pass(Arm.A3, decodes=_extra(5))), PASS),
        ((_as_a_took(5), _on_pass(Arm.A3, decodes=_extra(6))), FAIL),
        # As often as the pass goes over the work-set.
        ((_as_a_took(5, 10), _on_pass(Arm.A3, decodes=_extra(10))), PASS),
        ((_as_a_took(5, 10), _on_pass(Arm.A3, decodes=_extra(11))), FAIL),
        ((_as_a_took(5, 1), _on_pass(Arm.A3, decodes=_extra(55))), PASS),
        ((_as_a_took(5, 1), _on_pass(Arm.A3, decodes=_extra(56))), FAIL),
        ((_as_a_took(5, 0), _on_pass(Arm.A3, decodes=_extra(55))), PASS),
        # Where arm A's passes are not counted, one for each 32 tokens of prompt.
        ((_on_pass(Arm.A, decodes=None), _on_pass(Arm.A3, decodes=_extra(13))), UNKNOWN),
        ((_on_pass(Arm.A, decodes=None), _on_pass(Arm.A3, decodes=_extra(14))), FAIL),
    ],
)
def test_isolation_allows_a_later_pass_what_arm_a_took(
    alter: tuple[Alter, ...], outcome: Outcome
) -> None:
    reading = _isolation(*alter)
    assert reading.outcome is outcome
    if outcome is FAIL:
        assert "forward passes more than its requests explain" in reading.measured


def test_isolation_without_arm_a_allows_one_pass_for_32_tokens_of_prompt() -> None:
    def gone(facts: Facts) -> None:
        facts.passes = [p for p in facts.passes if p.arm is not Arm.A]

    assert 440 // 32 == 13
    assert _isolation(gone, _on_pass(Arm.A3, decodes=_extra(13))).outcome is PASS
    assert _isolation(gone, _on_pass(Arm.A3, decodes=_extra(14))).outcome is FAIL


def test_isolation_by_a_cache_counter_that_one_pass_lacks() -> None:
    def unreported(facts: Facts) -> None:
        facts.isolation.cache_unknown = 1

    assert _isolation(unreported).outcome is PASS
    reading = _isolation(unreported, _on_pass(Arm.C, cached=None))
    assert reading.outcome is UNKNOWN
    assert _isolation(_on_pass(Arm.C, cached=None)).outcome is PASS
    reading = _isolation(unreported, lambda facts: facts.passes.clear())
    assert reading.outcome is UNKNOWN
    reading = _isolation(_on_pass(Arm.C, cached=1), _on_pass(Arm.A, cached=2))
    assert reading.measured == "3 prompt tokens came from a cache by the server's counter"


def test_isolation_of_an_unknown_engine_names_no_switch_of_another() -> None:
    def other(facts: Facts) -> None:
        endpoint = facts.header.endpoint
        assert endpoint is not None
        facts.header = replace(facts.header, endpoint=replace(endpoint, engine=Engine.OTHER))
        facts.isolation.cache_unknown = 2

    reading = _isolation(other, _on_pass(Arm.C, cached=None))
    assert reading.measured == (
        "2 responses do not report their cache: answer with usage.prompt_tokens_details"
    )


def test_foreign_traffic_is_that_beside_every_arm_but_the_warm_up() -> None:
    facts = measure(RECORDS)
    for arm in (Arm.WARMUP, Arm.A, Arm.C):
        _on_pass(arm, predicted=lambda p: p.tokens + 3)(facts)
    assert [(p.arm, n) for p, n in foreign_traffic(facts)] == [(Arm.A, 3), (Arm.C, 3)]


# Identity.


def _identity(*alter: Alter, records: Records = RECORDS) -> Reading:
    return _read(check_identity, *alter, records=records)


def _says(**changes: Any) -> Alter:
    """At the start and at the end alike."""

    def altered(facts: Facts) -> None:
        for life in facts.lifetimes:
            said = replace(life.start.identity, **changes)
            life.start = replace(life.start, identity=said)
            assert life.end is not None
            life.end = replace(life.end, identity=said)

    return altered


def _told(*facts_of: dict[str, str]) -> Alter:
    def altered(facts: Facts) -> None:
        facts.said = [
            replace(record, facts=told) for record, told in zip(facts.said, facts_of, strict=True)
        ]

    return altered


def _ends_unsaid(facts: Facts) -> None:
    facts.said = [record for record in facts.said if not record.at_end]


def _says_of_another(facts: Facts) -> None:
    facts.said = [replace(record, lifetime=1) for record in facts.said]


def _no_end(facts: Facts) -> None:
    facts.lifetimes[0].end = None


def test_identity_in_words() -> None:
    reading = _identity()
    assert reading == Reading(PASS, "b10068, the same at start and end")
    reading = _identity(lambda facts: facts.lifetimes.clear())
    assert reading.outcome is UNKNOWN
    assert reading.measured == "no server lifetime recorded"


@pytest.mark.parametrize(("slots", "outcome"), [(3, FAIL), (4, PASS), (5, PASS)])
def test_identity_needs_a_slot_for_each_lane(slots: int, outcome: Outcome) -> None:
    assert _identity(_says(total_slots=slots)).outcome is outcome


@pytest.mark.parametrize("alter", [_ends_unsaid, _says_of_another, _no_end])
def test_identity_is_asked_at_the_end(alter: Alter) -> None:
    reading = _identity(alter)
    assert (reading.outcome, reading.reason) == (UNKNOWN, "identity_unknown")
    assert reading.measured == "it was not asked again at the end"


@pytest.mark.parametrize(("build", "outcome"), [("b10068", PASS), ("b2", FAIL)])
def test_identity_holds_over_lifetimes(build: str, outcome: Outcome) -> None:
    """A run that was resumed may have met another server, which repeats itself just as well."""

    def again(facts: Facts) -> None:
        life = facts.lifetimes[0]
        said = replace(life.start.identity, build=build)
        assert life.end is not None
        start = replace(life.start, index=1, identity=said)
        facts.lifetimes.append(Lifetime(start, replace(life.end, index=1, identity=said)))
        facts.said += [replace(record, lifetime=1) for record in facts.said]

    reading = _identity(again)
    assert reading.outcome is outcome
    if outcome is FAIL:
        assert reading.measured == "it says something else of itself in another lifetime"


def test_identity_names_four_changes() -> None:
    before = dict.fromkeys("abcdef", "1")
    same = {**before, "f": "1"}
    assert _identity(_told(before, same)).outcome is PASS
    after = dict.fromkeys("abcde", "2")
    reading = _identity(_told(before, after))
    assert reading.outcome is FAIL
    assert reading.measured == "it changed what it says of itself: a, b, c, d"
    reading = _identity(_told({"a": "1"}, {"a": "1", "b": "1"}))
    assert reading.measured == "it changed what it says of itself: b"


def test_identity_that_lacks_two_things_says_both() -> None:
    reading = _identity(_says(model=None, build=None))
    assert reading.outcome is UNKNOWN
    assert reading.measured == (
        "it does not list the model (/v1/models); "
        "it names no version (/version, /props, /info, system_fingerprint)"
    )


# Rows that are the same, where an endpoint is what they speak of.


def _row(gate: str, *alter: Alter, records: Records = RECORDS) -> Reading:
    check = next(g.check for g in ENDPOINT_GATES if g.name == gate)
    return _read(check, *alter, records=records)


def test_overlap_says_why_polls_do_not_count_where_nothing_better_does() -> None:
    """Gate F1_overlap names the first pass of C whose gauge has a fault, and no other pass."""
    text = "client depth 4, server co-residency {}, proved batch {} of 4 by {}"

    def faulty(facts: Facts) -> None:
        for i, p in enumerate(facts.passes):
            facts.passes[i] = replace(p, gauge_fault=f"fault of {p.arm.value} {p.pass_index}")

    polled = _row("F1_overlap", records=GAUGED)
    assert polled.measured == text.format(4, 4, "scheduler_gauge")
    counted = _row("F1_overlap", faulty, records=with_polls(RECORDS))
    assert counted.measured == text.format(4, 4, "decode_count")
    none = text.format("unknown", 0, "client_intervals")
    unpolled = _row("F1_overlap", faulty, records=without_steps(RECORDS))
    assert unpolled.measured == none
    first = _row("F1_overlap", faulty, records=GAUGED)
    assert first.measured == f"{none}; its gauge does not count in pass 0: fault of C 0"
    second = _row("F1_overlap", faulty, _on_pass(Arm.C, gauge=None), records=GAUGED)
    assert second.measured == f"{none}; its gauge does not count in pass 1: fault of C 1"


@pytest.mark.parametrize(
    ("peaks", "ours", "tested"), [((4, 4), True, 4), ((3, 4), True, 4), ((4, 4), False, 2)]
)
def test_overlap_of_the_warm_up_as_far_as_polls_show_it(
    peaks: tuple[int, int], ours: bool, tested: int
) -> None:
    """Polls of passes with other traffic show nothing of ours."""
    facts = measure(with_polls(RECORDS))
    left = list(peaks)
    for i, p in enumerate(facts.passes):
        if p.arm is Arm.C and p.gauge is not None:
            gauge = replace(p.gauge, peak=left.pop(0))
            predicted = p.tokens + (not ours)
            facts.passes[i] = replace(p, gauge=gauge, decode_peak=2, predicted=predicted)
    assert overlap_of(facts).tested_n == tested


@pytest.mark.parametrize("names", list(TokenNames))
def test_tokens_that_are_told_apart_by_their_spelling_are_said_to_be(names: TokenNames) -> None:
    def spelt(facts: Facts) -> None:
        plan = facts.header.plan
        assert plan.sampling.dialect is not None
        sampling = replace(plan.sampling, dialect=replace(plan.sampling.dialect, tokens=names))
        facts.header = replace(facts.header, plan=replace(plan, sampling=sampling))

    said = ", compared by their spelling" if names is TokenNames.SPELLING else ""
    assert _row("tokens", spelt).measured == f"23 trials token-identical{said}"
    own = _row("tokens", records=Ideal([12] * 11, passes=2).records())
    assert own.measured == "23 trials token-identical"


def test_the_planted_change_is_named_in_the_row_positive_control() -> None:
    def exchanged(facts: Facts) -> None:
        facts.control.plan = ControlPlan(0, None, 0, 3)

    ban = "planted ban seen at token 0; by the score: not seen"
    assert _row("positive_control").measured == ban
    assert _row("positive_control", lambda f: setattr(f.control, "plan", None)).measured == ban
    other = "another item's prompt seen by its answer; by the score: not seen"
    assert _row("positive_control", exchanged).measured == other


# The class of a RED.

RED = on_trials(in_arm(Arm.C, 0, 3), with_scored(score=0.5))(RECORDS)
CONFIRMED = confirmed((3, trial_of(RED, in_arm(Arm.C, 0, 3)).lane))(RED)


def _class(records: Records, pins_slots: bool = False) -> str | None:
    facts = measure(records)
    plan = facts.header.plan
    assert plan.sampling.dialect is not None
    dialect = replace(plan.sampling.dialect, pins_slots=pins_slots)
    plan = replace(plan, sampling=replace(plan.sampling, dialect=dialect))
    facts.header = replace(facts.header, plan=plan)
    examined = examine(facts)
    results = evaluate(examined, table_of(facts))
    return divergence_class(examined, results, decide_status(results).verdict)


def test_a_red_of_a_server_of_someone_else_is_compared_with_its_last_arm() -> None:
    """Where slots are pinned the last arm goes over them, and takes the place of arm B."""
    assert _class(CONFIRMED) == "co_batching"
    assert _class(RED) == "unattributed: the divergent trials were not confirmed serially"
    moved = on_trials(in_arm(Arm.A3, 0, 3), with_result(text="other"))(CONFIRMED)
    assert _class(moved) == "unstable_reference"
    assert _class(moved, pins_slots=True) == "slot_allocation(+co_batching)"
    missing = _class(without_pass(Arm.A3)(CONFIRMED))
    assert missing == "unattributed: arm A3 does not cover arm A token by token"


def test_coverage_by_polls_is_certain_and_by_the_clock_is_not() -> None:
    reading = _row("F3_coverage", records=GAUGED)
    assert reading == Reading(PASS, "11 of 11 ids proved co-batched by scheduler_gauge")
    reading = _row("F3_coverage", records=without_steps(RECORDS))
    assert (reading.outcome, reading.reason) == (UNKNOWN, "weak_witness")
