"""From gate results to a colour, a status, a promotion, and the class of a RED."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest

from batch_invariance.invariance_diff.gates import GateResult, evaluate, examine
from batch_invariance.invariance_diff.model import Arm, Outcome, Source, Status, Trial, Verdict
from batch_invariance.invariance_diff.rules import PRODUCER_GATE
from batch_invariance.invariance_diff.verdict import (
    colour_of,
    decide_status,
    divergence_class,
    promotable,
)
from core_fixtures import (
    COLOURS,
    Change,
    Ideal,
    Records,
    confirmed,
    in_arm,
    lost,
    on_header,
    on_plan,
    on_trials,
    recertify,
    remeasure,
    then,
    trial_of,
    with_result,
    with_scored,
    without_pass,
)

if TYPE_CHECKING:
    from conftest import DriverEvidence

PASS, FAIL, UNKNOWN, NA = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN, Outcome.NOT_APPLICABLE
RANK = (Verdict.GREEN, Verdict.AMBER, Verdict.UNVERIFIED, Verdict.RED)


def _result(gate: str, outcome: Outcome, reason: str | None = None) -> GateResult:
    return GateResult(gate, outcome, "measured", "required", COLOURS[gate], reason)


def _table(**outcomes: Outcome) -> tuple[GateResult, ...]:
    return tuple(_result(gate, outcomes.get(gate, PASS)) for gate in COLOURS)


def test_all_passed_is_green() -> None:
    decision = decide_status(_table())
    assert (decision.verdict, decision.status) == (Verdict.GREEN, Status.GREEN)
    assert (decision.reasons, decision.anomaly) == ((), None)


def test_no_gate_at_all_is_unverified() -> None:
    decision = decide_status(())
    assert (decision.verdict, decision.anomaly) == (Verdict.UNVERIFIED, "no_gates")
    assert decision.reasons


@pytest.mark.parametrize(("gate", "outcome"), list(product(COLOURS, Outcome)))
def test_the_colour_of_one_gate(gate: str, outcome: Outcome) -> None:
    expected = {FAIL: COLOURS[gate], UNKNOWN: Verdict.UNVERIFIED}.get(outcome)
    assert colour_of(_result(gate, outcome)) is expected
    assert decide_status(_table(**{gate: outcome})).verdict is (expected or Verdict.GREEN)


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (Verdict.GREEN, "green"),
        (Verdict.AMBER, "green_with_caveat"),
        (Verdict.UNVERIFIED, "green_unverified"),
        (Verdict.RED, "failed"),
    ],
)
def test_the_status_of_a_colour(verdict: Verdict, status: str) -> None:
    gate = {Verdict.AMBER: "tokens", Verdict.UNVERIFIED: "lost", Verdict.RED: "F0_score"}
    table = _table(**({gate[verdict]: FAIL} if verdict in gate else {}))
    decision = decide_status(table)
    assert (decision.verdict, decision.status.value) == (verdict, status)


@pytest.mark.parametrize(("one", "other"), list(product(COLOURS, COLOURS)))
def test_the_worse_colour_wins(one: str, other: str) -> None:
    """RED > UNVERIFIED > AMBER > GREEN, and one more FAIL never improves it."""
    alone = decide_status(_table(**{one: FAIL})).verdict
    both = decide_status(_table(**{one: FAIL, other: FAIL})).verdict
    unknown = decide_status(_table(**{one: FAIL, other: UNKNOWN})).verdict
    second = decide_status(_table(**{other: FAIL})).verdict
    assert both is max(alone, second, key=RANK.index)
    if one != other:
        assert RANK.index(unknown) >= RANK.index(alone)


def test_every_reason_is_listed_worst_first() -> None:
    table = (
        _result("tokens", FAIL, "token_only"),
        _result("lost", FAIL, "lost_trials"),
        _result("F0_score", FAIL, "score_divergence"),
        _result("F3_coverage", UNKNOWN, "weak_witness"),
        _result("F5_provenance", FAIL, "source_mock"),
        _result("F1_overlap", PASS),
    )
    decision = decide_status(table)
    assert decision.reasons == (
        "F0_score: score_divergence: measured",
        "lost: lost_trials: measured",
        "F3_coverage: weak_witness: measured",
        "tokens: token_only: measured",
    )
    assert decision.anomaly == "score_divergence"


def test_the_anomaly_is_the_first_of_the_worst_colour() -> None:
    reference = _result("reference", FAIL, "reference_unstable")
    tokens = _result("tokens", FAIL, "token_only")
    assert decide_status((reference, tokens)).anomaly == "reference_unstable"
    assert decide_status((tokens, reference)).anomaly == "token_only"


def test_drift_in_tokens_and_logits_gives_amber_its_name() -> None:
    drift = _result("F4_logit_drift", FAIL, "token_and_logit_drift")
    tokens = _result("tokens", FAIL, "token_only")
    for table in ((drift, tokens), (tokens, drift)):
        assert decide_status(table).anomaly == "token_and_logit_drift"
    worse = _result("lost", FAIL, "lost_trials")
    assert decide_status((worse, tokens, drift)).anomaly == "lost_trials"


# Promotion.


def test_only_a_live_green_of_all_arms_with_every_gate_is_promotable() -> None:
    table = _table(F4_logit_drift=NA)
    assert promotable(table, Verdict.GREEN, Source.LIVE, PRODUCER_GATE)
    assert promotable(_table(), Verdict.GREEN, Source.LIVE, PRODUCER_GATE)
    for source in Source:
        expected = source is Source.LIVE
        assert promotable(table, Verdict.GREEN, source, PRODUCER_GATE) is expected
    for verdict in Verdict:
        expected = verdict is Verdict.GREEN
        assert promotable(table, verdict, Source.LIVE, PRODUCER_GATE) is expected
    for tag in ("", "ab", PRODUCER_GATE.upper()):
        assert not promotable(table, Verdict.GREEN, Source.LIVE, tag)
    assert not promotable((), Verdict.GREEN, Source.LIVE, PRODUCER_GATE)


@pytest.mark.parametrize(("gate", "outcome"), list(product(COLOURS, Outcome)))
def test_a_gate_that_did_not_pass_bars_promotion(gate: str, outcome: Outcome) -> None:
    allowed = outcome is PASS or (outcome is NA and gate == "F4_logit_drift")
    table = _table(**{gate: outcome})
    assert promotable(table, Verdict.GREEN, Source.LIVE, PRODUCER_GATE) is allowed


# The class of a RED.

ITEM = 5
SCORE = with_scored(score=0.5)


def _red(pass_index: int = 0, confirm: bool = True, change: Change | None = None) -> Change:
    """C scores one item otherwise; it is confirmed on its lane, arm A's answer again."""

    def changed(records: Records) -> Records:
        where = in_arm(Arm.C, pass_index, ITEM)
        lane = trial_of(records, where).lane
        steps = [on_trials(where, SCORE)]
        if confirm:
            steps.append(confirmed((ITEM, lane)))
        return then(*steps, *([change] if change else []))(records)

    return changed


def _b(fn: object) -> Change:
    return on_trials(in_arm(Arm.B, 0, ITEM), fn)  # type: ignore[arg-type]


def _a2(fn: object) -> Change:
    return on_trials(in_arm(Arm.A2, 0, ITEM), fn)  # type: ignore[arg-type]


OTHER_TEXT = with_result(text="another")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_red(), "co_batching"),
        (_red(2), "co_batching"),
        (_red(1), "unattributed: no divergent trial is proved co-batched"),
        (_red(0, False), "unattributed: the divergent trials were not confirmed serially"),
        (
            then(on_plan(confirm_limit=0), _red(0, False)),
            "unattributed: the divergent trials were not confirmed serially",
        ),
        (
            _red(0, False, on_trials(in_arm(Arm.C, 2, ITEM + 1), SCORE)),
            "unattributed: the divergent trials were not confirmed serially",
        ),
        (
            then(_red(), on_trials(in_arm(Arm.C, 2, ITEM + 1), SCORE)),
            "unattributed: the divergent trials were not confirmed serially",
        ),
        (_red(0, True, without_pass(Arm.A2)), "unattributed: arm A was not repeated"),
        (_red(0, True, _a2(OTHER_TEXT)), "unstable_reference"),
        (_red(0, True, _a2(SCORE)), "unstable_reference"),
        (then(_red(), _a2(OTHER_TEXT), _b(OTHER_TEXT)), "unstable_reference"),
        (_red(0, True, _b(OTHER_TEXT)), "slot_allocation(+co_batching)"),
        (_red(0, True, _b(SCORE)), "slot_allocation(+co_batching)"),
        (
            _red(0, True, on_trials(in_arm(Arm.CONFIRM), OTHER_TEXT)),
            "slot_allocation(+co_batching)",
        ),
        (_red(0, True, on_trials(in_arm(Arm.CONFIRM), SCORE)), "slot_allocation(+co_batching)"),
        (
            _red(0, False, without_pass(Arm.B)),
            "unattributed: arm B does not cover arm A token by token",
        ),
        (
            _red(0, True, on_trials(in_arm(Arm.CONFIRM), lost())),
            "unattributed: the divergent trials were not confirmed serially",
        ),
    ],
    ids=[
        "in a wave",
        "in a later wave",
        "in a saturated pass",
        "no confirm trial",
        "confirming forbidden",
        "no confirm trial for two",
        "one confirm trial for two",
        "no A2",
        "A2 differs in text",
        "A2 differs in score",
        "A2 and B differ",
        "B differs in text",
        "B differs in score",
        "confirm differs in text",
        "confirm differs in score",
        "no B",
        "confirm lost",
    ],
)
def test_the_class_of_a_red(change: Change, expected: str, driver_evidence: DriverEvidence) -> None:
    certificate = recertify(change(driver_evidence.records))
    assert certificate.verdict is Verdict.RED
    assert certificate.divergence_class == expected


def test_unknown_tokens_in_b_leave_a_red_unattributed(driver_evidence: DriverEvidence) -> None:
    """A confirm trial alone says nothing about an arm B whose tokens nobody knows."""
    unknown = on_trials(
        lambda t: t.key.arm in (Arm.A, Arm.B) and t.key.item == 9, with_result(token_ids=None)
    )
    a2 = on_trials(in_arm(Arm.A2, 0, 9), with_result(token_ids=None))
    certificate = recertify(then(_red(), unknown, a2)(driver_evidence.records))
    assert certificate.divergence_class == "unattributed: arm B does not cover arm A token by token"


def test_only_a_red_has_a_class(driver_evidence: DriverEvidence) -> None:
    examined = examine(remeasure(_red()(driver_evidence.records)))
    results = evaluate(examined)
    for verdict in Verdict:
        found = divergence_class(examined, results, verdict)
        assert (found == "co_batching") is (verdict is Verdict.RED)
        assert found == "co_batching" or found is None


def test_a_token_divergence_in_a_wave_does_not_explain_a_score_elsewhere(
    driver_evidence: DriverEvidence,
) -> None:
    """The score differs in a saturated pass, the tokens of the same item in a wave."""
    change = then(
        on_trials(in_arm(Arm.C, 0, ITEM), OTHER_TEXT), on_trials(in_arm(Arm.C, 1, ITEM), SCORE)
    )
    records = change(driver_evidence.records)
    lanes = {trial_of(records, in_arm(Arm.C, p, ITEM)).lane for p in (0, 1)}
    certificate = recertify(confirmed(*((ITEM, lane) for lane in lanes))(records))
    unproved = "unattributed: no divergent trial is proved co-batched"
    assert certificate.divergence_class == unproved


def test_more_faults_never_improve_a_run(driver_evidence: DriverEvidence) -> None:
    """Changes piled up one after the other: the colour only gets worse."""
    changes: Sequence[Change] = (
        on_header(lambda h: replace(h, source=Source.MOCK)),
        _a2(OTHER_TEXT),
        on_trials(in_arm(Arm.C, 1, 3), OTHER_TEXT),
        on_trials(in_arm(Arm.B, 0, 4), with_result(cache_n=1)),
        on_trials(in_arm(Arm.C, 2, ITEM), SCORE),
        on_trials(in_arm(Arm.C, 3, 7), lost()),
    )
    records, before = driver_evidence.records, 0
    for change in changes:
        records = change(records)
        now = RANK.index(recertify(records).verdict)
        assert now >= before
        before = now
    assert before == RANK.index(Verdict.RED)


def test_evaluation_keeps_the_order_of_the_table() -> None:
    results = evaluate(examine(remeasure(Ideal([8] * 8).records())))
    assert [r.gate for r in results] == list(COLOURS)
    assert all(r.required and r.measured for r in results)


def test_a_trial_is_divergent_once_however_it_differs(driver_evidence: DriverEvidence) -> None:
    def both(trial: Trial) -> Trial:
        return SCORE(OTHER_TEXT(trial))

    certificate = recertify(on_trials(in_arm(Arm.C, 0, ITEM), both)(driver_evidence.records))
    assert certificate.sensitivity.n_ac_divergent == 1
    assert certificate.controls.confirm_wanted == 1
