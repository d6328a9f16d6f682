"""The certificate: its bytes, and every figure worked out again from the records."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.certificate import Certificate, cell_sha256, certify
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    FailureKind,
    Source,
    Status,
    Trial,
    Verdict,
)
from batch_invariance.invariance_diff.onlooker import Onlooker
from batch_invariance.invariance_diff.overlap import is_co_batched
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids, unpack_floats, unpack_ids
from batch_invariance.invariance_diff.records import (
    Event,
    Header,
    LifetimeStart,
    PassStart,
    Record,
    WaveEnd,
)
from batch_invariance.invariance_diff.sections import CLOCK_STEP_S
from batch_invariance.invariance_diff.stats import exact_zero_bound, rule_of_three
from core_fixtures import (
    EVIDENCE_NAME,
    SEED,
    SUBJECT,
    Change,
    Ideal,
    Records,
    confirmed,
    decode,
    encode,
    in_arm,
    lost,
    on_cell,
    on_header,
    on_kind,
    on_plan,
    on_trials,
    recertify,
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

ITEM = 5
SCORE = with_scored(score=0.5)


@pytest.fixture(scope="module")
def green(driver_evidence: DriverEvidence) -> Certificate:
    return recertify(driver_evidence.records)


def _trials(records: Records, *arms: Arm) -> list[Trial]:
    return [r for r in records if isinstance(r, Trial) and r.key.arm in arms]


def _tokens(trial: Trial) -> int:
    assert isinstance(trial.result, Completion)
    return trial.result.completion_tokens or 0


# Bytes.


def test_the_driver_and_a_second_derivation_agree_byte_by_byte(
    driver_evidence: DriverEvidence,
) -> None:
    name = json.loads(driver_evidence.certificate_bytes)["evidence"]["file"]
    again = certify(driver_evidence.lines, name)
    assert again.to_bytes() == driver_evidence.certificate_bytes


def test_the_bytes_are_sorted_json_with_one_newline(green: Certificate) -> None:
    data = green.to_bytes()
    document = json.loads(data)
    assert data == json.dumps(document, sort_keys=True, indent=2).encode("ascii") + b"\n"
    assert document == json.loads(json.dumps(green.to_json()))
    # A server of our own has no section about one of someone else, a cell alone none about a sweep.
    assert document.keys() == {f.name for f in fields(Certificate)} - {"endpoint", "shared_arms"}


def test_the_evidence_is_named_with_its_digest(driver_evidence: DriverEvidence) -> None:
    lines = driver_evidence.lines
    reference = certify(lines, "other.jsonl").evidence
    assert reference.file == "other.jsonl"
    assert reference.sha256 == sha256_hex(b"".join(lines))
    assert reference.records == len(lines)


REQUIRED = (
    "model", "ctx", "dispatch_n", "status", "source", "gate", "verdict", "decision_reasons",
    "gates", "divergence_class", "anomaly", "mismatch", "token_divergence_ids", "arm_b",
    "per_pass_ac_divergent", "per_pass_ac_token_only", "divergence_report", "overlap",
    "overlap_ok", "completion_floor", "cobatch_coverage", "sensitivity", "promotion_scope",
    "invariant_fields", "kv_label", "n_passes", "ts_utc", "rows", "cell_sha256", "subject",
    "observer", "workset_sha256", "schedule", "claims", "horizon", "throughput", "controls",
    "lost_trials", "untested_ids", "lifetimes", "evidence", "schema_version",
    "rules_version",
)  # fmt: skip


def test_the_fields_that_others_rely_on_are_there(green: Certificate) -> None:
    document = green.to_json()
    assert set(REQUIRED) <= document.keys()
    assert document["divergence_report"].keys() == {"AC", "AB", "BC", "AA"}
    assert {
        "pair", "n_compared", "n_divergent", "divergence_rate", "divergent_ids", "only_x",
        "only_y", "n_token_only", "token_divergence_ids", "per_id", "by_family", "by_fill",
        "logit_drift",
    } <= document["divergence_report"]["AC"].keys()  # fmt: skip
    assert {"gate", "outcome", "measured", "required"} <= document["gates"][0].keys()


def test_no_prompt_and_no_answer_is_in_the_certificate(driver_evidence: DriverEvidence) -> None:
    """Nor what a server said when it failed, nor the end of its log."""
    secret = "canary-7f3a"

    def speak(trial: Trial) -> Trial:
        return with_scored(extracted_answer=secret, expected_answer=secret)(
            with_result(text=f"{trial.key.pass_index} {secret}", reasoning=secret)(trial)
        )

    def asked(header: Header) -> Header:
        items = tuple(
            replace(
                item,
                messages=tuple(replace(m, content=m.content + secret) for m in item.messages),
                expected_answer=secret,
            )
            for item in header.workset.items
        )
        return replace(header, workset=replace(header.workset, items=items))

    change = then(
        on_header(asked),
        on_trials(lambda t: True, speak),
        on_trials(in_arm(Arm.B, 0, 1), lambda t: replace(lost()(t), result=_said(secret))),
        lambda records: (
            *records[:-1],
            Event("lost_trial", secret, Arm.B, 0),
            records[-1],
        ),
    )
    data = recertify(change(driver_evidence.records)).to_bytes()
    assert secret.encode() not in data


def _said(text: str) -> Failure:
    return Failure(FailureKind.HTTP_ERROR, text, 500)


# Figures.


def test_the_head_of_a_green_certificate(green: Certificate) -> None:
    assert (green.model, green.ctx, green.dispatch_n) == ("toy", 512, 4)
    assert (green.status, green.verdict, green.source) == (
        Status.GREEN,
        Verdict.GREEN,
        Source.LIVE,
    )
    assert green.promotable
    assert (green.schema_version, green.rules_version, green.gate) == (1, 2, "abc_union")
    assert (green.kv_label, green.n_passes) == ("f16/f16 split", 4)
    assert (green.divergence_class, green.anomaly, green.decision_reasons) == (None, None, ())
    assert green.arm_b.ab_passed
    assert green.arm_b.bc_passed
    assert (green.mismatch, green.token_divergence_ids) == ((), ())
    assert (green.per_pass_ac_divergent, green.per_pass_ac_token_only) == ({}, {})
    assert green.overlap_ok
    assert green.invariant_fields == rules.INVARIANT_FIELDS
    assert (green.lost_trials, green.untested_ids, green.events) == ((), (), ())
    assert green.subject == SUBJECT
    assert green.workset.n_items == 20
    assert green.workset.sha256 == green.workset_sha256
    assert [life.start.parallel for life in green.lifetimes] == [1, 4]
    assert [(life.exit_code, life.exit_signal) for life in green.lifetimes] == [(0, None)] * 2
    assert [life.identity_at_end for life in green.lifetimes] == [
        life.start.identity for life in green.lifetimes
    ]


def test_unified_kv_is_in_the_label(driver_evidence: DriverEvidence) -> None:
    change = on_cell(kv_unified=True, kv_type_k="q8_0", kv_type_v="q4_0")
    certificate = recertify(change(driver_evidence.records))
    assert certificate.kv_label == "q8_0/q4_0 unified"


def test_coverage_and_rows_follow_from_the_records(driver_evidence: DriverEvidence) -> None:
    records = driver_evidence.records
    certificate = recertify(records)
    best: dict[int, tuple[int, int]] = {}
    hot: dict[int, int] = {}
    decodes, wave = 0, list[Trial]()
    for record in records:
        if isinstance(record, PassStart):
            decodes, wave = record.counters.decode_total or 0, []
        elif isinstance(record, Trial):
            wave.append(record)
        elif isinstance(record, WaveEnd):
            now = record.counters.decode_total or 0
            for trial in wave if record.arm is Arm.C else []:
                own = _tokens(trial)
                longest = max(_tokens(t) for t in wave if t is not trial)
                shared = max(0, min(own, own - (now - decodes - longest)))
                best[trial.key.item] = max(best.get(trial.key.item, (0, 0)), (shared, own))
                if is_co_batched(own, shared):
                    hot[trial.key.item] = hot.get(trial.key.item, 0) + 1
            decodes, wave = now, []
    reference = {t.key.item: t for t in _trials(records, Arm.A)}
    for index, row in enumerate(certificate.rows):
        assert row.id == f"q{index:02d}"
        assert (row.n_c_compared, row.n_c_divergent) == (4, 0)
        assert (row.proved_shared_decodes, row.own_decodes) == best[index]
        assert row.n_c_co_batched == hot.get(index, 0)
        assert row.covered is (index in hot)
        assert row.witness == "decode_count"
        a = reference[index]
        assert isinstance(a.result, Completion)
        assert row.content_sha == sha256_hex(a.result.text.encode())
        assert row.score == (0.0 if index % 2 else None)
        assert (row.family, row.fill) == (
            "odd" if index % 2 else None,
            0.25 if index < 10 else None,
        )
    coverage = certificate.cobatch_coverage
    assert (coverage.n_ids, coverage.n_co_batched) == (20, len(hot))
    assert coverage.coverage_fraction == len(hot) / 20
    assert coverage.n_hot_trials == sum(hot.values())
    assert coverage.n_bodies == len(hot)
    assert coverage.n_tokens == sum(_tokens(reference[i]) for i in hot)
    assert coverage.uncovered_ids == tuple(f"q{i:02d}" for i in range(20) if i not in hot)
    assert (coverage.coverage_checked, coverage.attribution_certain) == (True, True)
    assert (coverage.required_co_batched, coverage.min_coverage_fraction) == (16, 0.8)
    spans = sorted(_tokens(reference[i]) for i in hot)
    assert certificate.horizon.n_ids == len(hot)
    assert certificate.horizon.total == sum(spans)
    assert (certificate.horizon.shortest, certificate.horizon.longest) == (spans[0], spans[-1])
    middle = len(spans) // 2
    median = spans[middle] if len(spans) % 2 else (spans[middle - 1] + spans[middle]) / 2
    assert certificate.horizon.median == median


def test_uncovered_ids_are_out_of_every_figure() -> None:
    """Items of 4 tokens share nothing that could be proved beside waves of max + 8 decodes."""
    run = Ideal([24] * 16 + [4] * 4, wave_decodes=lambda lengths: max(lengths) + 8)
    certificate = recertify(run.records())
    coverage = certificate.cobatch_coverage
    assert coverage.uncovered_ids == ("i16", "i17", "i18", "i19")
    assert (coverage.n_co_batched, coverage.n_bodies, coverage.n_tokens) == (16, 16, 16 * 24)
    # Of the 32 trials one has only short answers on its neighbouring lanes.
    assert coverage.n_hot_trials == certificate.sensitivity.n_hot_trials == 31
    assert certificate.horizon.shortest == 24
    assert [row.covered for row in certificate.rows] == [True] * 16 + [False] * 4
    assert certificate.rows[16].proved_shared_decodes == 0


def test_a_better_proof_replaces_a_weaker_one() -> None:
    """Pass 0 proves more than pass 2 or the other way round; the row keeps the best."""
    for late in (False, True):
        records = Ideal([24] * 20, passes=3).records()
        weaker = 2 if not late else 0
        spoiled = shift_decodes(
            lambda r, weaker=weaker: (
                3
                * (  # type: ignore[misc]
                    isinstance(r, WaveEnd) and (r.arm, r.pass_index) == (Arm.C, weaker)
                )
            )
        )
        rows = recertify(spoiled(records)).rows
        assert {row.proved_shared_decodes for row in rows} == {24}
        assert {row.n_c_co_batched for row in rows} == {2}


def test_throughput_follows_from_the_records(driver_evidence: DriverEvidence) -> None:
    def rate(*arms: Arm) -> float:
        tokens, seconds = 0, 0.0
        for arm in arms:
            for index in range(4):
                own = [
                    t for t in _trials(driver_evidence.records, arm) if t.key.pass_index == index
                ]
                if own:
                    tokens += sum(map(_tokens, own))
                    seconds += max(t.complete_ts for t in own) - min(t.dispatch_ts for t in own)
        return tokens / seconds

    found = recertify(driver_evidence.records).throughput
    assert found.serial_tokens_per_s is not None
    assert found.concurrent_tokens_per_s is not None
    assert found.speedup is not None
    assert math.isclose(found.serial_tokens_per_s, rate(Arm.A, Arm.A2))
    assert math.isclose(found.concurrent_tokens_per_s, rate(Arm.C))
    assert math.isclose(found.speedup, rate(Arm.C) / rate(Arm.A, Arm.A2))


def test_no_time_gives_no_throughput(driver_evidence: DriverEvidence) -> None:
    at_once = on_trials(lambda t: True, lambda t: replace(t, dispatch_ts=1.0, complete_ts=1.0))
    found = recertify(at_once(driver_evidence.records)).throughput
    assert (found.serial_tokens_per_s, found.concurrent_tokens_per_s, found.speedup) == (None,) * 3
    barely = on_trials(
        in_arm(Arm.C), lambda t: replace(t, dispatch_ts=1.0, complete_ts=1.0 + CLOCK_STEP_S / 9)
    )
    found = recertify(barely(driver_evidence.records)).throughput
    assert (found.concurrent_tokens_per_s, found.speedup) == (None, None)
    assert found.serial_tokens_per_s is not None


def test_sensitivity_of_a_clean_run() -> None:
    found = recertify(Ideal([24] * 20).records()).sensitivity
    assert (found.n_hot_trials, found.n_hot_prompts, found.n_ac_divergent) == (40, 20, 0)
    assert found.rate_upper_bound_95 == rule_of_three(40) == 3 / 40
    assert found.rate_upper_bound_95_exact == exact_zero_bound(40, 0.95)
    assert found.prompt_rate_upper_bound_95 == exact_zero_bound(20, 0.95)


@pytest.mark.parametrize(
    "change",
    [
        on_trials(in_arm(Arm.C, 0, ITEM), SCORE),
        on_trials(in_arm(Arm.C, 0, ITEM), with_result(finish_reason="x")),
        on_trials(in_arm(Arm.C), lost()),
    ],
    ids=["score", "token", "nothing compared"],
)
def test_no_bound_after_a_divergence(change: Change) -> None:
    found = recertify(change(Ideal([24] * 20).records())).sensitivity
    bounds = (
        found.rate_upper_bound_95,
        found.rate_upper_bound_95_exact,
        found.prompt_rate_upper_bound_95,
    )
    assert bounds == (None, None, None)


def test_the_completion_floor_in_figures(driver_evidence: DriverEvidence) -> None:
    change = then(
        on_trials(
            lambda t: t.key.item == 2 and t.key.arm is not Arm.WARMUP,
            with_scored(failure_mode="empty"),
        ),
        on_trials(
            lambda t: t.key.item == 3 and t.key.arm is Arm.B, with_scored(failure_mode="odd")
        ),
    )
    floor = recertify(change(driver_evidence.records)).completion_floor
    assert (floor.n_ok_a, floor.n_ok_b, floor.n_ok_c) == (19, 18, 76)
    assert floor.n_failure_a == {"empty": 1}
    assert floor.n_failure_b == {"empty": 1, "odd": 1}
    assert floor.n_failure_c == {"empty": 4}
    assert (floor.min_ok_fraction, floor.completion_floor_ok) == (0.8, True)
    none_ok = on_trials(lambda t: t.key.arm is not Arm.WARMUP, with_scored(failure_mode="empty"))
    floor = recertify(none_ok(driver_evidence.records)).completion_floor
    assert (floor.n_ok_a, floor.n_ok_c, floor.completion_floor_ok) == (0, 0, False)


def test_the_schedule_in_the_certificate(driver_evidence: DriverEvidence) -> None:
    certificate = recertify(driver_evidence.records)
    header = driver_evidence.records[0]
    assert isinstance(header, Header)
    assert certificate.schedule.seed == SEED
    assert certificate.schedule.passes == (
        "A0 serial listed",
        "A20 serial listed",
        "B0 serial listed",
        "C0 waves by_length",
        "C1 saturate seeded",
        "C2 waves seeded",
        "C3 saturate seeded",
    )
    fewer = recertify(without_pass(Arm.C, 3)(driver_evidence.records))
    assert fewer.schedule.digest != certificate.schedule.digest
    assert fewer.n_passes == 3


# Claims.


def _moved(trial: Trial) -> Trial:
    assert isinstance(trial.result, Completion)
    values = list(unpack_floats(trial.result.logprobs or ""))
    values[0] -= 0.5
    return with_result(logprobs=pack_floats(values))(trial)


@pytest.mark.parametrize(
    ("change", "score", "token", "bits"),
    [
        (None, True, True, True),
        (on_trials(in_arm(Arm.C, 0, ITEM), SCORE), False, True, True),
        (on_trials(in_arm(Arm.C, 0, ITEM), with_result(text="x")), None, False, None),
        (on_trials(in_arm(Arm.C, 0, ITEM), _moved), True, True, False),
        (on_trials(in_arm(Arm.C, 0, ITEM), with_result(logprobs=None)), True, True, None),
        (on_trials(in_arm(Arm.C), lost()), None, None, None),
        (
            on_trials(lambda t: t.key.item == ITEM, with_result(token_ids=None)),
            None,
            None,
            None,
        ),
    ],
    ids=["clean", "score", "token", "bits", "no logprobs", "nothing", "no tokens"],
)
def test_claims(
    change: Change | None, score: bool | None, token: bool | None, bits: bool | None
) -> None:
    records = Ideal([24] * 20).records()
    claims = recertify(records if change is None else change(records)).claims
    assert (claims.score, claims.token, claims.logprob_bits) == (score, token, bits)


def test_claims_are_the_same_armed_or_not() -> None:
    records = on_trials(in_arm(Arm.C, 0, ITEM), _moved)(Ideal([24] * 20).records())
    assert recertify(on_plan(logit_drift="9.0")(records)).claims == recertify(records).claims


# Scope.


def test_the_scope_names_the_cell(driver_evidence: DriverEvidence) -> None:
    change = on_cell(server_flags=("-fa", "off"), kv_type_v="q8_0", environment={"GGML_X": "1"})
    scope = recertify(change(driver_evidence.records)).promotion_scope
    valid = scope.valid_for
    assert (valid.model, valid.ctx, valid.dispatch_n) == ("toy", 512, 4)
    assert (valid.kv_type_k, valid.kv_type_v, valid.kv_unified) == ("f16", "q8_0", False)
    assert valid.server_flags == ("-fa", "off")
    assert valid.environment == {"GGML_X": "1"}
    assert (valid.temperature, valid.cache_prompt, valid.slots) == (0.0, False, "pinned")
    assert valid.schedule == ("saturate", "waves")
    assert scope.generalizes is False
    assert "no" in scope.note


def test_only_waves_in_the_scope_of_a_run_of_waves(driver_evidence: DriverEvidence) -> None:
    records = without_pass(Arm.C, 1, 3)(driver_evidence.records)
    assert recertify(records).promotion_scope.valid_for.schedule == ("waves",)


@pytest.mark.parametrize(("experts", "moe"), [(None, None), (0, False), (1, True), (8, True)])
def test_mixture_of_experts_is_read_from_the_header(
    experts: int | None, moe: bool | None, driver_evidence: DriverEvidence
) -> None:
    def told(header: Header) -> Header:
        model = replace(header.subject.model, expert_count=experts)
        return replace(header, subject=replace(header.subject, model=model))

    records = tuple(told(r) if isinstance(r, Header) else r for r in driver_evidence.records)
    assert recertify(records).promotion_scope.tested_model_looks_moe is moe


# The cell's digest.


def _digest(change: Change, driver_evidence: DriverEvidence) -> str:
    return cell_sha256(remeasure(change(driver_evidence.records)))


def _subject(**changes: object) -> Change:
    return on_header(lambda h: replace(h, subject=replace(h.subject, **changes)))  # type: ignore[arg-type]


def _sampling(**changes: int) -> Change:
    return on_header(
        lambda h: replace(h, plan=replace(h.plan, sampling=replace(h.plan.sampling, **changes)))
    )


def _launch(**changes: object) -> Change:
    return on_kind(LifetimeStart, lambda r: replace(r, **changes))


@pytest.mark.parametrize(
    "change",
    [
        on_cell(model="other"),
        on_cell(ctx=1024),
        on_cell(dispatch_n=5),
        on_cell(kv_type_k="q8_0"),
        on_cell(kv_type_v="q8_0"),
        on_cell(kv_unified=True),
        on_cell(server_flags=("-fa", "off")),
        on_cell(environment={"GGML_X": "1"}),
        _subject(server_version="another"),
        _subject(model=replace(SUBJECT.model, sha256="0" * 64)),
        _sampling(seed=1),
        _sampling(top_logprobs=9),
        _launch(executable_sha256="0" * 64),
        _launch(libraries={"libggml.so": "0" * 64}),
        on_kind(LifetimeStart, lambda r: replace(r, identity=replace(r.identity, build="b2"))),
    ],
)
def test_what_could_change_the_arithmetic_changes_the_cell(
    change: Change, driver_evidence: DriverEvidence
) -> None:
    plain = cell_sha256(remeasure(driver_evidence.records))
    assert _digest(change, driver_evidence) != plain


@pytest.mark.parametrize(
    "change",
    [
        on_header(lambda h: replace(h, ts_utc="2030-01-01T00:00:00Z")),
        on_header(lambda h: replace(h, workset=replace(h.workset, name="other"))),
        _subject(server_file="elsewhere/llama-server"),
        _launch(ts=9.0, argv=("llama-server", "--port", "1")),
        on_plan(schedule_seed=99),
    ],
)
def test_what_could_not_does_not(change: Change, driver_evidence: DriverEvidence) -> None:
    plain = cell_sha256(remeasure(driver_evidence.records))
    assert _digest(change, driver_evidence) == plain


# A divergence in the certificate.


def _diverging(pass_index: int, driver_evidence: DriverEvidence) -> Certificate:
    where = in_arm(Arm.C, pass_index, ITEM)

    def other(trial: Trial) -> Trial:
        assert isinstance(trial.result, Completion)
        ids = list(unpack_ids(trial.result.token_ids or ""))
        ids[2] = 999
        return SCORE(with_result(token_ids=pack_ids(ids), text="other")(trial))

    return recertify(on_trials(where, other)(driver_evidence.records))


def test_the_first_divergence_in_a_wave(driver_evidence: DriverEvidence) -> None:
    records = driver_evidence.records
    trial = trial_of(records, in_arm(Arm.C, 2, ITEM))
    mates = {
        t.item_id for t in _trials(records, Arm.C) if t.key.pass_index == 2 and t.wave == trial.wave
    } - {trial.item_id}
    certificate = _diverging(2, driver_evidence)
    (entry,) = certificate.divergence_report["AC"].per_id
    assert (entry.id, entry.item, entry.n_compared) == ("q05", ITEM, 4)
    assert (entry.n_score_divergent, entry.n_token_divergent) == (1, 1)
    found = entry.first_divergence
    assert (found.pass_index, found.occurrence, found.lane, found.wave) == (
        2,
        0,
        trial.lane,
        trial.wave,
    )
    assert set(found.companions) == mates
    assert found.companions == tuple(sorted(found.companions))
    assert (found.token_index, found.token_y) == (2, 999)
    assert isinstance(trial.result, Completion)
    assert found.token_x == unpack_ids(trial.result.token_ids or "")[2]
    assert found.margin_x is not None
    assert found.margin_x > 0
    assert certificate.per_pass_ac_divergent == {"2": ("q05",)}
    assert certificate.per_pass_ac_token_only == {}
    assert certificate.mismatch == certificate.token_divergence_ids == ("q05",)
    assert certificate.rows[ITEM].n_c_divergent == 1
    assert certificate.divergence_report["BC"].per_id[0].first_divergence.companions == (
        found.companions
    )
    report = certificate.divergence_report["AC"]
    assert report.by_family["odd"].n_divergent == 1
    assert report.by_fill["0.25"].n_divergent == 1
    assert report.divergence_rate == 1 / 20


def test_the_first_divergence_in_a_saturated_pass(driver_evidence: DriverEvidence) -> None:
    records = driver_evidence.records
    trial = trial_of(records, in_arm(Arm.C, 1, ITEM))
    met = {
        t.item_id
        for t in _trials(records, Arm.C)
        if t.key.pass_index == 1
        and t.dispatch_ts < trial.complete_ts
        and trial.dispatch_ts < t.complete_ts
    } - {trial.item_id}
    assert met
    (entry,) = _diverging(1, driver_evidence).divergence_report["AC"].per_id
    assert entry.first_divergence.wave is None
    assert set(entry.first_divergence.companions) == met


def test_only_the_first_diverging_trial_is_shown(driver_evidence: DriverEvidence) -> None:
    change = then(
        on_trials(in_arm(Arm.C, 1, ITEM), with_result(text="one")),
        on_trials(in_arm(Arm.C, 2, ITEM), with_result(text="two")),
    )
    certificate = recertify(change(driver_evidence.records))
    (entry,) = certificate.divergence_report["AC"].per_id
    assert entry.first_divergence.pass_index == 1
    assert entry.first_divergence.content_sha_y == sha256_hex(b"one")
    assert (entry.n_score_divergent, entry.n_token_divergent) == (0, 2)
    assert certificate.per_pass_ac_token_only == {"1": ("q05",), "2": ("q05",)}
    assert certificate.per_pass_ac_divergent == {}
    assert certificate.sensitivity.n_ac_divergent == 2


def test_controls_in_the_certificate(driver_evidence: DriverEvidence) -> None:
    records = driver_evidence.records
    planted = next(t for t in _trials(records, Arm.P) if t.perturbed)
    a = trial_of(records, in_arm(Arm.A, 0, planted.key.item))
    assert isinstance(a.result, Completion)
    controls = recertify(records).controls
    assert controls.planted_id == planted.item_id
    assert controls.banned_token == unpack_ids(a.result.token_ids or "")[0]
    assert (controls.token_sensitive, controls.score_sensitive) == (True, True)
    assert (controls.confirm_wanted, controls.confirm_done, controls.confirm_divergent) == (0, 0, 0)
    blind = on_trials(lambda t: t.perturbed, lambda t: replace(t, scored=a.scored))
    assert recertify(blind(records)).controls.score_sensitive is False


def test_only_what_diverged_counts_as_confirmed(driver_evidence: DriverEvidence) -> None:
    """A confirm trial of another item, or on another lane, confirms nothing."""
    where = in_arm(Arm.C, 0, ITEM)
    lane = trial_of(driver_evidence.records, where).lane
    records = on_trials(where, SCORE)(driver_evidence.records)

    def figures(*pairs: tuple[int, int]) -> tuple[int, int, int]:
        other = with_result(text="x")
        found = recertify(confirmed(*pairs, change=other)(records)).controls
        return found.confirm_wanted, found.confirm_done, found.confirm_divergent

    assert figures((ITEM, lane)) == (1, 1, 1)
    assert figures((ITEM, lane), (6, lane)) == (1, 1, 1)
    assert figures((ITEM, (lane + 1) % 4)) == (1, 0, 0)
    assert figures((6, lane)) == (1, 0, 0)


def test_events_are_kept_but_for_lost_trials(driver_evidence: DriverEvidence) -> None:
    records = driver_evidence.records
    more = (*records[:-1], Event("no_control", "x"), Event("lost_trial", "y"), records[-1])
    assert [e.what for e in recertify(more).events] == ["no_control"]


def test_an_unanswered_reference_has_no_digest() -> None:
    records = on_trials(in_arm(Arm.A, 0, 3), lost())(Ideal([24] * 20).records())
    rows = recertify(records).rows
    assert (rows[3].content_sha, rows[3].score, rows[3].n_c_compared) == (None, None, 0)
    assert rows[4].content_sha is not None
    assert rows[4].score == 1.0


def test_lines_may_come_from_a_stream() -> None:
    lines = encode(Ideal([8] * 8).records())
    assert certify(iter(lines), EVIDENCE_NAME) == certify(lines, EVIDENCE_NAME)


class Watching(Onlooker):
    def __init__(self) -> None:
        self.seen: list[Record] = []

    def feed(self, record: Record) -> None:
        self.seen.append(record)


def test_an_onlooker_is_shown_every_record_of_a_certificate() -> None:
    lines = encode(Ideal([8] * 8).records())
    watching = Watching()
    certificate = certify(lines, EVIDENCE_NAME, watching)
    assert tuple(watching.seen) == decode(lines)
    assert certificate == certify(lines, EVIDENCE_NAME)
