"""Each gate of an endpoint by itself: one change to a GREEN run, one gate that leaves PASS.

The evidence is that of a real run of the driver against a server that looks like vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from batch_invariance.cli.main import main
from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.endpoint import Engine
from batch_invariance.invariance_diff.gates import GATES
from batch_invariance.invariance_diff.gates_endpoint import ENDPOINT_GATES
from batch_invariance.invariance_diff.gauge import proves_company, read_gauge
from batch_invariance.invariance_diff.model import Arm, Completion, Outcome, Source, Trial, Verdict
from batch_invariance.invariance_diff.packed import (
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from batch_invariance.invariance_diff.records import (
    Counters,
    Footer,
    GaugeSamples,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    ServerSaid,
    WaveEnd,
)
from batch_invariance.invariance_diff.verify import verify_certificate
from core_fixtures import (
    COLOURS,
    Change,
    Records,
    at_end_of,
    decode,
    departures,
    encode,
    in_arm,
    lost,
    measured,
    mutate,
    on_header,
    on_kind,
    on_plan,
    on_trials,
    outcomes,
    reason,
    recertify,
    recount,
    shift_decodes,
    then,
    trial_of,
    with_result,
    with_scored,
    without_pass,
)
from fake_endpoints import KEY, MODEL, FakeEndpoint, Plan, Surface

FAIL, UNKNOWN, NA = Outcome.FAIL, Outcome.UNKNOWN, Outcome.NOT_APPLICABLE
N_ITEMS = 11
ITEM = 5
UNCONFIRMED = on_plan(confirm_limit=0)


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The records of a GREEN run of 11 items at N=4."""
    folder = tmp_path_factory.mktemp("endpoint")
    entries = [
        {"id": f"q{i}", "prompt": f"Question {i}: " + "word " * (3 + i % 5)} for i in range(N_ITEMS)
    ]
    (folder / "w.json").write_text(json.dumps(entries), "utf-8")
    (folder / "key").write_text(KEY, "utf-8")
    with FakeEndpoint(Plan(Surface.VLLM)) as server:
        words = ["certify-endpoint", "--url", server.url, "--model", MODEL, "--quiet"]
        words += ["--workset", str(folder / "w.json"), "--concurrency", "4", "--passes", "2"]
        words += ["--max-tokens", "12", "--api-key-file", str(folder / "key")]
        assert main([*words, "--out-dir", str(folder)]) == 0
    evidence = next(folder.glob("*.evidence.jsonl"))
    return decode(evidence.read_bytes().splitlines(keepends=True))


def _one(arm: Arm, change: Callable[[Trial], Trial | None]) -> Change:
    return on_trials(in_arm(arm, 0, ITEM), change)


def _everywhere(change: Callable[[Trial], Trial]) -> Change:
    return on_trials(lambda t: t.key.arm is not Arm.WARMUP, change)


def _other_token(trial: Trial) -> Trial:
    assert isinstance(trial.result, Completion)
    ids = list(unpack_ids(trial.result.token_ids or ""))
    ids[3] += 1
    return with_result(token_ids=pack_ids(ids))(trial)


def _moved_logprob(trial: Trial) -> Trial:
    assert isinstance(trial.result, Completion)
    values = list(unpack_floats(trial.result.logprobs or ""))
    values[2] += 0.5
    return with_result(logprobs=pack_floats(values))(trial)


def _counters(**changes: int | None) -> Change:
    """Sets counters to what is given, in every reading."""
    return on_kind(
        (PassStart, WaveEnd, PassEnd), lambda r: replace(r, counters=replace(r.counters, **changes))
    )


def _gained(name: str, arm: Arm, pass_index: int, extra: int) -> Change:
    """Has a counter gain so much more in one pass, and so in every later reading."""

    def changed(records: Records) -> Records:
        total, out = 0, []
        for record in records:
            if isinstance(record, (PassStart, WaveEnd, PassEnd)):
                ends = isinstance(record, PassEnd)
                total += extra * (ends and (record.arm, record.pass_index) == (arm, pass_index))
                value = getattr(record.counters, name)
                counters = replace(record.counters, **{name: value + total})
                record = replace(record, counters=counters)
            out.append(record)
        return tuple(out)

    return changed


def _no_polls(records: Records) -> Records:
    return mutate(records, lambda r: None if isinstance(r, GaugeSamples) else r)


def _blunted(records: Records) -> Records:
    """Passes of C take a third more forward passes, so that none need have held four."""

    def extra(record: Record) -> int:
        if isinstance(record, WaveEnd) and record.arm is Arm.C:
            return 5
        saturated = isinstance(record, PassEnd) and (record.arm, record.pass_index) == (Arm.C, 1)
        return 20 if saturated else 0

    return then(_no_polls, shift_decodes(extra))(records)


def _two_waves_counted(records: Records) -> Records:
    none = Counters(None, None, None)

    def changed(record: Record) -> Record:
        kept = isinstance(record, WaveEnd) and (record.pass_index, record.wave) in ((0, 0), (0, 1))
        if isinstance(record, WaveEnd) and record.arm is Arm.C and not kept:
            return replace(record, counters=none)
        return record

    return mutate(records, changed)


def _said(at_end: bool, **facts: str | None) -> Change:
    def changed(record: ServerSaid) -> ServerSaid:
        if record.at_end is not at_end:
            return record
        merged: dict[str, Any] = {**record.facts, **facts}
        return replace(record, facts={k: v for k, v in merged.items() if v is not None})

    return on_kind(ServerSaid, changed)


def _identity(**changes: object) -> Change:
    return then(
        on_kind(LifetimeStart, lambda r: replace(r, identity=replace(r.identity, **changes))),
        on_kind(LifetimeEnd, lambda r: replace(r, identity=replace(r.identity, **changes))),
    )


def _unseen_control(records: Records) -> Records:
    """The planted request answers as arm A does."""
    planted = trial_of(records, lambda t: t.perturbed)
    a = trial_of(records, in_arm(Arm.A, 0, planted.key.item))
    return on_trials(lambda t: t.perturbed, lambda t: replace(t, result=a.result, scored=a.scored))(
        records
    )


def _polled(arm: Arm, running: int) -> Change:
    """Has one poll late in a serial arm show so many requests running."""

    def changed(records: Records) -> Records:
        last = [r for r in records if isinstance(r, Trial) and r.key.arm is arm][-1]
        poll = (last.dispatch_ts, last.complete_ts, running, 0)

        def at(record: Record) -> Record:
            if isinstance(record, GaugeSamples) and record.arm is arm:
                return replace(record, samples=(*record.samples, poll))
            return record

        return mutate(records, at)

    return changed


@dataclass(frozen=True)
class Case:
    """A change, the one gate that it costs, how, and the word for it."""

    gate: str
    outcome: Outcome
    reason: str
    change: Change
    said: str = ""

    def __str__(self) -> str:
        return f"{self.gate}-{self.reason}-{self.said[:20].replace(' ', '_')}"


CASES = (
    Case(
        "F0_score",
        FAIL,
        "score_divergence",
        then(UNCONFIRMED, _one(Arm.C, with_scored(extracted_answer="other"))),
    ),
    Case(
        "F0_score", UNKNOWN, "prompt_tokens_unknown", _everywhere(with_result(prompt_tokens=None))
    ),
    Case(
        "completeness",
        FAIL,
        "incomplete",
        lambda records: mutate(records, lambda r: None if isinstance(r, Footer) else r),
        "no footer",
    ),
    Case(
        "completeness",
        FAIL,
        "incomplete",
        then(_one(Arm.C, lambda t: None), recount),
        "arm C pass 0: 1 trials missing",
    ),
    Case("lost", FAIL, "lost_trials", _one(Arm.A3, lost())),
    Case("F1_overlap", FAIL, "batch_of_n_not_proved", _blunted, "proved batch 3 of 4"),
    Case(
        "F2_completion_floor",
        FAIL,
        "completion_floor",
        _everywhere(with_scored(failure_mode="empty")),
    ),
    Case("F3_coverage", FAIL, "coverage", _two_waves_counted, "8 of 11 ids"),
    Case(
        "F4_logit_drift",
        FAIL,
        "logit_drift",
        then(on_plan(logit_drift="bits"), _one(Arm.C, _moved_logprob)),
    ),
    Case("isolation", FAIL, "not_isolated", _one(Arm.C, with_result(cache_n=3)), "prompt cache"),
    Case(
        "isolation", FAIL, "not_isolated", _gained("cached_total", Arm.A2, 0, 7), "7 prompt tokens"
    ),
    Case(
        "isolation", FAIL, "not_isolated", _one(Arm.C, with_result(truncated=True)), "context's end"
    ),
    Case("isolation", FAIL, "not_isolated", _one(Arm.C, with_result(draft_n=2)), "speculation"),
    Case(
        "isolation",
        FAIL,
        "not_isolated",
        _one(Arm.C, lambda t: replace(t, request_sha256="0" * 64)),
        "one body",
    ),
    Case(
        "isolation",
        FAIL,
        "not_isolated",
        _gained("predicted_total", Arm.A, 0, 9),
        "other traffic beside arm A pass 0: 9 tokens",
    ),
    Case(
        "isolation",
        FAIL,
        "not_isolated",
        _gained("prompt_total", Arm.A3, 0, 9),
        "other traffic beside arm A3",
    ),
    Case(
        "isolation",
        FAIL,
        "not_isolated",
        shift_decodes(at_end_of(Arm.A2, 0, -4)),
        "arm A2 pass 0 shared 4 forward passes",
    ),
    Case(
        "isolation",
        FAIL,
        "not_isolated",
        shift_decodes(at_end_of(Arm.A3, 0, 400)),
        "more than its requests explain",
    ),
    Case("isolation", FAIL, "not_isolated", _polled(Arm.A3, 3), "more than its one request"),
    Case("isolation", UNKNOWN, "isolation_unknown", _counters(cached_total=None), "prefix-caching"),
    Case(
        "isolation",
        UNKNOWN,
        "isolation_unknown",
        _counters(predicted_total=None),
        "--disable-log-stats",
    ),
    Case(
        "isolation", UNKNOWN, "isolation_unknown", _one(Arm.C, with_result(truncated=None)), "ended"
    ),
    Case("identity", FAIL, "identity_mismatch", _said(True, system_fingerprint="fp-2"), "_finger"),
    Case("identity", FAIL, "identity_mismatch", _said(True, system_fingerprint=None), "changed"),
    Case("identity", FAIL, "identity_mismatch", _identity(total_slots=3), "3 slots, N is 4"),
    Case(
        "identity",
        FAIL,
        "identity_mismatch",
        on_kind(LifetimeEnd, lambda r: replace(r, identity=replace(r.identity, build="b"))),
        "while the run went on",
    ),
    Case("identity", UNKNOWN, "identity_unknown", _identity(model=None), "does not list"),
    Case("identity", UNKNOWN, "identity_unknown", _identity(build=None), "names no version"),
    Case(
        "identity",
        UNKNOWN,
        "identity_unknown",
        on_kind(LifetimeEnd, lambda r: replace(r, identity=None)),
        "not asked again",
    ),
    Case("reference", FAIL, "reference_unstable", _one(Arm.A2, _other_token), "A against A2: 0"),
    Case("reference", FAIL, "reference_unstable", _one(Arm.A3, _other_token), "A against A3: 0"),
    Case("reference", UNKNOWN, "reference_missing", without_pass(Arm.A3), "A3"),
    Case("tokens", FAIL, "token_only", then(UNCONFIRMED, _one(Arm.C, _other_token))),
    Case("positive_control", FAIL, "control_not_seen", _unseen_control),
    Case("positive_control", UNKNOWN, "control_missing", without_pass(Arm.P)),
    Case("sample", FAIL, "sample_too_small", without_pass(Arm.C, 1), "1 passes"),
)


def test_the_run_is_green(green: Records) -> None:
    certificate = recertify(green)
    assert certificate.verdict is Verdict.GREEN
    assert set(departures(certificate)) == {"F5_provenance"}
    assert {g for g, o in outcomes(certificate).items() if o is NA} == {
        "F4_logit_drift",
        "control_b",
    }
    lines = encode(green)
    assert verify_certificate(certificate.to_bytes(), lines).borne_out
    assert not verify_certificate(certificate.to_bytes(), lines).promotable


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_change_costs_one_gate(green: Records, case: Case) -> None:
    certificate = recertify(case.change(green))
    assert departures(certificate) == {"F5_provenance": FAIL, case.gate: case.outcome}
    assert reason(certificate, case.gate) == case.reason
    assert case.said in measured(certificate, case.gate)
    colour = Verdict.UNVERIFIED if case.outcome is UNKNOWN else COLOURS[case.gate]
    assert certificate.verdict is colour


def test_every_gate_that_can_block_has_a_case() -> None:
    free = {"F5_provenance", "control_b"}
    assert {case.gate for case in CASES} == {gate.name for gate in ENDPOINT_GATES} - free
    assert [g.name for g in ENDPOINT_GATES] == [g.name for g in GATES]
    assert [g.colour for g in ENDPOINT_GATES] == [g.colour for g in GATES]


def test_a_row_that_asks_for_less_says_so() -> None:
    differ = [own.name for own, other in zip(GATES, ENDPOINT_GATES, strict=True) if own != other]
    asked = {gate.name: gate.required for gate in ENDPOINT_GATES}
    for name in ("F1_overlap", "isolation", "identity"):
        assert "server of our own" in asked[name]
    assert "weaker" in asked["F3_coverage"]
    assert {"F1_overlap", "F3_coverage", "isolation", "identity", "reference"} <= set(differ)


def test_traffic_beside_the_load_is_no_fault_and_is_stated(green: Records) -> None:
    certificate = recertify(_gained("predicted_total", Arm.C, 0, 40)(green))
    assert certificate.verdict is Verdict.GREEN
    assert certificate.endpoint is not None
    (part,) = certificate.endpoint.foreign_traffic
    assert (part.arm, part.pass_index, part.tokens) == (Arm.C, 0, 40)
    assert "40 tokens of other traffic" in measured(certificate, "isolation")


def test_a_counter_below_our_own_tokens_cannot_be(green: Records) -> None:
    certificate = recertify(_gained("predicted_total", Arm.C, 0, -5)(green))
    assert reason(certificate, "isolation") == "not_isolated"
    assert "what cannot be" in measured(certificate, "isolation")


def test_without_steps_and_polls_nothing_shows_a_serial_arm_alone(green: Records) -> None:
    certificate = recertify(then(_counters(decode_total=None), _no_polls)(green))
    assert reason(certificate, "isolation") == "isolation_unknown"
    assert "ran alone" in measured(certificate, "isolation")
    assert reason(certificate, "F3_coverage") == "weak_witness"


def test_a_gauge_speaks_only_where_steps_are_not_counted(green: Records) -> None:
    """And only of passes that were faster than their requests one at a time."""

    def polls(records: Records) -> Records:
        """Three polls inside every wave and inside the saturated pass, all of it running."""
        out: list[Record] = []
        trials: list[Trial] = []
        for record in records:
            if isinstance(record, PassStart):
                trials = []
            elif isinstance(record, Trial):
                trials.append(record)
            if isinstance(record, GaugeSamples) and record.arm is Arm.C:
                continue
            if isinstance(record, PassEnd) and record.arm is Arm.C:
                seen = []
                for t in trials:
                    span = t.complete_ts - t.dispatch_ts
                    for part in (0.3, 0.5, 0.7):
                        at = t.dispatch_ts + part * span
                        n = sum(o.dispatch_ts <= at <= o.complete_ts for o in trials)
                        seen.append((at, at, n, 0))
                out.append(GaugeSamples(Arm.C, record.pass_index, tuple(seen)))
            out.append(record)
        return tuple(out)

    counted = recertify(polls(green))
    assert counted.overlap.witness == "decode_count"
    alone = then(polls, _counters(decode_total=None))
    gauged = recertify(alone(green))
    assert gauged.overlap.witness == "scheduler_gauge"
    assert gauged.verdict is Verdict.GREEN
    slow = on_trials(
        lambda t: t.key.arm is Arm.A,
        lambda t: replace(t, complete_ts=t.dispatch_ts + 1e-4),
    )
    late = recertify(slow(alone(green)))
    assert reason(late, "F3_coverage") == "weak_witness"
    assert "of the time that its requests take one at a time" in measured(late, "F1_overlap")
    busy = recertify(_gained("predicted_total", Arm.C, 0, 5)(alone(green)))
    assert busy.overlap.tested_n == 4
    assert busy.sensitivity.n_hot_trials < gauged.sensitivity.n_hot_trials


def test_a_red_of_an_unpinned_server_whose_last_arm_differs_has_no_stable_reference(
    green: Records,
) -> None:
    red = then(UNCONFIRMED, _one(Arm.C, with_scored(extracted_answer="other")))
    certificate = recertify(then(red, _one(Arm.A3, _other_token))(green))
    assert certificate.divergence_class == "unstable_reference"
    missing = recertify(then(red, without_pass(Arm.A3))(green))
    assert missing.divergence_class is not None
    assert "arm A3 does not cover" in missing.divergence_class


def test_evidence_that_calls_an_endpoint_live_is_refused(green: Records) -> None:
    with pytest.raises(EvidenceError, match="disagree"):
        recertify(on_header(lambda h: replace(h, source=Source.LIVE))(green))
    with pytest.raises(EvidenceError, match="disagree"):
        recertify(on_header(lambda h: replace(h, source=Source.LIVE, endpoint=None))(green))


def test_an_arm_of_the_other_kind_is_not_planned(green: Records) -> None:
    """Arm B in an endpoint's evidence crashes nothing and proves nothing."""

    def as_b(record: Record) -> Record:
        if isinstance(record, Trial) and record.key.arm is Arm.A3:
            return replace(record, key=replace(record.key, arm=Arm.B))
        if isinstance(record, (PassStart, PassEnd, GaugeSamples)) and record.arm is Arm.A3:
            return replace(record, arm=Arm.B)
        return record

    certificate = recertify(mutate(green, as_b))
    assert reason(certificate, "completeness") == "incomplete"
    assert reason(certificate, "reference") == "reference_missing"


def test_llama_cpp_shares_with_neighbours_alone(green: Records) -> None:
    def as_llama(header: Any) -> Any:
        return replace(header, endpoint=replace(header.endpoint, engine=Engine.LLAMA_CPP))

    certificate = recertify(on_header(as_llama)(green))
    assert certificate.cobatch_coverage.n_co_batched == N_ITEMS


# The gauge by itself.


def test_polls_prove_company_where_all_in_flight_are_running() -> None:
    trials = [(0.0, 10.0, 0, 0), (0.0, 10.0, 1, 0), (20.0, 30.0, 2, 0)]
    polls = [(1.0, 1.1, 2, 0), (2.0, 2.1, 1, 1), (5.0, 5.1, 2, 0), (21.0, 21.1, 1, 0)]
    reading = read_gauge(polls, trials)
    assert reading.peak == 2
    assert reading.n_over == 0
    assert reading.of_trial == {(0, 0): (3, 2), (1, 0): (3, 2), (2, 0): (1, 0)}


def test_a_poll_across_an_edge_is_inside_no_trial() -> None:
    reading = read_gauge([(9.9, 10.1, 2, 0)], [(0.0, 10.0, 0, 0), (0.0, 10.0, 1, 0)])
    assert reading.of_trial == {(0, 0): (0, 0), (1, 0): (0, 0)}


def test_more_running_than_in_flight_is_a_strangers_and_proves_nothing() -> None:
    trials = [(0.0, 5.0, 0, 0), (6.0, 10.0, 1, 0)]
    early, late = (1.0, 1.1, 3, 0), (7.0, 7.1, 3, 0)
    assert read_gauge([early], trials).n_over == 0
    reading = read_gauge([early, late], trials)
    assert reading.n_over == 1
    assert reading.peak == 0


@pytest.mark.parametrize(
    ("inside", "beside", "enough"),
    [(0, 0, False), (1, 1, False), (2, 2, True), (4, 2, True), (5, 2, False), (6, 3, True)],
)
def test_two_polls_and_half_of_them_are_enough(inside: int, beside: int, enough: bool) -> None:
    assert proves_company(inside, beside) is enough
