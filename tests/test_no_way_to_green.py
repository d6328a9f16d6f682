"""Runs that look clean and prove nothing: each must miss its GREEN, or its class."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batch_invariance.invariance_diff.model import Arm, Outcome, Trial, Verdict
from batch_invariance.invariance_diff.records import LifetimeEnd, LifetimeStart, WaveEnd
from conftest import DriverEvidence
from core_fixtures import (
    Change,
    Ideal,
    confirmed,
    count_tokens,
    departures,
    in_arm,
    lost,
    on_cell,
    on_kind,
    on_trials,
    recertify,
    recount,
    then,
    trial_of,
    with_result,
    with_scored,
)

ITEM = 5
SCORE = with_scored(score=0.5)
FAIL, UNKNOWN = Outcome.FAIL, Outcome.UNKNOWN


def everywhere(**identity: object) -> Change:
    """Has every launch say something else of itself, at its start and at its end."""

    def start(record: LifetimeStart) -> LifetimeStart:
        return replace(record, identity=replace(record.identity, **identity))  # type: ignore[arg-type]

    def end(record: LifetimeEnd) -> LifetimeEnd:
        assert record.identity is not None
        return replace(record, identity=replace(record.identity, **identity))  # type: ignore[arg-type]

    return then(on_kind(LifetimeStart, start), on_kind(LifetimeEnd, end))


@pytest.mark.parametrize(
    "change",
    [everywhere(model="/elsewhere/other.gguf"), everywhere(n_ctx=256), on_cell(ctx=1024)],
    ids=["another model", "another context", "another cell"],
)
def test_another_server_than_the_cell_names(
    change: Change, driver_evidence: DriverEvidence
) -> None:
    assert departures(recertify(change(driver_evidence.records))) == {"identity": FAIL}


def test_an_item_that_no_arm_ever_sent(driver_evidence: DriverEvidence) -> None:
    def gone(trial: Trial) -> None:
        return None

    records = recount(on_trials(lambda t: t.key.item == ITEM, gone)(driver_evidence.records))
    certificate = recertify(records)
    assert certificate.untested_ids == ("q05",)
    assert certificate.verdict is Verdict.UNVERIFIED


@pytest.mark.parametrize("ids", ["", None], ids=["none listed", "no list"])
def test_answers_without_their_token_ids(ids: str | None, driver_evidence: DriverEvidence) -> None:
    change = on_trials(lambda t: t.key.item == ITEM, with_result(token_ids=ids))
    certificate = recertify(change(driver_evidence.records))
    assert departures(certificate)["tokens"] is UNKNOWN
    assert certificate.claims.token is None


def test_a_character_cut_in_half_hides_tokens_but_a_whole_one_does_not(
    driver_evidence: DriverEvidence,
) -> None:
    for text, known in (("\u6c34", True), ("\ufffd", False)):
        change = then(
            on_trials(lambda t: t.key.item == ITEM, with_result(completion_tokens=30, text=text)),
            count_tokens,
        )
        outcome = departures(recertify(change(driver_evidence.records))).get("tokens")
        assert (outcome is None) is known


def test_a_counter_that_says_less_than_one_request_took() -> None:
    """Every wave takes one forward pass for 4 requests of 16 tokens."""
    certificate = recertify(Ideal([16] * 20, wave_decodes=lambda lengths: 1).records())
    assert certificate.verdict is Verdict.UNVERIFIED
    assert departures(certificate)["isolation"] is FAIL
    assert certificate.cobatch_coverage.n_co_batched == 0


def test_more_lanes_than_items_never_changes_the_companions() -> None:
    certificate = recertify(Ideal([24] * 8, n=9).records())
    assert certificate.overlap.n_different_passes < 2
    assert departures(certificate)["sample"] is FAIL


def test_only_a_neighbouring_lane_is_sure_to_share_the_products_under_split_kv() -> None:
    """Lanes 1 and 3 of each wave have ended when lanes 0 and 2 go on."""
    lengths = [40, 4] * 10
    certificate = recertify(Ideal(lengths, passes=4).records())
    long_rows = [row for row in certificate.rows if row.own_decodes == 40]
    assert all(row.proved_shared_decodes in (0, 4, 40) for row in long_rows)


def test_companions_of_the_control_that_differ(driver_evidence: DriverEvidence) -> None:
    change = on_trials(lambda t: t.key.arm is Arm.P and not t.perturbed, SCORE)
    certificate = recertify(change(driver_evidence.records))
    assert departures(certificate) == {"positive_control": FAIL}


def red(driver_evidence: DriverEvidence, *more: Change) -> str | None:
    """The class of a run whose item diverges in the wave pass, with further changes."""
    records = on_trials(in_arm(Arm.C, 0, ITEM), SCORE)(driver_evidence.records)
    lane = trial_of(records, in_arm(Arm.C, 0, ITEM)).lane
    certificate = recertify(then(confirmed((ITEM, lane)), *more)(records))
    assert certificate.verdict is Verdict.RED
    return certificate.divergence_class


def test_the_class_wants_everything_else_to_be_sound(driver_evidence: DriverEvidence) -> None:
    assert red(driver_evidence) == "co_batching"
    cached = on_trials(in_arm(Arm.C, 0, ITEM), with_result(cache_n=12))
    assert red(driver_evidence, cached) == "unattributed: isolation did not pass"
    no_b = on_trials(in_arm(Arm.B, 0, ITEM), lost())
    assert (red(driver_evidence, no_b) or "").startswith("unattributed: arm B does not cover")
    other = everywhere(model="/elsewhere/other.gguf")
    assert red(driver_evidence, other) == "unattributed: identity did not pass"


def test_the_proof_must_be_of_the_score_that_diverged(driver_evidence: DriverEvidence) -> None:
    records = then(
        on_trials(in_arm(Arm.C, 1, ITEM), SCORE),
        on_trials(in_arm(Arm.C, 0, 7), with_result(finish_reason="other")),
    )(driver_evidence.records)
    pairs = [
        (item, trial_of(records, in_arm(Arm.C, index, item)).lane)
        for index, item in ((1, ITEM), (0, 7))
    ]
    certificate = recertify(confirmed(*pairs)(records))
    unproved = "unattributed: no divergent trial is proved co-batched"
    assert certificate.divergence_class == unproved


def test_one_confirmation_sent_twice_confirms_one(driver_evidence: DriverEvidence) -> None:
    records = on_trials(
        lambda t: in_arm(Arm.C, 0, t.key.item)(t) and t.key.item in (ITEM, 7), SCORE
    )(driver_evidence.records)
    lane = trial_of(records, in_arm(Arm.C, 0, ITEM)).lane
    certificate = recertify(confirmed((ITEM, lane), (ITEM, lane))(records))
    assert (certificate.controls.confirm_wanted, certificate.controls.confirm_done) == (2, 1)
    assert certificate.divergence_class != "co_batching"


def test_the_bound_counts_distinct_prompts() -> None:
    certificate = recertify(Ideal([24] * 64, bodies=8).records())
    assert certificate.sensitivity.n_hot_prompts == 8
    assert certificate.sensitivity.prompt_rate_upper_bound_95 == pytest.approx(1 - 0.05 ** (1 / 8))


def test_an_unverified_run_claims_nothing_true(driver_evidence: DriverEvidence) -> None:
    def later(record: WaveEnd) -> WaveEnd:
        return replace(record, counters=replace(record.counters, decode_total=None))

    certificate = recertify(on_kind(WaveEnd, later)(driver_evidence.records))
    assert certificate.verdict is Verdict.UNVERIFIED
    assert (certificate.claims.score, certificate.claims.token) == (None, None)
    assert {row.witness for row in certificate.rows} == {None}
