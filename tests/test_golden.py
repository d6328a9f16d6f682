"""`golden`: serial answers recorded as digests, and later runs held against them."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli import golden as verb
from batch_invariance.cli import golden_record
from batch_invariance.cli.verified_run import read_run
from batch_invariance.errors import BatchInvarianceError, FileFormatError
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.golden import Golden, parse_golden, record_golden
from batch_invariance.invariance_diff.golden_check import (
    GoldenCheck,
    GoldenOutcome,
    ItemState,
    check_golden,
)
from batch_invariance.invariance_diff.model import Arm, Trial
from batch_invariance.invariance_diff.records import Header, PassEnd
from batch_invariance.invariance_diff.reference_digests import (
    AnswerDigests,
    Gap,
    ReferenceCollector,
)
from batch_invariance.invariance_diff.subject_facts import Agreement, Run
from ci_fixtures import (
    CANARY,
    RED,
    at,
    call,
    edit,
    on_launches,
    on_model,
    on_subject,
    write_cert,
)
from core_fixtures import (
    Change,
    Ideal,
    Records,
    in_arm,
    lost,
    mutate,
    on_cell,
    on_header,
    on_trials,
    recertify,
    recount,
    then,
    with_result,
)
from report_fixtures import HOSTILE, HOSTILE_SHOWN

Capture = pytest.CaptureFixture[str]
LATER = at("2026-02-03T04:05:06Z")
EVERYWHERE_2 = on_trials(lambda t: t.key.item == 2, with_result(text="the new answer"))
A2_ALONE_2 = on_trials(in_arm(Arm.A2, 0, 2), with_result(text="the new answer"))
NO_LOGPROBS_2 = on_trials(lambda t: t.key.item == 2, with_result(logprobs=None))
OTHER_LOGPROBS = on_trials(lambda t: t.key.item == 2, with_result(top_ids=None))
NO_TOKENS_2 = on_trials(lambda t: t.key.item == 2, with_result(token_ids=None))
LOST_2 = on_trials(in_arm(Arm.A, 0, 2), lost())


@functools.cache
def ideal() -> Records:
    return Ideal([24] * 12).records()


@functools.cache
def measured(*changes: Change) -> tuple[Run, tuple[AnswerDigests, ...]]:
    records = then(*changes)(ideal()) if changes else ideal()
    collector = ReferenceCollector()
    for record in records:
        collector.feed(record)
    assert collector.header is not None
    return Run(recertify(records), collector.header), collector.items()


def recorded(*changes: Change) -> Golden:
    return record_golden(*measured(*changes))


def checked(
    then_: tuple[Change, ...], now: tuple[Change, ...], logprobs: bool = False
) -> GoldenCheck:
    return check_golden(recorded(*then_), *measured(*now, LATER), logprobs)


def state_of(check: GoldenCheck, name: str) -> ItemState:
    (state,) = [item.state for item in check.items if item.id == name]
    return state


# What is recorded.


def test_the_file_holds_digests_and_comes_back_as_it_was() -> None:
    golden = recorded()
    data = golden.to_bytes()
    assert parse_golden(data) == golden
    assert len(golden.items) == 12
    assert all(item.logprobs_sha256 and item.tokens_sha256 for item in golden.items)
    assert b"prompt" not in data
    assert parse_golden(data).to_bytes() == data


def test_the_reference_of_a_red_certificate_is_recorded() -> None:
    run, answers = measured(RED)
    assert run.certificate.verdict.value == "RED"
    assert record_golden(run, answers).gaps == {}


@pytest.mark.parametrize(("change", "gap"), [(A2_ALONE_2, Gap.UNSTABLE), (LOST_2, Gap.LOST)])
def test_an_item_without_a_stable_answer_is_not_recorded(change: Change, gap: Gap) -> None:
    golden = recorded_anyway(change)
    assert golden.gaps == {"i2": gap}
    item = golden.items[2]
    assert (item.text_sha256, item.tokens_sha256, item.logprobs_sha256) == (None, None, None)
    check = check_golden(golden, *measured(LATER))
    assert (check.outcome, state_of(check, "i2")) == (
        GoldenOutcome.UNVERIFIED,
        ItemState.NOT_RECORDED,
    )


def recorded_anyway(*changes: Change) -> Golden:
    """As `record_golden` does, with the gates of an unchanged run."""
    return record_golden(measured()[0], measured(*changes)[1])


def test_logprobs_that_the_repeat_moved_are_not_recorded() -> None:
    golden = recorded(on_trials(in_arm(Arm.A2, 0, 2), with_result(top_ids=None)))
    item = golden.items[2]
    assert (item.gap, item.logprobs_sha256) == (None, None)
    assert item.tokens_sha256 == recorded().items[2].tokens_sha256


def test_the_answers_of_an_interrupted_pass_give_way_to_those_of_its_repeat() -> None:
    collector = ReferenceCollector()
    header, *rest = ideal()
    first = [r for r in rest if isinstance(r, Trial) and r.key.arm is Arm.A]
    for record in (header, with_result(text="cut off")(first[2]), *rest):
        collector.feed(record)
    assert collector.items() == measured()[1]


def test_without_isolation_nothing_is_recorded() -> None:
    cached = on_trials(in_arm(Arm.A, 0, 1), with_result(cache_n=7))
    with pytest.raises(BatchInvarianceError, match="no reference: isolation"):
        recorded(cached)


# What a later run comes to.


def test_the_same_answers_are_the_same() -> None:
    check = checked((), (), logprobs=True)
    assert (check.outcome, check.reasons) == (GoldenOutcome.SAME, ())
    assert check.count(ItemState.SAME) == 12


def test_another_answer_is_changed_and_named() -> None:
    check = checked((), (EVERYWHERE_2,))
    assert check.outcome is GoldenOutcome.CHANGED
    assert check.reasons == ("1 of 12 answered otherwise: i2",)
    assert state_of(check, "i2") is ItemState.CHANGED
    assert check.count(ItemState.SAME) == 11


def test_a_change_under_load_alone_is_none_of_the_reference() -> None:
    assert checked((), (RED,)).outcome is GoldenOutcome.SAME


OTHER_PROMPT_2 = on_trials(lambda t: t.key.item == 2, lambda t: replace(t, request_sha256="5" * 64))


def without_item_11(records: Records) -> Records:
    """A run in which the last item was never asked alone."""
    serial = (Arm.A, Arm.A2)
    gone = mutate(
        records,
        lambda r: None if isinstance(r, Trial) and r.key.arm in serial and r.key.item == 11 else r,
    )
    return recount(gone)


@pytest.mark.parametrize(
    ("now", "name", "state"),
    [
        (OTHER_PROMPT_2, "i2", ItemState.OTHER_REQUEST),
        (A2_ALONE_2, "i2", ItemState.UNSTABLE),
        (LOST_2, "i2", ItemState.LOST),
        (NO_TOKENS_2, "i2", ItemState.UNKNOWN),
        (without_item_11, "i11", ItemState.LOST),
    ],
)
def test_what_is_not_shown_is_no_pass(now: Change, name: str, state: ItemState) -> None:
    check = checked((), (now,))
    assert (check.outcome, state_of(check, name)) == (GoldenOutcome.UNVERIFIED, state)
    assert any(name in reason for reason in check.reasons)


def test_tokens_absent_on_both_sides_are_not_the_same() -> None:
    check = checked((NO_TOKENS_2,), (NO_TOKENS_2,))
    assert (check.outcome, state_of(check, "i2")) == (GoldenOutcome.UNVERIFIED, ItemState.UNKNOWN)
    (item,) = [item for item in check.items if item.id == "i2"]
    assert (item.text, item.tokens) == (Agreement.SAME, Agreement.UNKNOWN)


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product((None, NO_LOGPROBS_2), repeat=2))
)
def test_absent_logprobs_never_equal(before: Change | None, after: Change | None) -> None:
    sides = tuple((c,) if c is not None else () for c in (before, after))
    absent = before is not None or after is not None
    check = checked(*sides, logprobs=True)
    wanted = GoldenOutcome.UNVERIFIED if absent else GoldenOutcome.SAME
    assert check.outcome is wanted
    assert check.n_logprobs(Agreement.UNKNOWN) == int(absent)
    assert checked(*sides).outcome is GoldenOutcome.SAME


def test_logprobs_decide_where_they_are_asked_for() -> None:
    assert checked((), (OTHER_LOGPROBS,)).outcome is GoldenOutcome.SAME
    check = checked((), (OTHER_LOGPROBS,), logprobs=True)
    assert check.outcome is GoldenOutcome.CHANGED
    assert check.reasons == ("1 of 12 with other logprobs: i2",)


def test_items_that_were_never_recorded_are_no_pass() -> None:
    golden = recorded()
    fewer = replace(golden, items=golden.items[:-1])
    check = check_golden(fewer, *measured(LATER))
    assert check.outcome is GoldenOutcome.UNVERIFIED
    assert state_of(check, "i11") is ItemState.NOT_RECORDED
    more = replace(golden, items=(*golden.items, replace(golden.items[0], id="gone")))
    check = check_golden(more, *measured(LATER))
    assert (check.outcome, state_of(check, "gone")) == (
        GoldenOutcome.UNVERIFIED,
        ItemState.MISSING,
    )


@pytest.mark.parametrize(
    "change",
    [on_cell(model="other"), on_model(sha256="9" * 64), CANARY],
    ids=["model", "file", "source"],
)
@pytest.mark.parametrize("answers", [(), (EVERYWHERE_2,)], ids=["same", "changed"])
def test_another_subject_is_unverified_whatever_it_answers(
    change: Change, answers: tuple[Change, ...]
) -> None:
    check = checked((), (change, *answers))
    assert check.outcome is GoldenOutcome.UNVERIFIED
    assert check.reasons[0].startswith("another subject")


def test_another_number_of_slots_does_not_decide() -> None:
    six = Ideal([24] * 12, n=6).records()
    collector = ReferenceCollector()
    for record in six:
        collector.feed(record)
    header = collector.header
    assert header is not None
    check = check_golden(recorded(), Run(recertify(six), header), collector.items())
    assert check.outcome is GoldenOutcome.SAME


def test_an_unknown_model_is_unverified() -> None:
    nothing = on_model(sha256=None)
    for then_, now in (((nothing,), ()), ((), (nothing,)), ((nothing,), (nothing,))):
        check = checked(then_, now)
        assert check.outcome is GoldenOutcome.UNVERIFIED
        assert "not known" in check.reasons[0]


def test_another_work_set_or_sampling_is_unverified() -> None:
    other = on_header(lambda h: replace(h, workset=replace(h.workset, sha256="7" * 64)))
    sampled = on_header(
        lambda h: replace(h, plan=replace(h.plan, sampling=replace(h.plan.sampling, seed=9)))
    )
    for change, said in ((other, "another work-set"), (sampled, "another sampling")):
        # The header alone is edited, so the gates of the unchanged run stand in.
        run, answers = measured()
        header = change(ideal())[0]
        assert isinstance(header, Header)
        cert = replace(
            run.certificate,
            workset=replace(run.certificate.workset, sha256=header.workset.sha256),
        )
        check = check_golden(recorded(), Run(cert, header), answers)
        assert (check.outcome, check.reasons) == (GoldenOutcome.UNVERIFIED, (said,))


def test_a_change_of_build_is_reported_and_does_not_decide() -> None:
    newer = on_subject(server_version="version: 10434 (1234567)")
    check = checked((), (newer, on_launches(executable_sha256="e" * 64)))
    assert check.outcome is GoldenOutcome.SAME
    agreement = {c.name: c.agreement for c in check.facts}
    assert agreement["server version"] is Agreement.CHANGED
    assert agreement["running executable"] is Agreement.CHANGED
    assert checked((), (newer, EVERYWHERE_2)).outcome is GoldenOutcome.CHANGED


# The file, tampered with.


def damaged(**changes: Any) -> bytes:
    value = json.loads(recorded().to_bytes())
    value.update(changes)
    return json.dumps(value).encode()


def resealed(change: Any) -> bytes:
    """An edit by someone who also sets the digest right."""
    value = json.loads(recorded().to_bytes())
    change(value)
    del value["content_sha256"]
    value["content_sha256"] = digest_of(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"{}", "its schema is not 'golden/1'"),
        (damaged(schema="golden/2"), "its schema is not 'golden/1'"),
        (damaged(model="other"), "content_sha256 is not that of its content"),
        (damaged(more=1), "more: unknown"),
        (damaged(items=[]), "items: there is none"),
        (damaged(source="nowhere"), "source: is not one of"),
        (damaged(evidence_sha256="x"), "evidence_sha256: is not 64 lower-case hex digits"),
        (damaged(content_sha256=None), "content_sha256 is not that of its content"),
        (resealed(lambda v: v.pop("ts_utc")), "ts_utc: is missing"),
        (resealed(lambda v: v["items"].append(v["items"][0])), "items[12]: is there twice"),
        (resealed(lambda v: v["items"][0].pop("gap")), "items[0].gap: is missing"),
        (
            resealed(lambda v: v["items"][0].update(text_sha256=None)),
            "items[0].gap: is not given",
        ),
        (resealed(lambda v: v["items"][0].update(gap="lost")), "beside digests of an answer"),
        (resealed(lambda v: v["facts"][0].update(kind=None)), "facts[0].kind: is missing"),
        (resealed(lambda v: v["facts"][0].update(values=[1])), "is not a list of texts"),
    ],
)
def test_what_is_no_golden_file_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(FileFormatError) as error:
        parse_golden(data)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_every_fault_is_listed_at_once() -> None:
    with pytest.raises(FileFormatError) as error:
        parse_golden(damaged(model=7, source="nowhere", more=1))
    assert len(error.value.issues) == 3


def test_a_fact_cut_out_of_the_file_is_unknown_not_the_same() -> None:
    data = resealed(lambda v: v.update(facts=v["facts"][1:]))
    check = check_golden(parse_golden(data), *measured(LATER))
    assert check.outcome is GoldenOutcome.UNVERIFIED
    assert "model file's digest is not known" in check.reasons[0]


# The command line.


def test_record_then_check(tmp_path: Path, capsys: Capture) -> None:
    cert, out = write_cert(tmp_path / "a"), tmp_path / "golden.json"
    done = call(verb, capsys, "record", cert, "-o", out)
    assert done.code == 0
    assert "20 of 20 serial answers of toy recorded, 20 with logprobs" in done.stdout
    later = write_cert(tmp_path / "b", then(LATER, RED))
    done = call(verb, capsys, "check", "--logprobs", out, later)
    assert done.code == 0
    assert done.lines[0].startswith("SAME  toy: 20 of 20 serial answers as recorded in ")
    assert "recorded run itself" not in done.stdout
    assert "recorded run itself" in call(verb, capsys, "check", out, cert).stdout
    other = write_cert(tmp_path / "c", EVERYWHERE_2)
    done = call(verb, capsys, "check", out, other)
    assert (done.code, done.lines[1]) == (3, "  - 1 of 20 answered otherwise: i2")
    said = call(verb, capsys, "check", out, other, "--json").json
    assert (said["outcome"], said["exit_code"]) == ("CHANGED", 3)
    assert [i["id"] for i in said["items"] if i["state"] == "changed"] == ["i2"]


def test_record_says_what_it_could_not(tmp_path: Path, capsys: Capture) -> None:
    cert, out = write_cert(tmp_path / "a", A2_ALONE_2), tmp_path / "golden.json"
    done = call(verb, capsys, "record", cert, "-o", out, "--json")
    assert (done.code, done.json["not_recorded"]) == (3, {"i2": "unstable"})
    done = call(verb, capsys, "check", out, write_cert(tmp_path / "b"))
    assert done.code == 3
    assert done.lines[0].startswith("UNVERIFIED  toy: 19 of 20")
    assert "without a record: i2" in done.lines[1]


def test_no_file_is_written_over(tmp_path: Path, capsys: Capture) -> None:
    cert, out = write_cert(tmp_path / "a"), tmp_path / "golden.json"
    out.write_text("mine")
    done = call(verb, capsys, "record", cert, "-o", out)
    assert (done.code, out.read_text()) == (2, "mine")
    assert "exists already" in done.stderr
    assert call(verb, capsys, "record", cert, "-o", tmp_path / "no" / "g.json").code == 2


def test_a_file_that_comes_while_the_evidence_is_read_is_not_written_over(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, out = write_cert(tmp_path / "a"), tmp_path / "golden.json"

    def meanwhile(path: Path, evidence: Path | None) -> object:
        out.write_text("another's")
        return read_run(path, evidence)

    monkeypatch.setattr(golden_record, "read_run", meanwhile)
    assert call(verb, capsys, "record", cert, "-o", out).code == 2
    assert out.read_text() == "another's"


def test_what_is_not_borne_out_is_neither_recorded_nor_checked(
    tmp_path: Path, capsys: Capture
) -> None:
    good, out = write_cert(tmp_path / "a"), tmp_path / "golden.json"
    bad = write_cert(tmp_path / "b", RED)
    edit(bad, lambda cert: cert.update(status="green", verdict="GREEN"))
    done = call(verb, capsys, "record", bad, "-o", out)
    assert (done.code, out.exists()) == (1, False)
    assert "does not bear it out" in done.stderr
    assert call(verb, capsys, "record", good, "-o", out).code == 0
    assert call(verb, capsys, "check", out, bad).code == 1
    assert call(verb, capsys, "check", good, good).code == 1


def test_an_unproved_reference_is_not_recorded(tmp_path: Path, capsys: Capture) -> None:
    unended = write_cert(tmp_path / "a", lambda rs: tuple(r for r in rs if not _is_end_of_a(r)))
    out = tmp_path / "golden.json"
    done = call(verb, capsys, "record", unended, "-o", out)
    assert (done.code, out.exists()) == (1, False)
    assert "nothing recorded" in done.stderr


def _is_end_of_a(record: object) -> bool:
    return isinstance(record, PassEnd) and record.arm is Arm.A2


def test_what_others_wrote_cannot_steer_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "golden.json"
    out.write_bytes(resealed(lambda v: (v.update(model=HOSTILE), v["items"][3].update(id=HOSTILE))))
    text = call(verb, capsys, "check", out, write_cert(tmp_path / "b")).stdout
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count(HOSTILE_SHOWN) >= 2
