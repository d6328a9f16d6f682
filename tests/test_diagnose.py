"""Remedies: what is tried, in which order, what counts as one, and what the user is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from batch_invariance.errors import ServerError, UsageError
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.live_invariance.diagnosis import (
    BUDGET,
    TODAY,
    Attempt,
    Diagnosis,
    DiagnosisPlan,
    Measured,
    diagnose,
    screening_ids,
)
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.remedies import (
    LeftOut,
    Remedy,
    Today,
    apply_remedies,
    remedies_for,
)
from reports_fixtures import cli, make_cell

GREEN, RED, UNVERIFIED = Verdict.GREEN, Verdict.RED, Verdict.UNVERIFIED


def today(*flags: str, kv_unified: bool | None = False, parallel: int = 4) -> Today:
    return Today(UserFlags(flags), kv_unified, parallel, None)


def names(cell: Today, *own: Sequence[str]) -> dict[str, str | None]:
    """What would be tried, with None, and what is left out, with its reason."""
    return {r.name: getattr(r, "why", None) for r in remedies_for(cell, own)}


def test_a_plain_cell_is_offered_every_setting_that_it_does_not_have() -> None:
    assert names(today()) == {
        "flash attention off": None,
        "one KV cache per slot": "each slot has its own already",
        "f32 KV cache": None,
        "micro-batch of 64": None,
        "no repacked weights": None,
        "prompt cache off": "off already: every request of a run states it",
    }


def test_what_is_in_force_or_impossible_is_left_out_with_its_reason() -> None:
    flags = ("--flash-attn", "off", "-ctk", "f32", "-ctv", "f32", "-ub", "64", "-nr")
    found = names(today(*flags))
    assert set(found.values()) == {
        "off already",
        "each slot has its own already",
        "f32 already",
        "64 already",
        "off already: every request of a run states it",
    }
    quantised = names(today("--cache-type-v", "q8_0", kv_unified=True))
    assert quantised["flash attention off"] == "a quantised V cache needs flash attention"
    assert quantised["one KV cache per slot"] is None


def test_a_setting_that_the_build_does_not_know_is_not_tried() -> None:
    known = Today(UserFlags(), False, 4, frozenset({"--flash-attn", "-ub"}))
    found = names(known)
    assert found["no repacked weights"] == "this build does not know --no-repack"
    assert found["flash attention off"] is None


def test_ones_own_setting_comes_first_and_replaces_its_other_spellings() -> None:
    cell = today("-fa", "on", "--threads=2")
    own = remedies_for(cell, [["--flash-attn", "auto"], ["--threads", "1"]])[:2]
    assert [r.name for r in own] == ["--flash-attn auto", "--threads 1"]
    remedies = [r for r in own if isinstance(r, Remedy)]
    assert apply_remedies(cell.flags, remedies).flags == (
        "--flash-attn", "auto", "--threads", "1",
    )  # fmt: skip
    (same,) = remedies_for(today("--threads", "1"), [["--threads", "1"]])[:1]
    assert same == LeftOut("--threads 1", "in force already")
    with pytest.raises(UsageError, match="--parallel"):
        remedies_for(cell, [["--parallel", "2"]])
    with pytest.raises(UsageError, match="at least one server flag"):
        remedies_for(cell, [[]])


def test_a_setting_that_comes_to_the_same_is_tried_once() -> None:
    found = names(today(), ["--flash-attn", "off"])
    assert found["--flash-attn off"] is None
    assert found["flash attention off"] == "the same as --flash-attn off"


# The order of attempts, against cells that are made up.

Outcome = Sequence[int]
"""Diverging ids of the runs of one setting, in their order; the last stands for all later ones."""


def made_up(outcomes: Mapping[str, Outcome]) -> tuple[list[Attempt], Callable[[Attempt], Measured]]:
    log: list[Attempt] = []

    def run(attempt: Attempt) -> Measured:
        seen = sum(before.name == attempt.name for before in log)
        log.append(attempt)
        row = outcomes.get(attempt.name, [3])
        n = row[min(seen, len(row) - 1)]
        if n < 0:
            raise ServerError("the server died at its start: exit code 1\nerror: no such thing")
        divergent = tuple(f"q{i}" for i in range(n))
        verdict = RED if n else GREEN
        return Measured(attempt.scope, verdict, divergent, 8, 10.0, 20.0, Path("c.json"))

    return log, run


FA, KV, UB = (
    Remedy("fa", ("--flash-attn", "off"), ("-fa", "--flash-attn")),
    Remedy("kv", ("-ctk", "f32"), ("-ctk",)),
    Remedy("ub", ("-ub", "64"), ("-ub",)),
)


def found(
    outcomes: Mapping[str, Outcome], parallel: int = 2, **more: object
) -> tuple[list[tuple[str, str]], Diagnosis]:
    log, run = made_up(outcomes)
    plan = DiagnosisPlan(today(parallel=parallel), (FA, KV, UB), 2, parallel > 2)
    budget = more.get("budget")
    used = iter(range(1000))
    result = diagnose(plan, run, lambda: budget is not None and next(used) >= int(str(budget)))
    return [(attempt.name, attempt.scope.value) for attempt in log], result


def test_a_remedy_is_screened_and_then_confirmed_by_every_full_run() -> None:
    log, result = found({"fa": [0]})
    assert log == [
        (TODAY, "screen"), ("fa", "screen"), ("fa", "full"), ("fa", "full"),
        ("kv", "screen"), ("ub", "screen"),
    ]  # fmt: skip
    assert [row.name for row in result.remedies] == ["fa"]
    assert [row.verdict for row in result.rows] == [GREEN, RED, RED]


def test_clean_only_mostly_is_not_green() -> None:
    _, result = found({"fa": [0, 0, 1], "kv": [1], "ub": [1], "fa + kv": [2], "fa + ub": [2]})
    row = result.rows[0]
    assert (row.name, row.verdict, row.n_green, row.n_divergent) == ("fa", RED, 1, 1)
    assert result.remedies == ()


def test_settings_are_combined_only_where_none_helps_alone() -> None:
    log, result = found({TODAY: [5], "fa": [2], "kv": [1], "ub": [5], "kv + fa": [0]})
    assert [row.name for row in result.rows] == ["fa", "kv", "ub", "kv + fa"]
    assert [row.name for row in result.remedies] == ["kv + fa"]
    assert result.rows[-1].flags.flags == ("-ctk", "f32", "--flash-attn", "off")
    assert ("kv + ub", "screen") not in log


def test_help_is_measured_on_the_items_that_today_was_measured_on() -> None:
    # Clean on the screen and 7 ids of the full cell: more help than 2 ids on the screen.
    _, result = found({TODAY: [3], "fa": [2], "kv": [0, 7], "ub": [3]})
    assert [row.name for row in result.rows][3:] == ["kv + fa"]


def test_all_of_them_together_come_last() -> None:
    _, result = found({TODAY: [5], "fa": [2], "kv": [1], "ub": [3]})
    assert [row.name for row in result.rows][3:] == [
        "kv + fa",
        "kv + ub",
        "fa + ub",
        "kv + fa + ub",
    ]


@pytest.mark.parametrize(
    ("green", "tried", "largest"),
    [((), [4, 2], None), ((2, 3), [4, 2, 3], 3), ((2, 3, 4, 5, 6), [4, 6, 7], 6)],
)
def test_the_largest_number_of_slots_is_found_by_bisection(
    green: Sequence[int], tried: Sequence[int], largest: int | None
) -> None:
    outcomes: dict[str, Outcome] = {f"{n} slots": [0] for n in green}
    _, result = found(outcomes, parallel=8)
    assert [row.parallel for row in result.by_slots] == tried
    assert result.largest_n == largest


def test_a_divergence_that_needs_all_items_widens_the_screen() -> None:
    log, result = found({TODAY: [0, 2]})
    assert log[:3] == [(TODAY, "screen"), (TODAY, "wide screen"), ("fa", "wide screen")]
    assert result.reproduced


def test_a_divergence_that_does_not_come_back_ends_the_search() -> None:
    log, result = found({TODAY: [0]}, parallel=8)
    assert [scope for _, scope in log] == ["screen", "wide screen", "full"]
    assert (result.reproduced, result.rows, result.by_slots) == (False, (), ())


def test_a_setting_that_does_not_start_is_a_row_with_its_reason() -> None:
    _, result = found({"fa": [-1], "kv": [0]})
    row = result.rows[0]
    assert (row.verdict, row.runs) == (None, ())
    assert row.why is not None
    assert row.why.startswith("the server died at its start")
    assert [r.name for r in result.remedies] == ["kv"]


def test_a_budget_that_is_used_up_leaves_settings_unproved() -> None:
    _, result = found({"fa": [0]}, budget=2)
    assert [(row.verdict, row.why) for row in result.rows[:2]] == [
        (UNVERIFIED, BUDGET),
        (None, BUDGET),
    ]
    assert result.remedies == ()


# As a user meets it.


def test_a_server_that_mixes_up_three_or_more_is_sound_with_two_slots(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, mix_donor_at=3)
    red = cell.run("--parallel", 4)
    assert (red.code, red.verdict) == (3, "RED")
    certificate = red.certificate_path
    words = ["diagnose", certificate, "--out-dir", tmp_path / "diagnosis"]
    outcome = cli(*words, "--confirm-runs", 1, "--own-only", "--remedy=--threads 1")
    assert outcome.code == 3, outcome.stderr
    assert "with today's flags the largest N found GREEN is 2" in outcome.stdout
    report = json.loads((tmp_path / "diagnosis" / "diagnosis.json").read_bytes())
    rows = {row["name"]: row for row in report["rows"]}
    assert rows[TODAY]["verdict"] == "RED"
    assert rows["--threads 1"]["verdict"] == "RED"
    assert rows["2 slots"]["verdict"] == "GREEN"
    assert rows["3 slots"]["verdict"] == "RED"
    assert (report["remedy"], report["largest_n"], report["exit_code"]) == (None, 2, 3)
    for row in report["rows"]:
        for run in row["runs"]:
            assert cli("verify-cert", run["certificate"]).code in (0, 3)
    again = cli(*words)
    assert again.code == 2
    assert "exists already" in again.stderr


def test_a_cell_without_a_divergence_needs_no_remedy(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    green = cell.run()
    assert green.code == 0
    certificate = green.certificate_path
    outcome = cli("diagnose", certificate, "--out-dir", tmp_path / "diagnosis")
    said = "nothing to mend: the cell is GREEN and no output differed under load\n"
    assert (outcome.code, outcome.stdout) == (0, said)
    assert not (tmp_path / "diagnosis").exists()
    words = ["diagnose", *cell.words()[1:], "--out-dir", tmp_path / "diagnosis"]
    outcome = cli(*words)
    assert (outcome.code, outcome.stdout) == (0, said)
    (made,) = (tmp_path / "diagnosis" / "01-as-today").glob("*.json")
    assert cli("verify-cert", made).code == 0


def test_a_certificate_that_is_not_borne_out_is_not_diagnosed(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    certificate = cell.run().certificate_path
    certificate.write_bytes(certificate.read_bytes().replace(b'"ctx": 512', b'"ctx": 768'))
    outcome = cli("diagnose", certificate, "--out-dir", tmp_path / "diagnosis")
    assert outcome.code == 1
    assert not (tmp_path / "diagnosis").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--remedy", "--parallel 2"], "--parallel"),
        (["--remedy", "'"], "No closing quotation"),
        (["--confirm-runs", "0"], "give 1 to 100"),
        (["--max-tokens", "64"], "--max-tokens: with a certificate the cell comes from its"),
        (["--ctx", "512"], "--ctx: with a certificate the cell comes from its evidence"),
        (["--", "-fa", "off"], "the server's flags come from its evidence"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    tmp_path: Path, words: Sequence[str], said: str
) -> None:
    given = words if words[0] == "--" else [f"{words[0]}={words[1]}"]
    outcome = cli("diagnose", tmp_path / "c.json", "--out-dir", tmp_path / "d", *given)
    assert outcome.code == 2
    assert said in outcome.stderr


def test_the_screen_holds_divergences_and_their_companions_in_the_order_of_the_set() -> None:
    folder = Path(__file__).parent.parent / "examples" / "certs"
    with (folder / "SmolLM2-135M-Instruct.Q4_1__ctx2048__N4.evidence.jsonl").open("rb") as lines:
        cert = certify(lines, "evidence.jsonl")
    ids = [row.id for row in cert.rows]
    first = min(
        cert.divergence_report["AC"].per_id, key=lambda r: r.first_divergence.margin_x or 0.0
    )
    chosen = screening_ids(cert, ids, 8)
    assert chosen == [i for i in ids if i in chosen]
    assert len(chosen) == 8
    assert {first.id, *first.first_divergence.companions} <= set(chosen)
    assert len(screening_ids(cert, ids, 4)) == 4
