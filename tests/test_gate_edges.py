"""The edges of each gate: the last value that passes and the first that does not.

Every test names the gate that it asserts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.contamination import Donor, DonorKind
from batch_invariance.invariance_diff.facts import ContaminatedTrial, Facts
from batch_invariance.invariance_diff.gates import GateResult, evaluate, examine
from batch_invariance.invariance_diff.gates_server import check_identity, file_name
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import Arm, Completion, Outcome, Trial, Verdict
from batch_invariance.invariance_diff.packed import (
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from batch_invariance.invariance_diff.proof import Overlap, coverage_of, overlap_of
from batch_invariance.invariance_diff.reading import Reading
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    Event,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
)
from batch_invariance.invariance_diff.verdict import divergence_class
from core_fixtures import (
    Change,
    Ideal,
    Records,
    at_end_of,
    confirmed,
    in_arm,
    lost,
    measured,
    on_cell,
    on_kind,
    on_plan,
    on_trials,
    outcomes,
    reason,
    recertify,
    shift_decodes,
    then,
    trial_of,
    with_result,
    with_scored,
)

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
ITEM = 3
LENGTHS = (14, 9, 12, 16, 11, 13, 10, 15, 12, 14)


def ideal(**changes: Any) -> Records:
    return Ideal(LENGTHS, **{"n": 3, "passes": 2, **changes}).records()


def run(*changes: Change, **ideal_changes: Any) -> Certificate:
    return recertify(then(*changes)(ideal(**ideal_changes)))


def every(arm: Arm, fn: Callable[[Trial], Trial | None]) -> Change:
    return on_trials(lambda t: t.key.arm is arm, fn)


# F1_overlap.


def test_f1_overlap_passes_with_two_in_flight_where_n_is_two() -> None:
    certificate = run(n=2)
    assert outcomes(certificate)["F1_overlap"] is PASS
    assert (certificate.overlap.client_max_overlap_depth, certificate.overlap.tested_n) == (2, 2)
    assert certificate.overlap.server_peak_busy_slots == 2
    assert certificate.overlap_ok


def _by_pass(change: Callable[[int, Any], Any]) -> Overlap:
    """The overlap of a run whose passes of C were changed by their index."""
    facts = measure(ideal(passes=3))
    facts.passes = [change(p.pass_index, p) if p.arm is Arm.C else p for p in facts.passes]
    return overlap_of(facts)


@pytest.mark.parametrize("best", [0, 1, 2])
def test_overlap_is_that_of_the_best_pass(best: int) -> None:
    def of(name: str, high: int, low: int) -> Overlap:
        return _by_pass(lambda i, p: replace(p, **{name: high if i == best else low}))

    assert of("client_depth", 3, 1).client_max_overlap_depth == 3
    assert of("slot_peak", 5, 1).server_peak_busy_slots == 5
    assert of("decode_peak", 3, 1).tested_n == 3
    assert of("decode_peak", 3, 1).server_peak_busy_slots == 3


@pytest.mark.parametrize("best", [0, 1, 2])
def test_overlap_by_the_log_of_one_pass(best: int) -> None:
    def logged(index: int, p: Any) -> Any:
        return replace(p, decode_peak=None, log_peak=3 if index == best else 1)

    overlap = _by_pass(logged)
    assert (overlap.tested_n, overlap.server_peak_busy_slots) == (3, 3)
    assert overlap.overlap_ok


@pytest.mark.parametrize(("depth", "busy", "ok"), [(2, 2, True), (1, 2, False), (2, 1, False)])
def test_overlap_is_not_ok_for_a_cell_of_one(depth: int, busy: int, ok: bool) -> None:
    """The log proves a batch of one: still two must have met, by both accounts."""
    facts = measure(then(on_cell(dispatch_n=1))(ideal()))
    seen = {"client_depth": depth, "decode_peak": None, "slot_peak": busy, "log_peak": 1}
    facts.passes = [replace(p, **seen) if p.arm is Arm.C else p for p in facts.passes]
    assert overlap_of(facts).overlap_ok is ok


def test_overlap_of_the_best_warm_up_wave() -> None:
    """The launches warm up with waves of their own; the larger one counts."""

    def warm(peaks: tuple[int, int]) -> int | None:
        facts = measure(ideal())
        facts.passes = [
            replace(p, decode_peak=peaks[p.pass_index]) if p.arm is Arm.WARMUP else p
            for p in facts.passes
        ]
        return overlap_of(facts).warmup_peak

    assert warm((1, 3)) == 3
    assert warm((3, 1)) == 3


# F2_completion_floor.


def _modes(a: dict[str, int], c: dict[str, int]) -> GateResult:
    facts = measure(ideal())
    facts.failure_modes = {"A": a, "C": c}
    return next(r for r in evaluate(examine(facts)) if r.gate == "F2_completion_floor")


def test_f2_completion_floor_holds_in_each_arm_alone() -> None:
    assert _modes({"ok": 8, "empty": 2}, {"ok": 4, "empty": 1}).outcome is PASS
    for a, c in (((7, 3), (10, 0)), ((10, 0), (7, 3)), ((0, 1), (10, 0)), ((10, 0), (0, 1))):
        modes = [{"ok": ok, "empty": no} if ok else {"empty": no} for ok, no in (a, c)]
        row = _modes(*modes)
        assert (row.outcome, row.reason) == (FAIL, "completion_floor")
        assert row.measured == f"A {a[0]}/{sum(a)} ok, C {c[0]}/{sum(c)} ok"


def test_f2_completion_floor_of_nothing_is_unknown() -> None:
    for a, c in (({}, {"ok": 9}), ({"ok": 9}, {}), ({"ok": 9}, {"ok": 0})):
        row = _modes(a, c)
        assert (row.outcome, row.reason) == (UNKNOWN, "nothing_scored")


# F3_coverage.


def test_f3_coverage_of_a_work_set_without_items_is_none() -> None:
    facts = measure(ideal())
    workset = replace(facts.header.workset, items=())
    facts.header, facts.items = replace(facts.header, workset=workset), []
    coverage = coverage_of(facts, overlap_of(facts))
    assert (coverage.n_ids, coverage.coverage_fraction, coverage.n_co_batched) == (0, 0.0, 0)
    assert not coverage.cobatch_coverage_ok
    assert coverage.uncovered_ids == ()


def test_f3_coverage_names_what_is_missing() -> None:
    facts = measure(every(Arm.C, lambda t: lost()(t) if t.key.item == ITEM else t)(ideal()))
    coverage = coverage_of(facts, overlap_of(facts))
    assert coverage.uncovered_ids == (f"i{ITEM}",)
    assert (coverage.n_missing_interval, coverage.n_co_batched) == (1, len(LENGTHS) - 1)
    assert coverage.coverage_checked
    facts.passes = [p for p in facts.passes if p.arm is not Arm.C]
    assert not coverage_of(facts, overlap_of(facts)).coverage_checked


# F4_logit_drift.


def _moved(by: float, what: str = "logprobs") -> Change:
    def moved(trial: Trial) -> Trial:
        assert isinstance(trial.result, Completion)
        values = list(unpack_floats(getattr(trial.result, what)))
        values[4] += by
        return with_result(**{what: pack_floats(values)})(trial)

    return on_trials(in_arm(Arm.C, 1, ITEM), moved)


def _swapped_alternative(trial: Trial) -> Trial:
    """The runner-up of one position is another token with the same logprob: nothing measurable
    moved, and yet not the same."""
    assert isinstance(trial.result, Completion)
    ids = list(unpack_ids(trial.result.top_ids or ""))
    ids[3] += 1000
    return with_result(top_ids=pack_ids(ids))(trial)


@pytest.mark.parametrize(
    ("armed", "change", "outcome"),
    [
        ("bits", None, PASS),
        ("bits", _moved(2.0**-20), FAIL),
        ("bits", on_trials(in_arm(Arm.C, 1, ITEM), _swapped_alternative), FAIL),
        ("0.5", None, PASS),
        ("0.5", _moved(0.5), PASS),
        ("0.5", _moved(-0.5), PASS),
        ("0.5", _moved(0.625), FAIL),
        ("0", _moved(2.0**-20), FAIL),
        ("0", on_trials(in_arm(Arm.C, 1, ITEM), _swapped_alternative), PASS),
        ("0", None, PASS),
    ],
)
def test_f4_logit_drift(armed: str, change: Change | None, outcome: Outcome) -> None:
    certificate = run(on_plan(logit_drift=armed), *([change] if change else []))
    assert outcomes(certificate)["F4_logit_drift"] is outcome
    expected = None if outcome is PASS else "logit_drift"
    assert reason(certificate, "F4_logit_drift") == expected


# control_b, tokens, positive_control.


@pytest.mark.parametrize("arm", [Arm.A, Arm.B, Arm.C])
def test_control_b_needs_both_comparisons(arm: Arm) -> None:
    certificate = run(every(arm, lost()))
    assert outcomes(certificate)["control_b"] is UNKNOWN
    assert reason(certificate, "control_b") == "arm_b_missing"


def test_control_b_that_agrees_says_so() -> None:
    certificate = run()
    assert outcomes(certificate)["control_b"] is PASS
    text = "AB 0 score / 0 token-only, BC 0 score / 0 token-only"
    assert measured(certificate, "control_b") == text


def test_control_b_counts_scores_and_tokens_apart() -> None:
    other = on_trials(in_arm(Arm.B, 0, ITEM), with_result(text="other"))
    certificate = run(other, on_trials(in_arm(Arm.B, 0, ITEM + 1), with_scored(score=0.5)))
    text = "AB 1 score / 1 token-only, BC 1 score / 1 token-only"
    assert measured(certificate, "control_b") == text
    assert reason(certificate, "control_b") == "AC_agree_B_disagrees"


def test_tokens_of_nothing_are_unknown() -> None:
    certificate = run(every(Arm.C, lost()))
    assert outcomes(certificate)["tokens"] is UNKNOWN
    assert reason(certificate, "tokens") == "nothing_compared"


def test_tokens_of_one_comparison_are_known() -> None:
    certificate = run(on_trials(lambda t: t.key.arm is Arm.C and t.key.item != ITEM, lost()))
    assert certificate.divergence_report["AC"].n_compared == 2
    assert outcomes(certificate)["tokens"] is PASS


@pytest.mark.parametrize("differs", [False, True])
def test_positive_control_and_its_companions(differs: bool) -> None:
    companion = on_trials(
        lambda t: t.key.arm is Arm.P and t.key.item == 1, with_result(text="other")
    )
    certificate = run(*([companion] if differs else []))
    assert outcomes(certificate)["positive_control"] is (FAIL if differs else PASS)
    expected = "companions_diverged" if differs else None
    assert reason(certificate, "positive_control") == expected


def test_positive_control_is_not_troubled_by_a_divergence_that_c_shows() -> None:
    def other(arm: Arm, change: Any) -> Change:
        return on_trials(lambda t: t.key.arm is arm and t.key.item == 1, change)

    companion = other(Arm.P, with_result(text="other"))
    for shown in (with_result(text="third"), with_scored(score=0.5)):
        certificate = run(companion, other(Arm.C, shown))
        assert outcomes(certificate)["positive_control"] is PASS


# completeness.


def _confirm(change: Any = None) -> Certificate:
    records = on_trials(in_arm(Arm.C, 0, ITEM), with_scored(score=0.5))(ideal())
    lane = trial_of(records, in_arm(Arm.C, 0, ITEM)).lane
    return recertify(confirmed((ITEM, lane), change=change)(records))


def test_completeness_counts_a_lost_confirm_trial_as_done() -> None:
    """That it was lost is said by the gate `lost`."""
    for certificate in (_confirm(), _confirm(lost())):
        assert outcomes(certificate)["completeness"] is PASS
        assert certificate.controls.confirm_wanted == 1


def test_completeness_does_not_count_other_losses_as_confirmed() -> None:
    change = on_trials(in_arm(Arm.C, 0, ITEM), with_scored(score=0.5))
    certificate = run(change, on_trials(in_arm(Arm.B, 0, 1), lost()))
    assert outcomes(certificate)["completeness"] is FAIL
    assert measured(certificate, "completeness") == "0 of 1 confirm trials"


def test_completeness_names_four_faults() -> None:
    records = ideal()
    events = tuple(Event("stopped", f"reason {i}") for i in range(6))
    certificate = recertify((*records[:-1], *events, records[-1]))
    text = "; ".join(f"stopped: reason {i}" for i in range(4))
    assert measured(certificate, "completeness") == text


# isolation.


def test_isolation_of_no_answer_is_unknown() -> None:
    certificate = run(on_trials(lambda t: t.key.arm is not Arm.WARMUP, lost()))
    assert outcomes(certificate)["isolation"] is UNKNOWN
    assert reason(certificate, "isolation") == "nothing_checked"


def test_isolation_of_one_answer_is_known() -> None:
    change = on_trials(
        lambda t: t.key.arm is not Arm.WARMUP and t.key != trial_of(ideal(), in_arm(Arm.A, 0)).key,
        lost(),
    )
    certificate = run(change)
    assert outcomes(certificate)["isolation"] is PASS
    assert measured(certificate, "isolation").startswith("1 responses")


def test_isolation_asks_no_sum_of_a_pass_with_a_loss() -> None:
    certificate = run(on_trials(in_arm(Arm.C, 0, ITEM), lost()))
    assert outcomes(certificate)["isolation"] is PASS


@pytest.mark.parametrize("twice", [False, True], ids=["missing", "unplanned"])
def test_isolation_asks_no_token_count_of_a_pass_that_is_incomplete(twice: bool) -> None:
    """That the pass did not go as planned is said by the gate `completeness`."""
    records = ideal()
    place = next(i for i, r in enumerate(records) if isinstance(r, Trial) and _in_c(r))
    again = (records[place],) * 2 if twice else ()
    certificate = recertify((*records[:place], *again, *records[place + 1 :]))
    assert outcomes(certificate)["completeness"] is FAIL
    assert outcomes(certificate)["isolation"] is PASS


def _in_c(trial: Trial) -> bool:
    return in_arm(Arm.C, 1, ITEM)(trial) is True


def _counters(name: str, value: Callable[[int], int | None], arm: Arm = Arm.C) -> Change:
    """Another reading of one counter at the end of the last pass of an arm."""

    def changed(record: PassEnd) -> PassEnd:
        if record.arm is not arm or record.pass_index != (1 if arm is Arm.C else 0):
            return record
        now = value(getattr(record.counters, name))
        return replace(record, counters=replace(record.counters, **{name: now}))

    return on_kind(PassEnd, changed)


def test_isolation_needs_the_count_of_generated_tokens() -> None:
    certificate = run(_counters("predicted_total", lambda n: None))
    assert outcomes(certificate)["isolation"] is UNKNOWN
    text = "no count of generated tokens for arm C pass 1"
    assert measured(certificate, "isolation") == text


@pytest.mark.parametrize("by", [-1, 1])
def test_isolation_compares_the_prompt_tokens_that_were_read(by: int) -> None:
    certificate = run(_counters("prompt_total", lambda n: n + by))
    assert outcomes(certificate)["isolation"] is FAIL
    n = 40 * len(trials_of_c(ideal()))
    text = f"the server read {n + by} prompt tokens, its requests have {n}"
    assert text in measured(certificate, "isolation")


def trials_of_c(records: Records) -> list[Trial]:
    return [
        r for r in records if isinstance(r, Trial) and (r.key.arm, r.key.pass_index) == (Arm.C, 1)
    ]


def test_isolation_asks_no_prompt_count_that_one_side_does_not_have() -> None:
    uncounted = _counters("prompt_total", lambda n: None)
    assert outcomes(run(uncounted))["isolation"] is PASS
    unsaid = on_trials(in_arm(Arm.C, 1, ITEM), with_result(prompt_tokens=None))
    assert outcomes(run(unsaid))["isolation"] is PASS


def _extra(**by_arm: int) -> Certificate:
    """A run whose serial arms take so many forward passes more than their tokens."""
    changes = [shift_decodes(at_end_of(Arm(arm), 0, n)) for arm, n in by_arm.items() if n]
    return run(*changes)


@pytest.mark.parametrize(
    ("extra", "faults"),
    [
        ({"A": 2, "A2": 2, "B": 2}, ""),
        ({"A": 2, "A2": 2, "B": 1}, ""),
        ({"A": 2, "A2": 2}, ""),
        ({"A": 2, "A2": 1}, "A and its repeat differ in decodes by 1"),
        ({"A": 2, "A2": 3}, "A and its repeat differ in decodes by 1"),
        ({"A": 2, "A2": 2, "B": 3}, "arm B pass 0 took 3 decodes more than its requests explain"),
    ],
)
def test_isolation_of_the_decodes_of_prompts(extra: dict[str, int], faults: str) -> None:
    certificate = _extra(**extra)
    assert outcomes(certificate)["isolation"] is (FAIL if faults else PASS)
    if faults:
        assert measured(certificate, "isolation") == faults


@pytest.mark.parametrize(("extra", "enough"), [(12, True), (13, False)])
def test_isolation_explains_a_decode_of_arm_a_by_32_prompt_tokens(extra: int, enough: bool) -> None:
    """Ten prompts of 40 tokens: 400 // 32 is 12."""
    certificate = _extra(A=extra, A2=extra)
    assert outcomes(certificate)["isolation"] is (PASS if enough else FAIL)
    if not enough:
        text = "arm A pass 0 took 13 decodes more than its requests explain"
        assert text in measured(certificate, "isolation")


def test_isolation_of_prompts_of_31_tokens() -> None:
    """310 // 32 is 9."""
    changes = [shift_decodes(at_end_of(arm, 0, 10)) for arm in (Arm.A, Arm.A2)]
    certificate = run(*changes, prompt_tokens=31)
    assert outcomes(certificate)["isolation"] is FAIL


@pytest.mark.parametrize(("chunks", "outcome"), [(1, PASS), (2, FAIL)])
def test_isolation_allows_a_wave_of_one_item_its_chunks_each_time(
    chunks: int, outcome: Outcome
) -> None:
    """A server that batches nothing and reads the prompt in `chunks` more passes than arm A did:
    the wave sends the one item twice, so twice A's one further pass is explained."""
    records = Ideal([24], n=2, passes=1, chunks=1, wave_decodes=sum).records()
    more = 2 * (chunks - 1)
    if more:
        records = shift_decodes(at_end_of(Arm.C, 0, more))(records)
    certificate = recertify(records)
    assert certificate.per_pass_ac_divergent == {}
    assert outcomes(certificate)["isolation"] is outcome


# identity.


def _identity(change: Callable[[Facts], None], **ideal_changes: Any) -> Reading:
    facts = measure(ideal(**ideal_changes))
    change(facts)
    return check_identity(facts)


@pytest.mark.parametrize(
    ("key", "socket", "outcome"),
    [
        (True, True, PASS),
        (True, False, PASS),
        (True, None, PASS),
        (False, True, PASS),
        (False, False, UNKNOWN),
        (False, None, UNKNOWN),
    ],
)
def test_identity_is_proved_by_the_key_or_the_socket(
    key: bool, socket: bool | None, outcome: Outcome
) -> None:
    certificate = run(
        on_kind(LifetimeStart, lambda r: replace(r, key_enforced=key, socket_owned=socket))
        if (key, socket) != (True, True)
        else lambda records: records
    )
    assert outcomes(certificate)["identity"] is outcome


@pytest.mark.parametrize(("factor", "outcome"), [(3, PASS), (1, FAIL)])
def test_identity_of_a_unified_cache_has_the_context_of_all_slots(
    factor: int, outcome: Outcome
) -> None:
    def of_all(record: Any) -> Any:
        n_ctx = 512 * (factor if record.index == 1 else 1)
        record = replace(record, identity=replace(record.identity, n_ctx=n_ctx))
        return replace(record, n_ctx=n_ctx) if isinstance(record, LifetimeStart) else record

    def both(records: Records) -> Records:
        kinds = (LifetimeStart, LifetimeEnd)
        return tuple(of_all(r) if isinstance(r, kinds) else r for r in records)

    certificate = run(on_cell(kv_unified=True), both)
    assert outcomes(certificate)["identity"] is outcome


def _cut(facts: Facts) -> None:
    facts.lifetimes[0].end, facts.lifetimes[0].cut_off = None, True


def _silent_end(facts: Facts) -> None:
    end = facts.lifetimes[0].end
    assert end is not None
    facts.lifetimes[0].end = replace(end, identity=None)


def _silent_end_of_one_cut_off(facts: Facts) -> None:
    _silent_end(facts)
    facts.lifetimes[0].cut_off = True


def _no_end(facts: Facts) -> None:
    facts.lifetimes[0].end = None


def test_identity_at_the_end_is_asked_of_a_launch_that_was_not_cut_off() -> None:
    text = "2 launches, all as asked"
    assert _identity(lambda facts: None) == Reading(PASS, text)
    assert _identity(_cut) == Reading(PASS, f"{text}, 1 of them cut off by an interruption")
    assert _identity(_silent_end_of_one_cut_off).outcome is PASS
    for change in (_silent_end, _no_end):
        assert _identity(change).outcome is UNKNOWN
        assert _identity(change).measured == "launch 0 was not asked again at its end"


def test_identity_that_changes_within_a_launch() -> None:
    def other(record: LifetimeEnd) -> LifetimeEnd:
        assert record.identity is not None
        return replace(record, identity=replace(record.identity, chat_template_sha256="0" * 64))

    certificate = run(on_kind(LifetimeEnd, lambda r: other(r) if r.index == 1 else r))
    assert outcomes(certificate)["identity"] is FAIL
    text = "launch 1 changed what it says of itself while it ran"
    assert measured(certificate, "identity") == text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/other/mock-model.gguf", "2 launches, all as asked"),
        (
            "/models/other.gguf",
            "launch 1 serves another model than mock-model.gguf; "
            "the model differs between launches",
        ),
    ],
)
def test_identity_of_the_model_is_its_file_name_between_launches(path: str, text: str) -> None:
    """A run that was resumed may have its model, the same by its digest, in another folder."""

    def moved(record: Any) -> Any:
        if record.index == 0:
            return record
        return replace(record, identity=replace(record.identity, model=path))

    certificate = run(on_kind(LifetimeStart, moved), on_kind(LifetimeEnd, moved))
    assert measured(certificate, "identity") == text
    assert outcomes(certificate)["identity"] is (PASS if text.startswith("2") else FAIL)


@pytest.mark.parametrize("path", ["m.gguf", "/a/m.gguf", "C:\\a\\m.gguf", "a/b\\m.gguf"])
def test_identity_knows_a_file_name_of_any_system(path: str) -> None:
    assert file_name(path) == "m.gguf"


# The class of a RED.


def _red() -> Facts:
    records = on_trials(in_arm(Arm.C, 0, ITEM), with_scored(score=0.5))(ideal())
    lane = trial_of(records, in_arm(Arm.C, 0, ITEM)).lane
    return measure(confirmed((ITEM, lane))(records))


def _class_with(gate: str, outcome: Outcome) -> str | None:
    examined = examine(_red())
    results = tuple(
        replace(r, outcome=outcome) if r.gate == gate else r for r in evaluate(examined)
    )
    return divergence_class(examined, results, Verdict.RED)


@pytest.mark.parametrize("outcome", [FAIL, UNKNOWN])
@pytest.mark.parametrize("gate", ["completeness", "lost", "isolation", "identity"])
def test_nothing_is_attributed_without(gate: str, outcome: Outcome) -> None:
    assert _class_with(gate, PASS) == "co_batching"
    assert _class_with(gate, outcome) == f"unattributed: {gate} did not pass"


@pytest.mark.parametrize("verdict", Verdict)
def test_contamination_is_named_whatever_the_colour(verdict: Verdict) -> None:
    facts = _red()
    donors = (Donor("i1", DonorKind.PROMPT, 40, 0),)
    facts.contaminated.append(ContaminatedTrial("i3", 0, 0, 1, donors))
    examined = examine(facts)
    assert divergence_class(examined, evaluate(examined), verdict) == "contamination"


def test_the_positive_control_that_was_planned_without_a_trial_is_missing() -> None:
    certificate = run(every(Arm.P, lambda t: lost()(t) if t.perturbed else t))
    assert any(isinstance(r, ControlPlan) for r in ideal())
    assert outcomes(certificate)["positive_control"] is UNKNOWN
    assert reason(certificate, "positive_control") == "control_missing"
