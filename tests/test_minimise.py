"""`minimise` and `replay` as a user meets them, against fake servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import Interrupted, ServerError
from batch_invariance.invariance_diff.certificate import certify
from batch_invariance.invariance_diff.model import Arm, Source
from batch_invariance.live_invariance import case_bench
from batch_invariance.live_invariance.launch import choose_port
from case_fixtures import a_case
from core_fixtures import (
    EVIDENCE_NAME,
    Ideal,
    encode,
    in_arm,
    on_header,
    on_trials,
    with_result,
)
from fake_faults import Faults
from fake_faulty_server import FaultyServer
from fake_llama_server import as_asked, launch_identity, parse_command_line, write_fake_server
from reports_fixtures import CTX, Cell, Outcome, cli, light_cell

SECRET = "Kalymnos"
PATIENT = {"mix_donor_at": 2, "behaviour": {"gather_s": 0.3, "tick_s": 0.0}}
"""A fake that waits long enough for a second curl, also on a busy machine."""


def prompts() -> list[dict[str, object]]:
    return [{"id": f"q{i}", "prompt": f"{SECRET} {i}: name a river, say why."} for i in range(4)]


@dataclass(frozen=True)
class Red:
    """A cell that mixes up what it batches, its certificate, and a case of it."""

    cell: Cell
    certificate: Path
    folder: Path
    outcome: Outcome

    @property
    def case(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "case.json").read_bytes())
        return document

    def minimise(self, *more: object, cell: Cell | None = None) -> Outcome:
        words = ["minimise", self.certificate, "--attempts", 4, "-q", *more]
        return (cell or self.cell)._cli(*words)

    def replay(self, *more: object, cell: Cell | None = None, case: Path | None = None) -> Outcome:
        on = cell or self.cell
        words = ["--server-bin", on.server, "--model", on.model]
        return on._cli("replay", case or self.folder, *words, *more)

    def edited(self, folder: Path, **changes: object) -> Path:
        """The case with fields of `expected` changed."""
        case = self.case
        case["expected"] |= changes
        path = folder / "case.json"
        path.write_text(json.dumps(case))
        return path


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Red:
    folder = tmp_path_factory.mktemp("red")
    cell = light_cell(folder, prompts(), mix_donor_at=2)
    made = cell.run("--parallel", 4, "--passes", 2)
    assert made.verdict == "RED", made.stderr
    words = ["minimise", made.certificate_path, "--attempts", 4, "--out", folder / "case"]
    outcome = cell._cli(*words)
    assert outcome.code == 0, outcome.stderr
    return Red(cell, made.certificate_path, folder / "case", outcome)


def test_a_crowd_of_four_comes_down_to_two_short_requests(red: Red) -> None:
    case = red.case
    shape = case["shape"]
    assert (len(shape["requests"]), shape["lanes"], shape["kind"]) == (2, 2, "waves")
    assert case["origin"]["start_requests"] == 4
    assert shape["requests"][shape["target"]]["item"]["id"] == case["origin"]["item_id"]
    assert sum(r["item"]["max_tokens"] for r in shape["requests"]) < 8
    assert case["rate"]["shown"] >= 2
    assert (case["rate_is_fresh"], case["redaction"]) == (True, "none")
    assert 0 < case["search"]["plan"]["missed"] <= 0.05
    assert {f.name for f in red.folder.iterdir()} == {
        "case.json", "case.sh", "report.md", "requests",
    }  # fmt: skip


def test_progress_and_the_result_are_told(red: Red) -> None:
    assert "start: wave" in red.outcome.stderr
    assert "kept, 2 requests" in red.outcome.stderr
    assert red.outcome.stdout.startswith("CASE  q")
    assert "2 requests, waves, on 2 slots (start: 4 requests on 4 slots)" in red.outcome.stdout
    assert f"next         batch-invariance replay {red.folder}" in red.outcome.stdout


def test_a_replay_reproduces_it(red: Red) -> None:
    said = red.replay()
    assert said.code == 0, said.stdout + said.stderr
    assert said.stdout.startswith("REPRODUCED  q")
    assert "launching the server with 1 slot\nlaunching the server with 2 slots" in said.stderr
    report = json.loads(red.replay("--json", "-q", "--attempts", 3, case=red.folder).stdout)
    assert (report["outcome"], report["exit_code"], report["rate"]["n"]) == ("reproduced", 0, 3)


def test_a_sound_server_does_not_reproduce_it_and_the_bound_is_said(
    red: Red, tmp_path: Path
) -> None:
    sound = replace(light_cell(tmp_path, prompts()), server=red.cell.server)
    said = red.replay("-q", "--attempts", 10, cell=sound)
    assert said.code == 3, said.stdout
    assert said.stdout.startswith("NOT REPRODUCED  q")
    assert "in 0 of 10 attempts; with 95% confidence it shows in fewer than 26%" in said.stdout
    report = json.loads(red.replay("-q", "--json", "--attempts", 10, cell=sound).stdout)
    assert report["rate_upper_bound_95"] == pytest.approx(0.2589, abs=1e-4)


def test_a_parting_at_another_token_is_another_divergence(red: Red, tmp_path: Path) -> None:
    seen = [{**one, "token_here": 1} for one in red.case["expected"]["seen"]]
    said = red.replay("-q", case=red.edited(tmp_path, seen=seen))
    assert (said.code, said.stdout[:16]) == (4, "OTHER DIVERGENCE")


def test_another_model_is_another_subject_and_nothing_is_sent(red: Red, tmp_path: Path) -> None:
    other = light_cell(tmp_path, prompts(), mix_donor_at=2)
    other.model.write_bytes(other.model.read_bytes() + b"\0" * 32)
    said = red.replay("-q", cell=other)
    assert (said.code, said.stdout[:13]) == (5, "OTHER SUBJECT")
    assert "the model's digest is" in said.stdout
    assert "Nothing was sent" in said.stdout
    assert other.journal() == []
    said = red.replay("-q", "--any-subject", "--json", cell=other)
    report = json.loads(said.stdout)
    assert (said.code, report["outcome"]) == (5, "other_subject")
    assert report["measured_on_other_subject"] == "reproduced"


def test_another_build_is_seen_once_it_runs(red: Red, tmp_path: Path) -> None:
    case = red.case
    case["ran"] |= {"build": "b9999-other"}
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case))
    said = red.replay("-q", case=path)
    assert said.code == 5
    assert "the build is " in said.stdout
    assert "on this subject: reproduced" in said.stdout


def test_what_does_not_reproduce_at_the_start_is_refused_with_its_rate(
    red: Red, tmp_path: Path
) -> None:
    sound = light_cell(tmp_path / "sound", prompts())
    folder = tmp_path / "case"
    said = red.minimise("--out", folder, cell=sound)
    assert said.code == 3
    assert said.stdout.startswith("NOT REPRODUCED  q")
    assert "0 of 4 attempts; with 95% confidence it shows in fewer than 53%" in said.stdout
    assert not folder.exists()
    said = red.minimise("--out", folder, "--json", cell=sound)
    report = json.loads(said.stdout)
    assert (report["case"], report["exit_code"]) == (None, 3)
    assert report["starts"][0]["rate"] == {"n": 4, "shown": 0, "lost": 0}


def test_private_text_is_replaced_and_it_still_shows(red: Red, tmp_path: Path) -> None:
    folder = tmp_path / "case"
    said = red.minimise("--out", folder, "--redact", "--json")
    assert said.code == 0, said.stderr
    assert json.loads(said.stdout)["redaction"] == "filler"
    for file in folder.rglob("*"):
        assert file.is_dir() or SECRET not in file.read_text()
    assert red.replay("-q", case=folder).code == 0


def test_private_text_is_taken_out_where_no_filler_was_tried(red: Red, tmp_path: Path) -> None:
    folder = tmp_path / "case"
    said = red.minimise("--out", folder, "--redact", "--max-probes", 1)
    assert said.code == 0, said.stderr
    assert "1 candidates were tried (--max-probes); a smaller case may exist" in said.stdout
    assert "this case cannot be sent again" in said.stdout
    assert sorted(f.name for f in folder.iterdir()) == ["case.json", "report.md"]
    assert SECRET not in (folder / "case.json").read_text() + (folder / "report.md").read_text()
    again = red.replay("-q", case=folder)
    assert again.code == 2
    assert "its prompts were taken out" in again.stderr


def test_a_budget_ends_the_search_and_not_the_result(red: Red, tmp_path: Path) -> None:
    said = red.minimise("--out", tmp_path / "case", "--time-budget", 0.01, "--item", "q2")
    assert said.code == 0, said.stderr
    assert "ended early: 0.01 s have passed (--time-budget)" in said.stdout
    assert said.stdout.startswith("CASE  q2")


def test_a_signal_ends_the_search_and_keeps_the_best_so_far(
    red: Red, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter(range(1000))

    def signalled() -> None:
        if next(asked) > 20:
            raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(case_bench, "check", signalled)
    said = red.minimise("--out", tmp_path / "case")
    assert said.code == 128 + signal.SIGINT
    assert f"interrupted: the best case so far is in {tmp_path / 'case'}" in said.stderr
    case = json.loads((tmp_path / "case" / "case.json").read_bytes())
    assert (case["rate_is_fresh"], case["search"]["ended_early"]) == (False, "a signal")
    assert len(case["shape"]["requests"]) == 2
    monkeypatch.undo()
    assert red.replay("-q", case=tmp_path / "case").code == 0


def test_a_case_that_was_not_measured_in_the_end_is_no_success(
    red: Red, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise ServerError("the server died")

    monkeypatch.setattr(case_bench.CaseBench, "measure", dies)
    said = red.minimise("--out", tmp_path / "case", "--max-probes", 1)
    assert said.code == 3
    assert "measured on no server launched for it" in said.stdout
    case = json.loads((tmp_path / "case" / "case.json").read_bytes())
    assert (case["rate_is_fresh"], case["search"]["ended_early"]) == (
        False,
        "1 candidates were tried (--max-probes)",
    )


def test_a_folder_that_is_there_is_never_written_over(red: Red) -> None:
    before = {f: f.read_bytes() for f in red.folder.rglob("*") if f.is_file()}
    said = red.minimise("--out", red.folder)
    assert (said.code, said.stdout) == (2, "")
    assert "is there already" in said.stderr
    assert {f: f.read_bytes() for f in red.folder.rglob("*") if f.is_file()} == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--item", "q9"], "--item q9: it does not diverge in arm C; these do: q0"),
        (["--attempts", 0], "--attempts 0: give 1 to"),
        (["--max-probes", 0], "--max-probes 0: give 1 to"),
        (["--", "-fa", "off"], "nothing follows --"),
        (["--scorer", "contains"], "--scorer: answers were scored by exact_match"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    red: Red, tmp_path: Path, more: Sequence[object], said: str
) -> None:
    outcome = red.minimise("--out", tmp_path / "case", *more)
    assert outcome.code == 2
    assert said in outcome.stderr


def test_a_certificate_without_a_divergence_has_nothing_to_make_small(tmp_path: Path) -> None:
    cell = light_cell(tmp_path, prompts())
    certificate = cell.run("--passes", 1).certificate_path
    outcome = cell._cli("minimise", certificate, "--out", tmp_path / "case")
    assert outcome.code == 2
    assert "nothing diverges in arm C" in outcome.stderr


def test_a_certificate_that_is_not_borne_out_is_refused(red: Red, tmp_path: Path) -> None:
    changed = tmp_path / red.certificate.name
    changed.write_bytes(red.certificate.read_bytes().replace(b'"ctx": 512', b'"ctx": 768'))
    evidence = red.certificate.with_name(f"{red.certificate.stem}.evidence.jsonl")
    outcome = cli("minimise", changed, "--evidence", evidence, "--out", tmp_path / "case")
    assert outcome.code == 1
    assert not (tmp_path / "case").exists()


def test_a_mock_has_no_server_to_launch_again(tmp_path: Path) -> None:
    other = on_trials(in_arm(Arm.C, 0, 1), with_result(text="other"))
    mock = on_header(lambda header: replace(header, source=Source.MOCK))
    lines = encode(mock(other(Ideal([4, 4], n=2, passes=1).records())))
    (tmp_path / EVIDENCE_NAME).write_bytes(b"".join(lines))
    certificate = tmp_path / "mock.json"
    certificate.write_bytes(certify(lines, EVIDENCE_NAME).to_bytes())
    outcome = cli("minimise", certificate, "--out", tmp_path / "case")
    assert outcome.code == 2
    assert "a mock run has no server to launch again" in outcome.stderr


def test_a_case_that_is_none_is_an_error_in_one_line(red: Red, tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text('{"schema": "case/2"}')
    said = red.replay(case=tmp_path)
    assert (said.code, said.stderr.count("\n")) == (1, 1)
    assert "this reads case/1" in said.stderr
    missing = red.replay(case=tmp_path / "none")
    assert (missing.code, missing.stderr.count("\n")) == (1, 1)
    (tmp_path / "case.json").write_bytes(a_case().to_bytes())
    no_model = cli("replay", tmp_path, "--server-bin", red.cell.server)
    assert no_model.code == 2
    assert "--model: needed, a GGUF file like mock-model.gguf" in no_model.stderr


# With curl alone.


def check_shown(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    alone, again, together, _, parting, last = done.stdout.splitlines()
    assert alone == again
    assert alone.startswith('alone:      "content":')
    assert together.startswith('together:   "content":')
    assert together.split(maxsplit=1)[1] != alone.split(maxsplit=1)[1]
    assert parting.startswith("at token ")
    assert last.startswith("another answer in ")
    assert done.stderr == ""


def run_script(folder: Path, **more: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **{name: str(value) for name, value in more.items()}}
    words = ["sh", folder / "case.sh"]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_the_script_launches_a_server_and_shows_it(red: Red, tmp_path: Path) -> None:
    server = write_fake_server(tmp_path, **PATIENT)
    port = choose_port(frozenset())
    check_shown(
        run_script(red.folder, LLAMA_SERVER=server, MODEL=red.cell.model, PORT=port, TRIES=2)
    )


def test_the_script_shows_it_on_a_server_that_runs(red: Red) -> None:
    words = f"-m toy.gguf -c {2 * CTX} --parallel 2 --api-key secret --slots"
    line = parse_command_line(words.split())
    planted = as_asked(line, Faults(**PATIENT))
    with FaultyServer(launch_identity(line, planted), 0, planted) as server:
        url = f"http://127.0.0.1:{server.port}"
        check_shown(run_script(red.folder, URL=url, API_KEY="secret", TRIES=2))
        refused = run_script(red.folder, URL=url, API_KEY="wrong", TRIES=1)
    assert refused.returncode == 2


def test_the_script_says_when_it_does_not_show(red: Red) -> None:
    words = f"-m toy.gguf -c {2 * CTX} --parallel 2"
    for slots, code in (("2", 1), ("4", 2)):
        line = parse_command_line([*words.split()[:-1], slots])
        planted = Faults(behaviour={"tick_s": 0.0})
        with FaultyServer(launch_identity(line, planted), 0, planted) as server:
            done = run_script(red.folder, URL=f"http://127.0.0.1:{server.port}", TRIES=2)
        assert done.returncode == code, done.stdout
    assert "has not 2 slots" in done.stdout
