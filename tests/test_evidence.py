"""The evidence file: its chain, its strictness, the order of records, and hostile input."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.evidence import EvidenceReader, trial_fields
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    FailureKind,
    Scored,
    Trial,
    TrialKey,
    Verdict,
)
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    Footer,
    Header,
    LifetimeEnd,
    LifetimeStart,
    PassEnd,
    PassStart,
    WaveEnd,
)
from batch_invariance.invariance_diff.rules import (
    DIAGNOSTIC_FIELDS,
    INVARIANT_FIELDS,
    MAX_SLOTS,
    VOLATILE_FIELDS,
)
from core_fixtures import (
    Ideal,
    Records,
    a_completion,
    a_scored,
    a_trial,
    decode,
    encode,
    first_trial,
    in_arm,
    lost,
    on_cell,
    on_plan,
    on_trials,
    pass_span,
    recertify,
    remeasure,
    with_result,
    with_scored,
)

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def records() -> Records:
    return Ideal([8, 8, 5, 9, 3], n=2, passes=2).records()


@pytest.fixture(scope="module")
def lines(records: Records) -> list[bytes]:
    return encode(records)


def _rows(lines: Sequence[bytes]) -> Rows:
    return [json.loads(line) for line in lines]


def _chained(rows: Rows) -> list[bytes]:
    """The rows as a forger would write them, who knows how the chain is made."""
    prev, out = "0" * 64, []
    for seq, row in enumerate(rows):
        line = json.dumps({**row, "seq": seq, "prev": prev}, sort_keys=True).encode()
        prev = hashlib.sha256(line).hexdigest()
        out.append(line + b"\n")
    return out


def _refused(lines: Sequence[bytes], says: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        certify(lines, "x")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_chain_is_that_of_the_description(lines: list[bytes]) -> None:
    prev = "0" * 64
    for seq, line in enumerate(lines):
        row = json.loads(line)
        assert (row["seq"], row["prev"]) == (seq, prev)
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        prev = hashlib.sha256(line[:-1]).hexdigest()


def test_the_reader_digests_the_whole_file(lines: list[bytes]) -> None:
    reader = EvidenceReader(lines)
    n = sum(1 for _ in reader)
    assert reader.n_records == n == len(lines)
    assert reader.sha256 == hashlib.sha256(b"".join(lines)).hexdigest()


def test_reading_is_streamed(lines: list[bytes]) -> None:
    """A record is out before the next line is asked for."""
    taken = []

    def source() -> Iterator[bytes]:
        for line in lines:
            taken.append(line)
            yield line

    reader = iter(EvidenceReader(source()))
    next(reader)
    next(reader)
    assert len(taken) == 2


# A changed file.


def test_a_removed_line_is_found(lines: list[bytes]) -> None:
    for position in range(1, len(lines) - 1):
        _refused(lines[:position] + lines[position + 1 :], f"line {position + 1}: is out of seq")


def test_a_file_without_its_end_is_incomplete_not_green(lines: list[bytes]) -> None:
    for stop in range(1, len(lines)):
        certificate = certify(lines[:stop], "x")
        assert certificate.verdict in (Verdict.UNVERIFIED, Verdict.RED)
        gate = next(g for g in certificate.gates if g.gate == "completeness")
        assert "no footer" in gate.measured or "never" in gate.measured


def test_a_repeated_line_is_found(lines: list[bytes]) -> None:
    for position in range(len(lines)):
        _refused([*lines[: position + 1], *lines[position:]], f"line {position + 2}: is out of seq")


def test_two_swapped_lines_are_found(lines: list[bytes]) -> None:
    for position in range(1, len(lines) - 1):
        swapped = list(lines)
        swapped[position], swapped[position + 1] = swapped[position + 1], swapped[position]
        _refused(swapped, f"line {position + 1}: is out of sequence")


def test_an_edited_line_is_found_at_the_next(lines: list[bytes]) -> None:
    for position in range(len(lines) - 1):
        row = json.loads(lines[position])
        row["ts"] = row.get("ts", 0.0)
        edited = json.dumps(row, sort_keys=True).encode() + b"\n"
        assert edited != lines[position]
        changed = [*lines[:position], edited, *lines[position + 1 :]]
        with pytest.raises(EvidenceError):
            certify(changed, "x")
    spaced = [lines[0][:-2] + b" }\n", *lines[1:]]
    _refused(spaced, "line 2: breaks the chain: the line before it was changed")


def test_a_renumbered_line_is_found(lines: list[bytes]) -> None:
    for seq in (True, 1.0, "1", None, -1, 2):
        rows = _rows(lines)
        rows[1]["seq"] = seq
        changed = [lines[0], json.dumps(rows[1]).encode() + b"\n", *lines[2:]]
        if seq in (1.0, True):
            # Equal in Python; the next line's digest still finds it.
            _refused(changed, "line 3: breaks the chain")
        else:
            _refused(changed, "line 2: is out of sequence")


def test_a_line_that_is_cut_short_is_found(lines: list[bytes]) -> None:
    _refused([*lines[:-1], lines[-1][:-1]], f"line {len(lines)}: is cut short")
    _refused([*lines[:-1], lines[-1][:40]], f"line {len(lines)}: is cut short")
    _refused([*lines[:-1], lines[-1][:40] + b"\n"], f"line {len(lines)}: is not JSON")


def test_an_empty_file_is_no_evidence() -> None:
    _refused([], "empty")


def test_the_first_line_and_no_other_is_the_header(lines: list[bytes]) -> None:
    rows = _rows(lines)
    _refused(_chained(rows[1:]), "line 1: the first line, and no other, must be the header")
    _refused(_chained([rows[0], rows[0], *rows[1:]]), "line 2: the first line, and no other")


def test_measure_wants_a_header_first(records: Records) -> None:
    for wrong in (records[1:], ()):
        with pytest.raises(EvidenceError, match="does not begin with a header"):
            measure(wrong)


# Lines that are no records.


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "is not JSON"),
        (b"[1]", "is not an object"),
        (b"null", "is not an object"),
        (b"{", "is not JSON"),
        (b'{"a":NaN}', "is not JSON"),
        (b'{"a":Infinity}', "is not JSON"),
        (b'{"a":-Infinity}', "is not JSON"),
        (b'{"a":1e999}', "out of range"),
        (b'{"a":-1e999}', "out of range"),
        (b'{"a":' + b"9" * 21 + b"}", "out of range"),
        (b'{"a":' + b"9" * 100_000 + b"}", "out of range"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a":' * 100_000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"a":"\xff"}', "is not JSON"),
    ],
)
def test_a_line_that_is_no_json_object(line: bytes, says: str) -> None:
    _refused([line + b"\n"], f"line 1: {says}" if says != "out of range" else says)


def _first(kind: str, rows: Rows) -> int:
    return next(i for i, row in enumerate(rows) if row["kind"] == kind)


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("header", {"schema": "evidence/2"}, "unknown schema 'evidence/2'; this is evidence/1"),
        ("header", {"schema": None}, "unknown schema"),
        ("header", {"rules_version": 3}, "unknown rules: version 3"),
        ("header", {"rules_version": 0}, "unknown rules: version 0"),
        ("header", {"source": "seen"}, "header.source has no meaning: 'seen'"),
        ("header", {"extra": 1}, "header has an unknown field 'extra'"),
        ("footer", {"kind": "foot"}, "unknown kind 'foot'"),
        ("footer", {"kind": None}, "unknown kind"),
        ("footer", {"kind": ["footer"]}, "unknown kind"),
        ("footer", {"n_trials": "1"}, "footer.n_trials is of the wrong type"),
        ("footer", {"n_trials": True}, "footer.n_trials is of the wrong type"),
        ("trial", {"arm": "D"}, "trial.arm has no meaning: 'D'"),
        ("trial", {"extra": 1}, "trial: field 'extra' is missing or unknown"),
        ("trial", {"item": "0"}, "trial.item is of the wrong type"),
        ("trial", {"item": True}, "trial.item is of the wrong type"),
        ("trial", {"passed": 1}, "trial.passed is of the wrong type"),
        ("trial", {"score": True}, "trial.score is of the wrong type"),
        ("trial", {"text": None}, "trial.text is of the wrong type"),
        ("trial", {"wave": 0.0}, "trial.wave is of the wrong type"),
        ("trial", {"perturbed": 0}, "trial.perturbed is of the wrong type"),
        ("trial", {"truncated": 0}, "trial.truncated is of the wrong type"),
        ("trial", {"cache_n": 0.0}, "trial.cache_n is of the wrong type"),
        ("trial", {"failure_mode": None}, "trial.failure_mode is of the wrong type"),
        ("trial", {"failure": {"kind": "timeout", "detail": "x"}}, "is missing or unknown"),
        ("trial", {"item_id": "stranger"}, "trial of an unknown item 'stranger'"),
        ("trial", {"item": 99}, "trial of an unknown item"),
        ("trial", {"item": -1}, "trial of an unknown item"),
        ("trial", {"pass_index": 5}, "warmup pass 5 is not open"),
        ("pass_start", {"counters": None}, "pass_start.counters is not an object"),
        ("wave_end", {"pass_index": 5}, "warmup pass 5 is not open"),
        ("pass_end", {"arm": "C"}, "C pass 0 is not open"),
        ("lifetime_end", {"index": 1}, "a server lifetime ends that never began"),
        ("control_plan", {"item": 5}, "the control plan names an unknown item"),
        ("control_plan", {"item": -1}, "the control plan names an unknown item"),
    ],
)
def test_a_record_that_is_none(
    kind: str, change: dict[str, object], says: str, lines: list[bytes]
) -> None:
    rows = _rows(lines)
    rows[_first(kind, rows)].update(change)
    _refused(_chained(rows), says)


def test_a_missing_trial_field_is_named(lines: list[bytes]) -> None:
    place = _first("trial", _rows(lines))
    for name in json.loads(lines[place]):
        if name in ("seq", "prev", "kind"):
            continue
        rows = _rows(lines)
        del rows[place][name]
        _refused(_chained(rows), f"trial: field {name!r} is missing or unknown")


def test_a_bad_failure_is_named(records: Records) -> None:
    rows = _rows(encode(on_trials(in_arm(Arm.C), lost())(records)))
    place = next(i for i, row in enumerate(rows) if "failure" in row)
    for change, says in (
        ({"kind": "hunger"}, "trial.failure.kind has no meaning"),
        ({"detail": None}, "trial.failure.detail is of the wrong type"),
        ({"http_status": "500"}, "trial.failure.http_status is of the wrong type"),
    ):
        changed = [dict(row) for row in rows]
        changed[place]["failure"] = {**rows[place]["failure"], **change}
        _refused(_chained(changed), says)


# Records in an order that no run can write.


def _in_order(records: Sequence[Any], says: str) -> None:
    _refused(encode(records), says)


def test_nothing_follows_the_footer(records: Records) -> None:
    for more in (records[-1], records[1]):
        _in_order([*records, more], "a record follows the footer")


def test_trials_and_ends_belong_to_the_open_pass(records: Records) -> None:
    start, stop = pass_span(records, Arm.A)
    trial, end = records[start + 1], records[stop - 1]
    _in_order([*records[:stop], trial, *records[stop:]], "A pass 0 is not open")
    _in_order([*records[:stop], end, *records[stop:]], "A pass 0 is not open")
    _in_order([*records[:start], *records[start + 1 :]], "A pass 0 is not open")


def test_a_lifetime_ends_once_it_has_begun(records: Records) -> None:
    end = next(r for r in records if isinstance(r, LifetimeEnd))
    start = next(i for i, r in enumerate(records) if isinstance(r, LifetimeStart))
    _in_order([*records[:start], end, *records[start:]], "a server lifetime ends that never began")


def test_a_schedule_that_does_not_fit_is_refused(records: Records) -> None:
    start, _ = pass_span(records, Arm.C, 1)
    record = records[start]
    assert isinstance(record, PassStart)
    for groups, says in ((((0, 9),), "item 9 is not in the work-set"), (((),), "a group is empty")):
        bad = replace(record, schedule=replace(record.schedule, groups=groups))
        _in_order([*records[:start], bad, *records[start + 1 :]], f"arm C pass 1: {says}")


@pytest.mark.parametrize("n", [0, -1, MAX_SLOTS + 1, 10**18])
def test_a_cell_of_no_possible_size_is_refused(n: int, records: Records) -> None:
    _in_order(on_cell(dispatch_n=n)(records), f"the cell has {n} slots")


@pytest.mark.parametrize("n", [1, MAX_SLOTS])
def test_a_cell_of_another_size_than_ran_is_never_green(n: int, records: Records) -> None:
    certificate = recertify(on_cell(dispatch_n=n)(records))
    assert certificate.verdict is not Verdict.GREEN


@pytest.mark.parametrize("drift", ["nan", "inf", "-0.1", "", "bit", "1e-3x", "-inf"])
def test_an_epsilon_that_is_none_is_refused(drift: str, records: Records) -> None:
    """`nan` would be an epsilon that nothing exceeds."""
    _in_order(on_plan(logit_drift=drift)(records), "logit_drift is neither bits nor an epsilon")


@pytest.mark.parametrize("drift", [None, "bits", "0", "1e-3", "0.5"])
def test_an_epsilon_is_read(drift: str | None, records: Records) -> None:
    armed = records if drift is None else on_plan(logit_drift=drift)(records)
    assert recertify(armed).verdict is not Verdict.RED


def test_packed_data_is_read_only_where_it_differs_and_then_strictly(records: Records) -> None:
    place = first_trial(records, in_arm(Arm.C, 0, 1))
    trial = records[place]
    assert isinstance(trial, Trial)
    assert isinstance(trial.result, Completion)
    for bad in ("AAAA", "?", "AAAAAA"):
        result = replace(trial.result, token_ids=bad)
        changed = (*records[:place], replace(trial, result=result), *records[place + 1 :])
        _in_order(changed, "packed int32 data is not")


# Fields.


def test_every_field_of_a_trial_is_invariant_volatile_or_diagnostic() -> None:
    groups = (INVARIANT_FIELDS, VOLATILE_FIELDS, DIAGNOSTIC_FIELDS)
    together = [name for group in groups for name in group]
    assert len(set(together)) == len(together)
    answered = trial_fields(a_trial(a_completion([1])))
    failed = trial_fields(a_trial(Failure(FailureKind.TIMEOUT, "x")))
    assert set(together) == answered.keys() | failed.keys()


def test_every_field_of_the_value_types_is_recorded() -> None:
    recorded = set(trial_fields(a_trial(a_completion([1]))))
    names = {f.name for cls in (Trial, TrialKey, Completion, Scored) for f in fields(cls)}
    renamed = {"key", "result", "scored", "prompt_tokens"}
    assert recorded == (names - renamed) | {"prompt_tokens_measured"}


def test_an_unscored_completion_is_never_written() -> None:
    trial = replace(a_trial(a_completion([1])), scored=None)
    with pytest.raises(ValueError, match="must be scored"):
        trial_fields(trial)


@pytest.mark.parametrize("score", [1, 2.0, None, 0.1 + 0.2, -0.0, 5e-324])
def test_a_score_comes_back_with_its_type(score: object, records: Records) -> None:
    changed = on_trials(lambda t: t.key.item == 0, with_scored(score=score))
    for record in decode(encode(changed(records))):
        if isinstance(record, Trial) and record.key.item == 0:
            assert record.scored is not None
            assert (type(record.scored.score), record.scored.score) == (type(score), score)


def test_texts_of_every_kind_come_back(records: Records) -> None:
    for text in ("", "\0", "a\nb\r\n", "\u2028", "😀", "\ud800", '"\\', "x" * 100_000):
        trial = a_trial(a_completion([1], text=text), a_scored(extracted_answer=text))
        (header, again) = decode(encode([records[0], trial]))
        assert again == trial
        assert isinstance(header, Header)


# Hostile input: whatever it is, it is refused or judged, never a crash.

WEIRD: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 2**31, 10**19, -(10**19), 0.5, -0.0, 1e308, -1e308, 5e-324,
    "", "A", "C", "confirm", "\ud800", "x" * 3000, [], {}, [[]], [None], {"a": 1},
    "AAAA", "AACAfw==", "AADAfwAAwH8=", "AACA/wAAgP8=", "//9/fw==", "nan", "bits", "-1",
)  # fmt: skip


def _paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from _paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _paths(inner, (*path, index))


def _put(row: dict[str, Any], path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(row))
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def _judged_or_refused(lines: Sequence[bytes]) -> Verdict | None:
    refusal = ""
    try:
        certificate = certify(lines, "x")
    except EvidenceError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert len(refusal) < 500
        return None
    json.loads(certificate.to_bytes())
    return certificate.verdict


def _forgeries(rng: random.Random, rows: Rows) -> Iterator[list[bytes]]:
    """Changed records with the chain made right again."""
    while True:
        changed = list(rows)
        for _ in range(rng.choice((1, 1, 2, 3))):
            i, j = rng.randrange(len(changed)), rng.randrange(len(changed))
            how = rng.random()
            if how < 0.75:
                path = rng.choice(list(_paths(changed[i])))
                changed[i] = _put(changed[i], path, rng.choice(WEIRD))
            elif how < 0.85:
                del changed[i]
            elif how < 0.92:
                changed.insert(j, changed[i])
            else:
                changed[i], changed[j] = changed[j], changed[i]
        yield _chained(changed)


def test_a_thousand_forgeries(lines: list[bytes]) -> None:
    rng = random.Random(20260101)
    verdicts = [
        _judged_or_refused(forged)
        for forged, _ in zip(_forgeries(rng, _rows(lines)), range(1000), strict=False)
    ]
    assert None in verdicts
    assert len(set(verdicts)) > 2


def test_a_thousand_broken_files(lines: list[bytes]) -> None:
    """Bytes flipped, cut out, doubled and inserted: the chain finds every one."""
    rng = random.Random(20260102)
    whole = b"".join(lines)
    hurt: tuple[Callable[[bytearray, int], None], ...] = (
        lambda data, at: data.__setitem__(at, data[at] ^ (1 << rng.randrange(8))),
        lambda data, at: data.__delitem__(slice(at, at + rng.randint(1, 50))),
        lambda data, at: data.__setitem__(slice(at, at), data[at : at + rng.randint(1, 50)]),
        lambda data, at: data.__setitem__(slice(at, at), rng.randbytes(3)),
    )
    last = len(whole) - len(lines[-1])
    for _ in range(1000):
        data = bytearray(whole)
        rng.choice(hurt)(data, rng.randrange(last))
        if bytes(data) != whole:
            assert _judged_or_refused(bytes(data).splitlines(keepends=True)) is None


# What the fold keeps count of.


def test_counts_of_a_run(records: Records) -> None:
    facts = remeasure(records)
    trials = [r for r in records if isinstance(r, Trial)]
    assert facts.n_trials == len(trials)
    assert facts.isolation.n_checked == sum(t.key.arm is not Arm.WARMUP for t in trials)
    for p in facts.passes:
        own = [t for t in trials if (t.key.arm, t.key.pass_index) == (p.arm, p.pass_index)]
        results = [t.result for t in own if isinstance(t.result, Completion)]
        assert p.n_planned == p.n_answered == len(own)
        assert (p.n_lost, p.n_missing, p.n_unexpected, p.ended) == (0, 0, 0, True)
        assert p.tokens == sum(r.completion_tokens or 0 for r in results)
        assert p.prompt_tokens == sum(r.prompt_tokens or 0 for r in results)
        assert p.tokens_known
        assert p.lanes == tuple(sorted({t.lane for t in own}))
        spans = [(t.dispatch_ts, t.complete_ts) for t in own]
        assert p.seconds == max(e for _, e in spans) - min(s for s, _ in spans)
        assert p.client_depth == (1 if p.arm in (Arm.A, Arm.A2, Arm.B) or p.lifetime == 0 else 2)
        assert (p.companions is not None) is (p.arm is Arm.C)
    assert facts.failure_modes == {
        arm.value: {"ok": sum(t.key.arm is arm for t in trials)}
        for arm in (Arm.A, Arm.A2, Arm.B, Arm.C)
    }


def test_lost_and_missing_trials_are_counted(records: Records) -> None:
    changed = on_trials(in_arm(Arm.C, 0, 1), lost())(records)
    changed = on_trials(in_arm(Arm.C, 0, 2), lambda t: None)(changed)
    facts = remeasure(changed)
    (p,) = (p for p in facts.passes if (p.arm, p.pass_index) == (Arm.C, 0))
    assert (p.n_planned, p.n_answered, p.n_lost, p.n_missing) == (6, 4, 1, 1)
    assert not p.tokens_known


def test_a_wave_that_never_ended_proves_nothing(records: Records) -> None:
    kept = tuple(r for r in records if not (isinstance(r, WaveEnd) and r.arm is Arm.C))
    facts = remeasure(kept)
    assert all(item.shared == 0 and item.n_co_batched == 0 for item in facts.items)


def test_what_is_not_compared_is_not_co_batched(records: Records) -> None:
    """Without A's answer nothing about an item is compared, however much it shared."""
    start, stop = pass_span(records, Arm.A)
    place = start + 1 + first_trial(records[start + 1 : stop], in_arm(Arm.A, 0, 1))
    trial = records[place]
    assert isinstance(trial, Trial)
    facts = remeasure((*records[:place], lost()(trial), *records[place + 1 :]))
    assert facts.items[1].n_compared == 0
    assert facts.items[1].n_co_batched == 0
    assert facts.items[1].shared > 0
    assert facts.untested == ["i1"]


def test_footer_and_control_plan_are_kept(records: Records) -> None:
    facts = remeasure(records)
    assert facts.footer == next(r for r in records if isinstance(r, Footer))
    assert facts.control.plan == next(r for r in records if isinstance(r, ControlPlan))
    assert sum(isinstance(r, PassEnd) for r in records) == len(facts.passes)


def test_an_answer_of_unknown_length_counts_as_shortest(records: Records) -> None:
    """It takes part in the order by length all the same."""
    unknown = on_trials(lambda t: t.key.item == 0, with_result(completion_tokens=None))
    facts = remeasure(unknown(records))
    assert "arm C pass 0 ran another schedule than planned" in facts.plan_faults
    assert facts.passes[0].tokens_known is False
