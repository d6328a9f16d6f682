"""What holds for any run: checked over runs that a seed makes up, with faults and without.

The order of colours is GREEN, AMBER, UNVERIFIED, RED, from best to worst. PROPERTY_SEEDS sets how
many runs are made up.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.certificate import (
    Certificate,
    EvidenceRef,
    build_cert,
    certify,
)
from batch_invariance.invariance_diff.diff import TrialDiff, compare_trials
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.gates import examine
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import Arm, Completion, Outcome, Trial, Verdict
from batch_invariance.invariance_diff.overlap import (
    companions_in_flight,
    max_depth,
    overlapping_pairs,
)
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids, unpack_ids
from batch_invariance.invariance_diff.pairs import PairReport, diff_arms
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    DecodeRuns,
    Footer,
    GaugeSamples,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    ServerSaid,
    WaveEnd,
)
from batch_invariance.invariance_diff.schedule import DispatchKind
from batch_invariance.invariance_diff.verify import (
    is_promotable,
    parse_certificate,
    verify_certificate,
)
from core_fixtures import (
    EVIDENCE_NAME,
    Change,
    Ideal,
    Records,
    a_completion,
    a_scored,
    a_trial,
    confirmed,
    decode,
    departures,
    encode,
    in_arm,
    lost,
    on_kind,
    on_plan,
    on_trials,
    outcomes,
    recount,
    then,
    trial_of,
    with_result,
    with_scored,
    without_pass,
)
from decode_fixtures import with_log
from endpoint_ideal import IdealEndpoint, with_polls, without_steps
from test_ubatch import split_equal, split_simple

RANK = (Verdict.GREEN, Verdict.AMBER, Verdict.UNVERIFIED, Verdict.RED)
ANSWERED = (Arm.A, Arm.A2, Arm.A3, Arm.B, Arm.C)
SEEDS = range(int(os.environ.get("PROPERTY_SEEDS", "24")))


# Runs that a seed makes up.


def _shape(rng: random.Random, kind: type[Ideal]) -> Ideal:
    n_items = rng.randint(10, 13)
    return kind(
        [rng.randint(9, 20) for _ in range(n_items)],
        n=rng.randint(2, 4),
        passes=rng.randint(2, 3),
    )


def _trials(records: Records, *arms: Arm) -> list[Trial]:
    return [r for r in records if isinstance(r, Trial) and r.key.arm in arms and not r.perturbed]


def _at(trial: Trial) -> Callable[[Trial], bool]:
    return lambda other: other.key == trial.key


def _other_ids(rng: random.Random, fresh: int) -> Callable[[Trial], Trial]:
    def changed(trial: Trial) -> Trial:
        assert isinstance(trial.result, Completion)
        ids = list(unpack_ids(trial.result.token_ids or ""))
        ids[rng.randrange(len(ids))] = 10_000 + fresh
        return with_result(token_ids=pack_ids(ids))(trial)

    return changed


def _divergence(rng: random.Random, records: Records, fresh: int, *arms: Arm) -> Records:
    """One trial of these arms answers otherwise, in a way that no other trial does."""
    trial = rng.choice([t for t in _trials(records, *arms) if isinstance(t.result, Completion)])
    change = rng.choice(
        (
            with_scored(score=2.0 + fresh),
            with_scored(extracted_answer=f"answer {fresh}"),
            with_scored(failure_mode=f"mode {fresh}"),
            with_result(text=f"text {fresh}"),
            with_result(finish_reason=f"reason {fresh}"),
            _other_ids(rng, fresh),
        )
    )
    changed = on_trials(_at(trial), change)(records)
    has_confirm = any(isinstance(r, PassStart) and r.arm is Arm.CONFIRM for r in records)
    if trial.key.arm is Arm.C and not has_confirm and rng.random() < 0.5:
        changed = confirmed((trial.key.item, trial.lane))(changed)
    return changed


def _fault(rng: random.Random, records: Records) -> Records:
    """Something else that a run may suffer."""
    trial = rng.choice(_trials(records, *ANSWERED))
    change = rng.choice(
        (
            lost(),
            with_result(cache_n=3),
            with_result(truncated=True),
            with_result(cache_n=None),
            with_result(logprobs=None),
            lambda t: replace(t, request_sha256="0" * 64),
        )
    )
    return on_trials(_at(trial), change)(records)


@functools.cache
def made_up(seed: int) -> Records:
    """A run: clean for every third seed, else with divergences and faults; every other one on a
    server of someone else. The log of our own server was read for about half of the runs, the other
    kind has a gauge and no count of passes for about half. Drift is armed for about half."""
    rng = random.Random(seed)
    foreign = seed % 2 == 1
    records = _shape(rng, IdealEndpoint if foreign else Ideal).records()
    if rng.random() < 0.5:
        records = on_plan(logit_drift=rng.choice(("bits", "0.5")))(records)
    if seed % 3:
        for fresh in range(rng.randint(0, 2)):
            records = _divergence(rng, records, fresh, *ANSWERED)
    if rng.random() < 0.5:
        records = without_steps(with_polls(records)) if foreign else with_log(records)
    if seed % 3 == 2:
        records = _fault(rng, records)
    return records


def _certificate(records: Iterable[Record]) -> Certificate:
    """As `recertify`, without writing the records to lines and reading them again."""
    return build_cert(examine(measure(records)), EvidenceRef(EVIDENCE_NAME, "", 0))


def _verdict(records: Iterable[Record]) -> Verdict | None:
    """None: refused as evidence, which is worse than any colour."""
    try:
        return _certificate(records).verdict
    except EvidenceError:
        return None


def test_the_runs_are_of_every_colour() -> None:
    seen = {_verdict(made_up(seed)) for seed in SEEDS}
    assert seen == set(RANK)
    assert all(_verdict(made_up(seed)) is Verdict.GREEN for seed in SEEDS if seed % 3 == 0)


# Adding a divergence never improves the colour.


@pytest.mark.parametrize("seed", SEEDS)
def test_a_divergence_more_never_improves_the_colour(seed: int) -> None:
    rng = random.Random(f"more {seed}")
    records = made_up(seed)
    before = _certificate(records)
    for arm in dict.fromkeys(t.key.arm for t in _trials(records, *ANSWERED)):
        for fresh in range(100, 102):
            more = _certificate(_divergence(rng, records, fresh, arm))
            assert RANK.index(more.verdict) >= RANK.index(before.verdict)
            assert more.verdict is not Verdict.GREEN
            assert not more.promotable


@pytest.mark.parametrize("seed", SEEDS)
def test_a_score_that_differs_under_load_is_red_whatever_else_there_is(seed: int) -> None:
    rng = random.Random(f"red {seed}")
    records = made_up(seed)
    trial = rng.choice(_trials(records, Arm.C))
    reference = trial_of(records, in_arm(Arm.A, 0, trial.key.item))
    if isinstance(trial.result, Completion) and isinstance(reference.result, Completion):
        records = on_trials(_at(trial), with_scored(score=-7.0))(records)
        assert _certificate(records).verdict is Verdict.RED


# Removing evidence never improves the colour.

NEVER_FOUND_AGAIN = (Verdict.UNVERIFIED, Verdict.RED)
"""Where what proved a RED is gone, the run may be UNVERIFIED. Neither is better than the other
here: both say that nothing may be relied on."""


def _standing(verdict: Verdict | None) -> int:
    return 2 if verdict is None or verdict in NEVER_FOUND_AGAIN else RANK.index(verdict)


REMOVABLE = (
    "finish_reason",
    "token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_tokens",
    "completion_tokens",
    "cache_n",
    "truncated",
)
"""Fields of an answer without which something stays unproved. `draft_n` is not among them: a
server names it only where it speculates."""


def _unsaid(rng: random.Random, record: Record) -> Record | None:
    """The record without one thing that it says; None where it has nothing to leave out."""
    if isinstance(record, Trial):
        if not isinstance(record.result, Completion):
            return None
        said = [n for n in REMOVABLE if getattr(record.result, n) is not None]
        return with_result(**{rng.choice(said): None})(record)
    if isinstance(record, (PassStart, WaveEnd, PassEnd)):
        name = rng.choice(("decode_total", "predicted_total"))
        if getattr(record.counters, name) is None:
            return None
        return replace(record, counters=replace(record.counters, **{name: None}))
    if isinstance(record, LifetimeStart):
        name = rng.choice(("total_slots", "n_ctx", "model", "build"))
        return replace(record, identity=replace(record.identity, **{name: None}))
    if isinstance(record, LifetimeEnd):
        return replace(record, identity=None)
    if isinstance(record, GaugeSamples):
        return replace(record, samples=record.samples[:-1])
    if isinstance(record, ServerSaid):
        return replace(record, facts={})
    if isinstance(record, DecodeRuns):
        return replace(record, runs=record.runs[:-1]) if record.runs else None
    return None


def _losses(rng: random.Random, records: Records) -> Iterator[Records]:
    """The run with one thing less, in several ways. The plan stays: with less planned it would be
    another run."""
    places = range(1, len(records))
    for place in rng.sample(places, 10):
        without = (*records[:place], *records[place + 1 :])
        yield without
        yield recount(without)
    for place in rng.sample(places, 10):
        less = _unsaid(rng, records[place])
        if less is not None:
            yield (*records[:place], less, *records[place + 1 :])
    for cls in (
        ControlPlan,
        Footer,
        LifetimeEnd,
        DecodeRuns,
        GaugeSamples,
        ServerSaid,
        WaveEnd,
        PassEnd,
    ):
        without = tuple(r for r in records if not isinstance(r, cls))
        if without != records:
            yield without
    yield records[: rng.randrange(1, len(records))]
    header = records[0]
    assert isinstance(header, Header)
    gone = rng.choice(header.plan.passes)
    yield without_pass(gone.arm, gone.pass_index, planned=True)(records)


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_less_never_improves_the_colour(seed: int) -> None:
    rng = random.Random(f"less {seed}")
    records = made_up(seed)
    before = _verdict(records)
    for less in _losses(rng, records):
        assert _standing(_verdict(less)) >= _standing(before)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_a_record_less_is_never_green(seed: int) -> None:
    """Whichever it is, but for the log of forward passes and polls, which another witness or pass
    can stand for."""
    records = made_up(seed)
    assert _verdict(records) is Verdict.GREEN
    for place in random.Random(seed).sample(range(1, len(records)), 25):
        record = records[place]
        verdict = _verdict((*records[:place], *records[place + 1 :]))
        spare = isinstance(record, (DecodeRuns, WaveEnd, GaugeSamples))
        assert verdict is not Verdict.GREEN or spare, record


# Permuting trials where order has no meaning changes nothing.


def _shuffled(rng: random.Random, records: Records) -> Records:
    """The trials of every wave, and of every pass without waves, in another order."""
    out: list[Record] = []
    group: list[Trial] = []
    for record in records:
        if isinstance(record, Trial):
            group.append(record)
            continue
        rng.shuffle(group)
        out += [*group, record]
        group = []
    return tuple(out)


def _unordered(certificate: Certificate) -> Certificate:
    """The certificate with its lists in order of arrival sorted."""
    return replace(
        certificate,
        per_pass_ac_divergent=_sorted(certificate.per_pass_ac_divergent),
        per_pass_ac_token_only=_sorted(certificate.per_pass_ac_token_only),
        lost_trials=tuple(sorted(certificate.lost_trials, key=repr)),
    )


def _sorted(lists: Any) -> dict[str, tuple[str, ...]]:
    return {name: tuple(sorted(ids)) for name, ids in lists.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_in_which_answers_came_changes_nothing(seed: int) -> None:
    records = made_up(seed)
    other = _shuffled(random.Random(f"order {seed}"), records)
    assert other != records
    assert _unordered(_certificate(other)) == _unordered(_certificate(records))


# The diff is symmetric.


def _completion(rng: random.Random) -> Completion:
    ids = [rng.randint(1, 3) for _ in range(rng.randint(0, 5))]
    logprobs = [rng.choice((-0.5, -1.0, -1.5)) for _ in ids]
    alternatives = [rng.sample(range(1, 5), 2) for _ in ids]
    completion = a_completion(
        ids,
        text=rng.choice(("a", "b", "b\ufffd")),
        logprobs=pack_floats(logprobs),
        top_ids=pack_ids([token for row in alternatives for token in row]),
        top_logprobs=pack_floats([v for p in logprobs for v in (p, p - rng.choice((1.0, 2.0)))]),
    )
    for name in ("token_ids", "logprobs", "completion_tokens", "prompt_tokens", "reasoning"):
        if rng.random() < 0.1:
            value = 7 if name.endswith("_tokens") and rng.random() < 0.5 else None
            completion = replace(completion, **{name: value})
    return completion


def _trial(rng: random.Random) -> Trial:
    scored = a_scored(
        score=rng.choice((0, 0.0, 1.0, 1, None)),
        passed=rng.choice((True, False, None)),
        extracted_answer=rng.choice(("x", None)),
        failure_mode=rng.choice(("ok", "empty")),
    )
    return a_trial(_completion(rng), scored)


def _mirrored(diff: TrialDiff) -> tuple[object, ...]:
    first = diff.first
    parted = None if first is None else (first.token_index, {first.token_x, first.token_y})
    return (
        diff.score_fields,
        diff.token_fields,
        diff.tokens_known,
        diff.n_tokens,
        parted,
        diff.drift,
    )


def test_the_diff_of_two_trials_is_symmetric() -> None:
    rng = random.Random(21)
    n_equal = 0
    for _ in range(2000):
        x = _trial(rng)
        y = _trial(rng) if rng.random() < 0.9 else replace(x, lane=1)
        one, other = compare_trials(x, y), compare_trials(y, x)
        assert _mirrored(one) == _mirrored(other)
        if one.first is not None and other.first is not None:
            assert (one.first.token_x, one.first.token_y) == (
                other.first.token_y,
                other.first.token_x,
            )
        same = compare_trials(x, x)
        assert not same.score_divergent
        assert not same.token_divergent
        assert same.drift is None or same.drift.n_moved == 0
        n_equal += not one.score_divergent and not one.token_divergent
    assert n_equal > 50


def _turned(report: PairReport) -> tuple[object, ...]:
    return (
        report.n_compared,
        report.divergent_ids,
        report.token_divergence_ids,
        report.n_token_only,
        report.n_tokens_unknown,
        report.by_family,
        report.logit_drift,
        report.passed,
        report.token_identical,
        [(e.id, e.score_fields, e.token_fields) for e in report.per_id],
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_diff_of_two_arms_is_symmetric(seed: int) -> None:
    rng = random.Random(f"arms {seed}")
    items = Ideal([8] * 6).items()

    def arm(which: Arm) -> dict[int, Trial]:
        trials = {i: _trial(rng) for i in range(6) if rng.random() < 0.8}
        return {
            i: replace(t, key=replace(t.key, arm=which, item=i), item_id=f"i{i}")
            for i, t in trials.items()
        }

    a, b = arm(Arm.A), arm(Arm.B)
    one, other = diff_arms(items, "AB", a, b), diff_arms(items, "AB", b, a)
    assert _turned(one) == _turned(other)
    assert (one.only_x, one.only_y) == (other.only_y, other.only_x)


# Overlap equals a brute-force count.


def _moved(rng: random.Random, records: Records) -> Records:
    """Client times of arm C drawn anew, on a grid so that some only touch."""

    def drawn(trial: Trial) -> Trial:
        start = float(rng.randint(0, 12))
        return replace(trial, dispatch_ts=start, complete_ts=start + rng.randint(1, 6))

    return on_trials(in_arm(Arm.C), drawn)(records)


@pytest.mark.parametrize("seed", SEEDS)
def test_overlap_by_the_clients_clock_equals_a_brute_force_count(seed: int) -> None:
    records = _moved(random.Random(f"clock {seed}"), made_up(seed))
    for p in measure(records).passes:
        own = [
            (r.dispatch_ts, r.complete_ts, r.key.item, r.key.occurrence)
            for r in records
            if isinstance(r, Trial) and (r.key.arm, r.key.pass_index) == (p.arm, p.pass_index)
        ]
        depth = max(sum(s <= start < e for s, e, _, _ in own) for start, _, _, _ in own)
        assert p.client_depth == max_depth((s, e) for s, e, _, _ in own) == depth
        met = {
            (min(a[2], b[2]), max(a[2], b[2]))
            for a, b in combinations(own, 2)
            if a[0] < b[1] and b[0] < a[1] and a[2] != b[2]
        }
        assert overlapping_pairs(own) == met
        everyone = {item for _, _, item, _ in own}
        by_item = {(i, j) for (i, _), js in companions_in_flight(own, everyone).items() for j in js}
        assert by_item == met | {(j, i) for i, j in met}
        if p.arm is Arm.C and p.kind is DispatchKind.SATURATE and depth <= p.n_lanes:
            assert p.companions == (digest_of(sorted(met)) if met else None)


def _shared_by_hand(runs: Sequence[tuple[int, ...]], unified: bool, n_ubatch: int) -> Any:
    """{(lane, task): passes in which another lane was in the same micro-batch}, token by token.

    Of a pass that is cut, only a generating lane is certain of its piece.
    """
    shared: dict[tuple[int, int], int] = {}
    for run in runs:
        members = [run[i : i + 3] for i in range(1, len(run), 3)]
        split = split_simple if unified else split_equal
        cut = [set(piece) for piece in split([(m[0], m[2] or 1) for m in members], n_ubatch)]
        for lane, task, size in members:
            pieces = [piece for piece in cut if lane in piece]
            certain = not size or len(cut) == 1
            together = certain and any(len(piece) > 1 for piece in pieces)
            shared[(lane, task)] = shared.get((lane, task), 0) + run[0] * together
    return shared


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("unified", [True, False])
def test_what_the_log_proves_equals_a_brute_force_count(seed: int, unified: bool) -> None:
    rng = random.Random(f"log {seed}")
    n_ubatch = rng.choice((3, 16, 64, 512))
    records = with_log(_shape(rng, Ideal).records())
    header = records[0]
    assert isinstance(header, Header)
    cell = replace(header.cell, kv_unified=unified, n_ubatch=n_ubatch)
    records = (replace(header, cell=cell), *records[1:])
    best: dict[int, int] = {}
    lanes: dict[int, list[Trial]] = {}
    for record in records:
        if isinstance(record, PassStart):
            lanes = {}
        elif isinstance(record, Trial) and record.key.arm is Arm.C:
            lanes.setdefault(record.lane, []).append(record)
        elif isinstance(record, DecodeRuns) and record.arm is Arm.C:
            shared = _shared_by_hand(record.runs, unified, n_ubatch)
            for lane, trials in lanes.items():
                tasks = sorted(task for at, task in shared if at == lane)
                trials.sort(key=lambda t: t.dispatch_ts)
                for trial, task in zip(trials, tasks, strict=True):
                    item = trial.key.item
                    best[item] = max(best.get(item, 0), shared[(lane, task)])
    rows = _certificate(records).rows
    assert [row.proved_shared_decodes for row in rows] == [best[i] for i in range(len(rows))]


# Round trips, byte for byte.


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_and_certificate_survive_a_round_trip(seed: int) -> None:
    records = made_up(seed)
    lines = encode(records)
    assert decode(lines) == records
    assert encode(decode(lines)) == lines
    certificate = certify(lines, EVIDENCE_NAME)
    data = certificate.to_bytes()
    document = parse_certificate(data)
    assert json.dumps(document, sort_keys=True, indent=2).encode() + b"\n" == data
    verification = verify_certificate(data, lines)
    assert verification.borne_out
    assert verification.derived == certificate
    assert verification.promotable is certificate.promotable is is_promotable(document)


# Absent never equals passed.


def _everywhere(change: Callable[[Trial], Trial]) -> Change:
    return on_trials(
        lambda t: t.key.arm is not Arm.WARMUP and isinstance(t.result, Completion), change
    )


def _never_counted(name: str) -> Change:
    def uncounted(record: Any) -> Any:
        return replace(record, counters=replace(record.counters, **{name: None}))

    def changed(records: Records) -> Records:
        out = tuple(
            uncounted(r) if isinstance(r, (PassStart, WaveEnd, PassEnd)) else r for r in records
        )
        # The log is believed only where the counter agrees with it.
        assert out != records
        return out

    return changed


def _never_said(name: str) -> Change:
    def unsaid(record: Any) -> Any:
        return replace(record, identity=replace(record.identity, **{name: None}))

    return then(on_kind(LifetimeStart, unsaid), on_kind(LifetimeEnd, unsaid))


def _no_arm(arm: Arm) -> Change:
    def cut(records: Records) -> Records:
        header = records[0]
        assert isinstance(header, Header)
        indexes = [p.pass_index for p in header.plan.passes if p.arm is arm] or [0]
        return without_pass(arm, *indexes)(records)

    return cut


ABSENT: tuple[tuple[str, Change, tuple[str, ...]], ...] = (
    ("prompt counts", _everywhere(with_result(prompt_tokens=None)), ("F0_score",)),
    ("token ids", _everywhere(with_result(token_ids=None)), ("tokens", "reference")),
    ("token counts", _everywhere(with_result(completion_tokens=None)), ("tokens", "isolation")),
    (
        "logprobs",
        then(on_plan(logit_drift="bits"), _everywhere(with_result(logprobs=None))),
        ("F4_logit_drift",),
    ),
    ("cache reports", _everywhere(with_result(cache_n=None)), ("isolation",)),
    ("word on the end", _everywhere(with_result(truncated=None)), ("isolation",)),
    ("decode counts", _never_counted("decode_total"), ("isolation", "F1_overlap", "F3_coverage")),
    ("counts of generated tokens", _never_counted("predicted_total"), ("isolation",)),
    *(
        (f"the server's {name}", _never_said(name), ("identity",))
        for name in ("total_slots", "n_ctx", "model", "build")
    ),
    (
        "question at the end",
        on_kind(LifetimeEnd, lambda r: replace(r, identity=None)),
        ("identity",),
    ),
    ("end of a launch", on_kind(LifetimeEnd, lambda r: None), ("identity",)),
    (
        "proof of the child",
        on_kind(LifetimeStart, lambda r: replace(r, key_enforced=False, socket_owned=None)),
        ("identity",),
    ),
    ("footer", on_kind(Footer, lambda r: None), ("completeness",)),
    ("control", on_kind(ControlPlan, lambda r: None), ("positive_control",)),
    ("arm P", _no_arm(Arm.P), ("positive_control",)),
    ("arm A2", _no_arm(Arm.A2), ("reference",)),
    ("arm B", _no_arm(Arm.B), ("control_b",)),
    (
        "arm C",
        _no_arm(Arm.C),
        ("F0_score", "F1_overlap", "F2_completion_floor", "F3_coverage", "tokens", "sample"),
    ),
    ("arm A", _no_arm(Arm.A), ("F0_score", "F2_completion_floor", "reference", "control_b")),
    ("ends of passes", on_kind(PassEnd, lambda r: None), ("completeness",)),
    (
        "answers of C",
        on_trials(in_arm(Arm.C), lost()),
        ("lost", "F0_score", "F2_completion_floor", "F3_coverage", "tokens", "control_b", "sample"),
    ),
)


@pytest.mark.parametrize("logged", [False, True], ids=["by counts", "by the log"])
@pytest.mark.parametrize(("what", "change", "gates"), ABSENT, ids=[a[0] for a in ABSENT])
def test_absent_never_equals_passed(
    what: str, change: Change, gates: tuple[str, ...], logged: bool
) -> None:
    records = Ideal([14, 9, 12, 16, 11, 13, 10, 15, 12, 14], n=3, passes=2).records()
    if logged:
        records = with_log(records)
    assert departures(_certificate(records)) == {}
    certificate = _certificate(change(records))
    found = outcomes(certificate)
    assert {gate for gate in gates if found[gate] is Outcome.PASS} == set(), what
    assert certificate.verdict is not Verdict.GREEN
    assert not certificate.promotable


ABSENT_OF_OTHERS: tuple[tuple[str, Change, tuple[str, ...]], ...] = (
    *(case for case in ABSENT if case[0] in ("prompt counts", "token ids", "token counts")),
    *(case for case in ABSENT if case[0] in ("footer", "control", "arm P", "arm A2", "arm C")),
    ("word on the end", _everywhere(with_result(truncated=None)), ("isolation",)),
    (
        "any word of a cache",
        then(_everywhere(with_result(cache_n=None)), _never_counted("cached_total")),
        ("isolation",),
    ),
    ("counts of generated tokens", _never_counted("predicted_total"), ("isolation",)),
    ("counts of passes and polls", without_steps, ("isolation", "F1_overlap", "F3_coverage")),
    ("the server's model", _never_said("model"), ("identity",)),
    ("the server's build", _never_said("build"), ("identity",)),
    ("what the server says of itself", on_kind(ServerSaid, lambda r: None), ("identity",)),
    (
        "question at the end",
        on_kind(ServerSaid, lambda r: None if r.at_end else r),
        ("identity",),
    ),
    ("end of a launch", on_kind(LifetimeEnd, lambda r: None), ("identity",)),
    ("arm A3", _no_arm(Arm.A3), ("reference",)),
    ("arm A", _no_arm(Arm.A), ("F0_score", "F2_completion_floor", "reference")),
)


@pytest.mark.parametrize(
    ("what", "change", "gates"), ABSENT_OF_OTHERS, ids=[a[0] for a in ABSENT_OF_OTHERS]
)
def test_absent_never_equals_passed_on_a_server_of_someone_else(
    what: str, change: Change, gates: tuple[str, ...]
) -> None:
    records = IdealEndpoint([14, 9, 12, 16, 11, 13, 10, 15, 12, 14], n=3, passes=2).records()
    assert _verdict(records) is Verdict.GREEN
    certificate = _certificate(change(records))
    found = outcomes(certificate)
    assert {gate for gate in gates if found[gate] is Outcome.PASS} == set(), what
    assert certificate.verdict is not Verdict.GREEN
