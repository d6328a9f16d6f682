"""Servers that die, and drivers that are ended: nothing is left running, nothing is made up."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.records import Footer, LifetimeEnd
from fake_llama_server import plant_faults, write_fake_server
from reports_fixtures import Cell, Outcome, cli, make_cell, prompts, start_cli
from waiting import runs, wait_until


@pytest.mark.parametrize(("status", "how"), [(-11, "killed by SIGSEGV"), (9, "exit code 9")])
def test_d17_a_death_under_load_is_unverified_and_says_how(
    tmp_path: Path, status: int, how: str
) -> None:
    # The warm-up's two and the first wave's two pass; the second wave kills it.
    cell = make_cell(tmp_path, die_when_concurrent=status, die_after=4)
    outcome = cell.run()
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == {"server_died"}
    assert f"server died: the server died in arm C: {how}" in outcome.stderr
    assert f"the server died in arm C: {how}" in outcome.stdout
    # It stops at once: the dead server is asked for nothing more.
    assert len([t for t in outcome.trials() if t.key.arm is Arm.C]) == 4
    end = next(r for r in reversed(outcome.records()) if isinstance(r, LifetimeEnd))
    assert end.exit is not None
    assert "GGML_ASSERT(fake fault) failed" in end.exit.log_tail
    # What was not reached is untested, and no divergence.
    assert outcome.cert["divergence_report"]["AC"]["n_divergent"] == 0
    assert len(outcome.cert["untested_ids"]) == 6


def test_d17_a_death_before_the_load_is_no_verdict_and_shows_the_log(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, die_at_completion=4, die_message="boom \x1b[31m at line 7")
    outcome = cell.run()
    assert outcome.code == 1
    assert outcome.certificates() == []
    assert outcome.stdout == ""
    assert "the server died in arm A (exit code 9)" in outcome.stderr
    assert "boom \\x1b[31m at line 7" in outcome.stderr
    assert "ServerError" in outcome.footer().ended or "died in arm A" in outcome.footer().ended


@pytest.mark.parametrize(("status", "how"), [(7, "exit code 7"), (-4, "SIGILL")])
def test_a_server_that_dies_at_start_is_no_verdict(tmp_path: Path, status: int, how: str) -> None:
    outcome = make_cell(tmp_path, die_at_start=status).run()
    assert outcome.code == 1
    assert outcome.certificates() == []
    assert how in outcome.stderr
    assert "GGML_ASSERT(fake fault) failed" in outcome.stderr


@dataclass(frozen=True)
class Ended:
    """A run that was ended from outside while arm C hung."""

    cell: Cell
    code: int
    stderr: str
    tmp_dir: Path

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.code, "", self.stderr, self.cell.out_dir)


def wait_for_arm_c(process: subprocess.Popen[bytes], said: Path) -> None:
    """Wait until the run says so; it cannot go on from there, because the fake hangs."""
    wait_until(lambda: "arm C, pass 0" in said.read_text() or process.poll() is not None, 120.0)
    assert process.poll() is None, said.read_text()


ENDINGS = {
    "SIGINT": (signal.SIGINT, 130, False),
    "SIGTERM": (signal.SIGTERM, 143, False),
    "SIGHUP": (signal.SIGHUP, 129, False),
    "stubborn": (signal.SIGTERM, 143, True),
    "SIGKILL": (signal.SIGKILL, -9, False),
    "SIGKILL stubborn": (signal.SIGKILL, -9, True),
}


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """A server of the user's own, beside those of the runs."""
    folder = tmp_path_factory.mktemp("neighbour")
    server = write_fake_server(folder, journal=str(folder / "journal"))
    process = subprocess.Popen(
        [str(server), "-m", "own.gguf", "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until((folder / "journal").exists)
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory, neighbour: subprocess.Popen[bytes]
) -> dict[str, Ended]:
    """All endings at once: most of their time is waiting for stubborn servers."""
    started = {}
    for name, (_, _, stubborn) in ENDINGS.items():
        folder = tmp_path_factory.mktemp("ended")
        cell = make_cell(folder, fail_nth_concurrent={"hang_busy": 4}, ignore_sigterm=stubborn)
        process = start_cli(cell.words(), folder / "tmp", folder / "stderr")
        started[name] = (cell, process)
    for name, (cell, process) in started.items():
        wait_for_arm_c(process, cell.folder / "stderr")
        process.send_signal(ENDINGS[name][0])
    result = {}
    for name, (cell, process) in started.items():
        code = process.wait(60)
        result[name] = Ended(cell, code, (cell.folder / "stderr").read_text(), cell.folder / "tmp")
    return result


@pytest.mark.parametrize("name", ENDINGS)
def test_d10_an_ended_run_leaves_nothing_but_its_evidence(
    ended: dict[str, Ended], name: str
) -> None:
    run = ended[name]
    assert run.code == ENDINGS[name][1]
    assert run.outcome.certificates() == []
    pids = [pid for start in run.cell.starts() for pid in (start["pid"], start["guardian"])]
    assert len(pids) == 4
    wait_until(lambda: not any(runs(pid) for pid in pids), 5.0)
    wait_until(lambda: list(run.tmp_dir.iterdir()) == [], 5.0)
    records = run.outcome.records()
    assert {t.key.arm for t in run.outcome.trials()} >= {Arm.A, Arm.A2, Arm.B}
    assert not any(isinstance(record, Footer) for record in records)
    if not name.startswith("SIGKILL"):
        assert "interrupted" in {event.what for event in run.outcome.events()}
        assert "evidence that was written is kept" in run.stderr
        assert "Traceback" not in run.stderr


@pytest.mark.parametrize("name", ENDINGS)
def test_an_ended_run_goes_on_and_gets_its_verdict(ended: dict[str, Ended], name: str) -> None:
    cell = ended[name].cell
    plant_faults(cell.folder, behaviour={"gather_s": 0.02}, journal=str(cell.folder / "journal2"))
    evidence = ended[name].outcome.evidence_path
    before = evidence.read_bytes()
    n_open = before.count(b'"kind":"pass_start"') - before.count(b'"kind":"pass_end"')
    outcome = cli("resume", evidence, out_dir=cell.out_dir)
    assert (outcome.code, outcome.verdict) == (0, "GREEN"), outcome.stderr
    assert evidence.read_bytes().startswith(before[: before.rindex(b"\n")])
    assert [entry["observer"]["tool"] for entry in outcome.cert["resumed"]]
    # The run says that a pass begins just before it writes so.
    assert outcome.cert["n_void_passes"] == n_open <= 1
    assert [life["start"]["parallel"] for life in outcome.cert["lifetimes"]] == [1, 2, 2]
    cut = [life["cut_off"] for life in outcome.cert["lifetimes"]]
    assert cut == [False, name.startswith("SIGKILL"), False]
    assert cli("verify-cert", outcome.certificate_path).code == 0


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


def test_d10_a_neighbouring_server_stays_alive(
    ended: dict[str, Ended], neighbour: subprocess.Popen[bytes]
) -> None:
    assert len(ended) == len(ENDINGS)
    assert neighbour.poll() is None


def test_after_a_kill_the_same_command_works_again(ended: dict[str, Ended]) -> None:
    cell = ended["SIGKILL"].cell
    write_fake_server(cell.folder)
    outcome = cell.run()
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
    (older,) = cell.out_dir.glob("*.previous.evidence.jsonl")
    assert older.stat().st_size > 0
