"""Servers that die, and drivers that are ended: nothing is left running, nothing is made up."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import fault_runs
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import LifetimeEnd
from endings import ENDINGS, Ending, Run, end_all
from fake_llama_server import plant_faults, write_fake_server
from fault_cases import CASES, Group
from fault_runs import LEAST, of_run
from reports_fixtures import QUICK, cli, make_cell, prompts
from waiting import runs, wait_until


def test_d17_a_death_under_load_is_unverified_and_says_how() -> None:
    # The warm-up's two and the first wave's two pass; the second wave kills it.
    outcome = of_run("dies_in_c")
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == {"server_died"}
    assert "server died: the server died in arm C: killed by SIGSEGV" in outcome.stderr
    assert "the server died in arm C: killed by SIGSEGV" in outcome.stdout
    # It stops at once: the dead server is asked for nothing more.
    assert len([t for t in outcome.trials() if t.key.arm is Arm.C]) == 4
    end = next(r for r in reversed(outcome.records()) if isinstance(r, LifetimeEnd))
    assert end.exit is not None
    assert "GGML_ASSERT(fake fault) failed" in end.exit.log_tail
    # What was not reached is untested, and no divergence.
    assert outcome.cert["divergence_report"]["AC"]["n_divergent"] == 0
    assert len(outcome.cert["untested_ids"]) == 6


def test_d17_an_exit_under_load_is_told_by_its_code() -> None:
    outcome = of_run("dies_in_p")
    assert "server died: the server died in arm P: exit code 9" in outcome.stderr
    assert "the server died in arm P: exit code 9" in outcome.stdout


def test_d17_a_death_before_the_load_is_no_verdict_and_shows_the_log() -> None:
    outcome = of_run("dies_in_a")
    assert outcome.code == 1
    assert outcome.certificates() == []
    assert outcome.stdout == ""
    assert "the server died in arm A (exit code 9)" in outcome.stderr
    assert "boom \\x1b[31m at line 7" in outcome.stderr
    assert outcome.footer().ended == "the server died in arm A"


@pytest.mark.parametrize(
    ("name", "how"), [("dies_at_start", "exit code 7"), ("wrong_processor", "SIGILL")]
)
def test_a_server_that_dies_at_start_is_no_verdict(name: str, how: str) -> None:
    outcome = of_run(name)
    assert outcome.code == 1
    assert outcome.certificates() == []
    assert how in outcome.stderr
    assert "GGML_ASSERT(fake fault) failed" in outcome.stderr


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """A server of the user's own, beside those of the runs."""
    folder = tmp_path_factory.mktemp("neighbour")
    server = write_fake_server(folder, journal=str(folder / "journal"))
    process = subprocess.Popen(
        [str(server), "-m", "own.gguf", "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
    )
    wait_until(lambda: "listening on" in (folder / "log").read_text())
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory, neighbour: subprocess.Popen[bytes]
) -> dict[str, Run]:
    return end_all(tmp_path_factory.mktemp)


def names(exit_codes: Collection[int]) -> list[str]:
    """The endings whose first case has one of these exit codes."""
    return [e.cases[0] for e in ENDINGS if CASES[e.cases[0]].exit_code in exit_codes]


SIGNALLED = (130, 143, 129, -9)
TIDY = [name for name in names(SIGNALLED) if name not in ("sigint_twice", "sigkill")]
IN_C = [name for name in names(SIGNALLED) if name != "sighup"]


def test_every_ending_of_the_list_is_tried() -> None:
    tried = [name for ending in ENDINGS for name in ending.cases]
    assert sorted(tried) == sorted(n for n, c in CASES.items() if c.group is Group.OWNERSHIP)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: str(ending.cases[0]))
def test_d10_an_ended_run_leaves_nothing_but_its_files(
    ended: dict[str, Run], ending: Ending
) -> None:
    run = ended[ending.cases[0]]
    for name in ending.cases:
        fault_runs.check(CASES[name], run.outcome)
    pids = [pid for start in run.cell.starts() for pid in (start["pid"], start["guardian"])]
    assert len(pids) == (2 if ending.cases[0] == "sighup" else 4)
    # Within the five seconds of a driver that was killed.
    wait_until(lambda: not any(runs(pid) for pid in pids), 5.0)
    wait_until(lambda: list(run.tmp_dir.iterdir()) == [], 5.0)
    assert not list(run.cell.out_dir.glob(".tmp-*"))


@pytest.mark.parametrize("name", TIDY)
def test_a_tidy_end_is_written_into_the_evidence(ended: dict[str, Run], name: str) -> None:
    outcome = ended[name].outcome
    assert "interrupted" in {event.what for event in outcome.events()}
    if name != "closed_terminal":
        assert "evidence that was written is kept" in outcome.stderr


@pytest.mark.parametrize("name", IN_C)
def test_an_ended_run_goes_on_and_gets_its_verdict(ended: dict[str, Run], name: str) -> None:
    cell = ended[name].cell
    plant_faults(cell.folder, behaviour=QUICK, journal=str(cell.folder / "journal2"))
    evidence = ended[name].outcome.evidence_path
    assert {t.key.arm for t in ended[name].outcome.trials()} >= {Arm.A, Arm.A2, Arm.B}
    before = evidence.read_bytes()
    n_open = before.count(b'"kind":"pass_start"') - before.count(b'"kind":"pass_end"')
    moved = cell.folder / "moved" / cell.model.name
    moved.parent.mkdir()
    cell.model.rename(moved)
    outcome = cli("resume", evidence, "--model", moved, out_dir=cell.out_dir)
    moved.rename(cell.model)
    assert (outcome.code, outcome.verdict) == (0, "GREEN"), outcome.stderr
    assert evidence.read_bytes().startswith(before[: before.rindex(b"\n")])
    assert [entry["observer"]["tool"] for entry in outcome.cert["resumed"]]
    assert outcome.cert["n_void_passes"] == n_open == 1
    assert [life["start"]["parallel"] for life in outcome.cert["lifetimes"]] == [1, 2, 2]
    cut = [life["cut_off"] for life in outcome.cert["lifetimes"]]
    assert cut == [False, name not in TIDY, False]
    assert cli("verify-cert", outcome.certificate_path).code == 0


def test_a_run_that_ended_before_its_first_answer_goes_on_too(ended: dict[str, Run]) -> None:
    cell = ended["sighup"].cell
    plant_faults(cell.folder, behaviour=QUICK)
    evidence = ended["sighup"].outcome.evidence_path
    words = ("resume", evidence, "--server-bin", cell.server, "--model", cell.model)
    outcome = cli(*words, out_dir=cell.out_dir)
    assert (outcome.code, outcome.verdict) == (0, "GREEN"), outcome.stderr


SCORER = """
import os, signal

calls = []

def score(text, expected):
    calls.append(text)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return None
"""


def test_d10_a_signal_while_a_scorer_works_is_no_fault_of_the_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interrupted_scorer.py").write_text(SCORER)
    monkeypatch.syspath_prepend(tmp_path)
    items = [{**item, "expected_answer": "Rhine"} for item in prompts()]
    outcome = make_cell(tmp_path / "cell", items).run("--scorer", "interrupted_scorer:score")
    assert outcome.code == 130
    assert outcome.certificates() == []
    assert "interrupted by signal 2" in outcome.stderr
    # The answer that was being scored is recorded whole, and nothing after it.
    assert [trial.key.item for trial in outcome.trials() if trial.key.arm is Arm.A] == [0, 1, 2]


def test_d10_a_neighbouring_server_is_untouched(
    ended: dict[str, Run], neighbour: subprocess.Popen[bytes]
) -> None:
    assert len(ended) == len(ENDINGS)
    assert neighbour.poll() is None


def test_after_a_kill_the_same_command_works_again(ended: dict[str, Run]) -> None:
    cell = ended["sigkill"].cell
    write_fake_server(cell.folder)
    outcome = cell.run(*LEAST)
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
    (older,) = cell.out_dir.glob("*.previous.evidence.jsonl")
    assert older.stat().st_size > 0
