"""`compare`: what two certificates of one cell say of a change, and what they cannot say."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli import compare
from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.compare import (
    Comparison,
    IdChange,
    Kind,
    Outcome,
    compare_runs,
)
from batch_invariance.invariance_diff.model import Arm, Verdict
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.subject_facts import Agreement, Run, compare_facts, facts_of
from ci_fixtures import (
    AMBER,
    ANOTHER_SCORE,
    ANOTHER_TEXT,
    CANARY,
    RED,
    UNVERIFIED,
    at,
    call,
    edit,
    on_launches,
    on_model,
    on_subject,
    unchanged,
    write_cert,
)
from core_fixtures import (
    Change,
    Ideal,
    Records,
    in_arm,
    lost,
    on_cell,
    on_header,
    on_plan,
    on_trials,
    recertify,
    then,
    with_result,
)
from report_fixtures import HOSTILE_SHOWN, hostile

Capture = pytest.CaptureFixture[str]
LATER = at("2026-02-03T04:05:06Z")
ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def ideal() -> Records:
    return Ideal([24] * 12).records()


@functools.cache
def run_of(*changes: Change) -> Run:
    records = then(*changes)(ideal()) if changes else ideal()
    header = records[0]
    assert isinstance(header, Header)
    return Run(recertify(records), header)


def compared(before: tuple[Change, ...], after: tuple[Change, ...]) -> Comparison:
    return compare_runs(run_of(*before), run_of(*after, LATER))


def differing(item: int, *, score: bool) -> Change:
    """One trial of C of this item differs, in the score or in the text alone."""

    def both(trial: Any) -> Any:
        return ANOTHER_SCORE(ANOTHER_TEXT(trial)) if score else ANOTHER_TEXT(trial)

    return on_trials(in_arm(Arm.C, 0, item), both)


TOKEN_3, SCORE_3 = differing(3, score=False), differing(3, score=True)
SCORE_5, TOKEN_7 = differing(5, score=True), differing(7, score=False)
SERIAL_ITEM_2 = on_trials(lambda t: t.key.item == 2, with_result(text="the new answer"))


def found(result: Comparison) -> dict[str, IdChange]:
    return {entry.id: entry.change for entry in result.ids or ()}


# What became of the ids.


def test_nothing_changed_is_not_worse() -> None:
    result = compared((), ())
    assert (result.outcome, result.reasons, result.ids) == (Outcome.NOT_WORSE, (), ())
    assert all(change.agreement is not Agreement.CHANGED for change in result.facts)
    assert result.reference is not None
    assert (result.reference.n_same, result.reference.changed) == (12, ())
    assert {gate.agreement for gate in result.gates} == {Agreement.SAME}


def test_ids_are_new_gone_in_both_or_of_another_kind() -> None:
    before = (TOKEN_3, SCORE_5, differing(1, score=True))
    after = (SCORE_3, SCORE_5, TOKEN_7)
    result = compared(before, after)
    assert found(result) == {
        "i1": IdChange.GONE,
        "i3": IdChange.KIND_CHANGED,
        "i5": IdChange.IN_BOTH,
        "i7": IdChange.NEW,
    }
    (third,) = [entry for entry in result.ids or () if entry.id == "i3"]
    assert (third.before, third.after) == (Kind.TOKEN, Kind.SCORE)
    assert result.outcome is Outcome.WORSE
    assert "i7 (1)" in result.reasons[0]
    assert "i3 (1)" in result.reasons[1]


@pytest.mark.parametrize(
    ("before", "after"),
    [((), (SCORE_3,)), ((TOKEN_3,), (SCORE_3, TOKEN_7)), ((SCORE_5, TOKEN_7), (SCORE_5,))],
)
def test_swapping_the_sides_swaps_new_and_gone(
    before: tuple[Change, ...], after: tuple[Change, ...]
) -> None:
    there = compare_runs(run_of(*before), run_of(*after, LATER))
    back = compare_runs(run_of(*after, LATER), run_of(*before))
    swapped = {IdChange.NEW: IdChange.GONE, IdChange.GONE: IdChange.NEW}
    assert found(back) == {name: swapped.get(c, c) for name, c in found(there).items()}
    assert [(f.before, f.after) for f in back.facts] == [(f.after, f.before) for f in there.facts]
    assert (back.before, back.after) == (there.after, there.before)
    assert {g.gate: (g.before, g.after) for g in back.gates} == {
        g.gate: (g.after, g.before) for g in there.gates
    }


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((), (SCORE_3,), Outcome.WORSE),
        ((), (TOKEN_3,), Outcome.WORSE),
        ((TOKEN_3,), (SCORE_3,), Outcome.WORSE),
        ((SCORE_3,), (SCORE_5,), Outcome.WORSE),
        ((SCORE_3, TOKEN_7), (RED,), Outcome.NOT_WORSE),
        ((RED,), (AMBER,), Outcome.NOT_WORSE),
        ((SCORE_3,), (), Outcome.NOT_WORSE),
    ],
)
def test_the_outcome_follows_from_verdict_and_ids(
    before: tuple[Change, ...], after: tuple[Change, ...], outcome: Outcome
) -> None:
    result = compared(before, after)
    assert result.outcome is outcome
    assert bool(result.reasons) is (outcome is not Outcome.NOT_WORSE)


def test_unverified_after_red_is_no_success() -> None:
    result = compared((SCORE_3,), (on_trials(in_arm(Arm.C, 0, 4), lost()),))
    assert (result.before.verdict, result.after.verdict) == (Verdict.RED, Verdict.UNVERIFIED)
    assert result.outcome is Outcome.UNPROVED
    assert "UNVERIFIED" in result.reasons[0]


def test_a_divergence_that_was_not_tried_again_is_not_gone() -> None:
    result = compared((SCORE_3,), (on_trials(in_arm(Arm.C, None, 3), lost()),))
    assert found(result) == {"i3": IdChange.UNPROVED}
    assert result.outcome is Outcome.UNPROVED


def test_a_red_that_lost_trials_does_not_show_that_no_more_differs() -> None:
    many_lost = on_trials(lambda t: t.key.arm is Arm.C and t.key.item in (4, 6), lost())
    result = compared((RED,), (RED, many_lost))
    assert (result.before.verdict, result.after.verdict) == (Verdict.RED, Verdict.RED)
    assert result.outcome is Outcome.UNPROVED
    assert "lost" in result.reasons[0]


def test_a_shorter_look_does_not_show_that_it_is_no_worse() -> None:
    longer = recertify(ideal())
    header = ideal()[0]
    assert isinstance(header, Header)
    shorter = replace(run_of(LATER).certificate, n_passes=longer.n_passes - 1)
    result = compare_runs(Run(longer, header), Run(shorter, header))
    assert result.outcome is Outcome.UNPROVED
    assert "a shorter look" in result.reasons[0]


# What the subject is.


def test_changes_of_build_flags_device_and_environment_are_told_apart() -> None:
    after = (
        on_subject(server_version="version: 10434 (1234567)", server_sha256="f" * 64),
        on_cell(server_flags=("--flash-attn", "off"), environment={"GGML_X": "1"}),
        on_launches(executable_sha256="e" * 64, system_info="n_threads = 9"),
        on_header(lambda h: replace(h, observer=replace(h.observer, system="Linux 9"))),
        on_model(sha256="9" * 64),
    )
    changed = {
        (c.kind.value, c.name)
        for c in compared((on_launches(executable_sha256="d" * 64, system_info="n"),), after).facts
        if c.agreement is Agreement.CHANGED
    }
    assert changed == {
        ("model", "model file"),
        ("build", "server version"),
        ("build", "server file"),
        ("build", "running executable"),
        ("flags", "server flags"),
        ("device", "engine's report"),
        ("environment", "variables"),
        ("environment", "system"),
    }


def test_what_neither_side_knows_is_not_the_same() -> None:
    nothing = on_model(sha256=None)
    facts = {c.name: c.agreement for c in compared((nothing,), (nothing,)).facts}
    assert facts["model file"] is Agreement.UNKNOWN
    assert facts["processor"] is Agreement.UNKNOWN


def test_a_fact_of_one_side_alone_is_unknown() -> None:
    facts = facts_of(run_of())
    changes = compare_facts(facts[1:], facts)
    last = changes[-1]
    assert (last.name, last.agreement) == (facts[0].name, Agreement.UNKNOWN)
    assert len(changes) == len(facts)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (on_plan(sampling=replace(ideal()[0].plan.sampling, seed=5)), "sampling"),  # type: ignore[union-attr]
        (
            on_header(lambda h: replace(h, scorer=replace(h.scorer, sha256="8" * 64))),
            "scorer",
        ),
        (
            on_header(lambda h: replace(h, workset=replace(h.workset, sha256="7" * 64))),
            "work-set",
        ),
    ],
)
def test_other_questions_are_not_compared_by_id(change: Change, name: str) -> None:
    result = compared((SCORE_3,), (change,))
    assert (result.incomparable, result.ids, result.reference) == ((name,), None, None)
    assert result.outcome is Outcome.UNPROVED


def test_serial_answers_that_changed_are_named() -> None:
    result = compared((), (SERIAL_ITEM_2,))
    assert result.reference is not None
    assert (result.reference.n_same, result.reference.changed) == (11, ("i2",))
    one_lost = compared((), (on_trials(in_arm(Arm.A, 0, 4), lost()),))
    assert one_lost.reference is not None
    assert one_lost.reference.unknown == ("i4",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (on_cell(model="other"), "model toy and other"),
        (on_cell(ctx=1024), "context per slot 512 and 1024"),
        (CANARY, "source live and canary"),
    ],
)
def test_two_cells_are_refused_with_what_differs(change: Change, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compared((), (change,))


def test_one_run_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="same evidence"):
        compare_runs(run_of(), run_of())


# The command line.


def pair(tmp_path: Path, before: Change, after: Change) -> tuple[Path, Path]:
    return (
        write_cert(tmp_path / "before", before),
        write_cert(tmp_path / "after", then(after, LATER)),
    )


@pytest.mark.parametrize(
    ("before", "after", "code", "word"),
    [
        (unchanged, unchanged, 0, "NOT WORSE"),
        (RED, AMBER, 0, "NOT WORSE"),
        (AMBER, RED, 3, "WORSE"),
        (RED, UNVERIFIED, 3, "UNPROVED"),
    ],
)
def test_the_exit_code_is_the_outcome(
    tmp_path: Path, capsys: Capture, before: Change, after: Change, code: int, word: str
) -> None:
    files = pair(tmp_path, before, after)
    done = call(compare, capsys, *files)
    assert (done.code, done.lines[0].split("  ")[0]) == (code, word)
    said = call(compare, capsys, *files, "--json").json
    assert said["exit_code"] == code
    assert said["outcome"] == word.lower().replace(" ", "_")


def test_gates_are_shown_with_what_is_measured_and_asked(tmp_path: Path, capsys: Capture) -> None:
    text = call(compare, capsys, *pair(tmp_path, unchanged, RED)).stdout
    assert "F0_score  PASS -> FAIL  (required: every invariant field equal" in text
    assert "after   1 ids differ: i3" in text
    assert "new          1  score: i3" in text
    assert "live" not in text.splitlines()[0]


def test_what_is_not_borne_out_is_refused(tmp_path: Path, capsys: Capture) -> None:
    before, after = pair(tmp_path, unchanged, RED)
    edit(after, lambda cert: cert.update(mismatch=[]))
    done = call(compare, capsys, before, after)
    assert (done.code, done.stdout) == (1, "")
    assert "does not bear it out: mismatch: says []" in done.stderr
    before.with_suffix(".evidence.jsonl").unlink()
    assert "there is no evidence" in call(compare, capsys, before, after).stderr


def test_flags_of_both_sides_are_shown(tmp_path: Path, capsys: Capture) -> None:
    files = pair(tmp_path, unchanged, on_cell(server_flags=("--flash-attn", "off")))
    lines = call(compare, capsys, *files).lines
    at_flags = lines.index("  changed  server flags")
    assert lines[at_flags + 1 : at_flags + 3] == [
        "    before  none",
        "    after   --flash-attn off",
    ]


def test_what_others_wrote_cannot_steer_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    text = call(compare, capsys, *pair(tmp_path, hostile, then(hostile, RED))).stdout
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert HOSTILE_SHOWN in text


def test_the_checked_in_runs_are_of_two_cells(capsys: Capture) -> None:
    certs = ROOT / "examples" / "certs"
    done = call(
        compare, capsys, certs / "demo_dense_live_cert.json", certs / "demo_short_live_cert.json"
    )
    assert done.code == 2
    assert "context per slot 2048 and 1024" in done.stderr
