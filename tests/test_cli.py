"""The command line itself: arguments, exit codes, what is printed where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import batch_invariance
from reports_fixtures import CTX, Cell, Outcome, cli, light_cell, make_cell

SOURCE = str(Path(batch_invariance.__file__).parents[1])


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """For command lines that must not get as far as a start."""
    return make_cell(tmp_path_factory.mktemp("cell"))


def refused(cell: Cell, outcome: Outcome, said: str, code: int = 2) -> None:
    assert outcome.code == code
    assert said in outcome.stderr
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert cell.journal() == []
    assert not cell.out_dir.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--parallel", 0), "--parallel 0: give 1 to 256"),
        (("--parallel", 257), "--parallel 257: give 1 to 256"),
        (("--parallel", "two"), "invalid int value: 'two'"),
        (("--ctx", 0), "--ctx 0 is no positive multiple of 256"),
        (("--ctx", 700), "--ctx 700 is no positive multiple of 256; use 512 or 768"),
        (("--passes", 0), "--passes 0: give 1"),
        (("--max-tokens", 0), "--max-tokens 0: give 1"),
        (("--top-logprobs", 0), "--top-logprobs 0: give 1"),
        (("--seed", -1), "--seed -1: give 0 to 4294967294"),
        (("--seed", 4294967295), "--seed 4294967295: give 0 to 4294967294"),
        (("--logit-drift", "some"), "'some' is neither 'bits' nor a number above 0"),
        (("--logit-drift", "0"), "'0' is neither"),
        (("--logit-drift", "nan"), "'nan' is neither"),
        (("--request-timeout", 0), "'0' is not a number"),
        (("--ready-timeout", "nan"), "'nan' is not a number"),
        (("--max-footprint-gb", "inf"), "'inf' is not a number"),
        (("--cert-source", "canary"), "--cert-source canary: this run's source is live"),
        (("--cert-source", "nonsense"), "this run's source is live"),
        (("--canary",), "--canary makes its own model"),
        (("--server-bin", "/no/such/server"), "--server-bin /no/such/server: there is no such"),
        (("--server-bin", "/etc/passwd"), "it is not executable"),
        (("--model", "/no/such.gguf"), "--model /no/such.gguf: No such file"),
        (("--workset", "/no/such.json"), "--workset /no/such.json: No such file"),
        (("--workset", "/"), "--workset /: Is a directory"),
        (("--bogus",), "unrecognized arguments: --bogus"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(
    cell: Cell, words: tuple[object, ...], said: str
) -> None:
    refused(cell, cell.run(*words), said)


def test_what_a_run_needs_is_listed_at_once(cell: Cell) -> None:
    outcome = cli("run-live", "--server-bin", cell.server)
    refused(cell, outcome, "--model, --workset, --ctx, --parallel: needed unless --canary is given")
    refused(cell, cli("run-live"), "--server-bin, --model, --workset, --ctx, --parallel: needed")


def test_a_canary_takes_no_zero_for_its_default(cell: Cell) -> None:
    words = ("run-live", "--server-bin", cell.server, "--canary")
    refused(cell, cli(*words, "--parallel", 0), "--parallel 0: give 1 to 256")
    refused(cell, cli(*words, "--ctx", 0), "--ctx 0 is no positive multiple")
    refused(cell, cli(*words, "--cert-source", "live"), "this run's source is canary")
    refused(cell, cli("run-live", "--server-bin", cell.server, "--canary", "f17"), "'f17' is none")


def test_a_file_that_is_no_model_ends_with_one(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGML" + bytes(64))
    outcome = cell.run("--model", tmp_path / "bad.gguf")
    refused(cell, outcome, "model bad.gguf: not a GGUF model", code=1)


def test_a_scorer_that_is_not_there_ends_with_one(cell: Cell) -> None:
    refused(cell, cell.run("--scorer", "no_such_module:Name"), "no_such_module", code=1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--port", "1"), ["--port (the driver chooses the server's address)"]),
        (("--ctx_size=5", "-np", "3"), ["--ctx-size (", "-np ("]),
        (("-m", "x", "--api-key", "k"), ["-m (", "--api-key ("]),
        (("--model-draft", "x"), ["--model-draft ("]),
        (("--threads", "2", "stray"), ["'stray' (belongs to no flag)"]),
        (("-ctk", "banana"), ["unknown KV cache type 'banana'"]),
    ],
)
def test_flags_of_the_drivers_own_are_refused_after_the_dashes(
    cell: Cell, flags: tuple[str, ...], said: list[str]
) -> None:
    outcome = cell.run("--", *flags)
    for text in said:
        refused(cell, outcome, text)


def test_flags_of_the_user_go_to_the_server_and_into_the_cell(cell: Cell) -> None:
    flags = ["--flash-attn", "on", "-ctk", "q8_0", "--kv-unified", "-ub", "128"]
    plan = json.loads(cell.run("--dry-run", "--json", "--", *flags).stdout)
    assert plan["cell"]["server_flags"] == flags
    assert (plan["cell"]["kv_type_k"], plan["cell"]["kv_unified"]) == ("q8_0", True)
    for argv in plan["launches"]:
        assert argv[-len(flags) :] == flags
        assert "--no-kv-unified" not in argv


def test_a_dry_run_says_everything_and_does_nothing(cell: Cell) -> None:
    outcome = cell.run("--dry-run")
    assert outcome.code == 0
    assert "cell       toy, ctx 512, N=2, source live" in outcome.stdout
    assert f"-c {2 * CTX} --parallel 2 --host 127.0.0.1" in outcome.stdout
    assert "never be GREEN" not in outcome.stdout
    plan = json.loads(cell.run("--dry-run", "--json").stdout)
    assert plan["never_green"] == []
    assert plan["requests"] == 8 * 6 + 3 + 2
    assert cell.journal() == []
    assert not cell.out_dir.exists()


@pytest.mark.parametrize(
    ("given", "recorded"), [("bits", "bits"), ("0.05", "0.05"), ("1e-3", "0.001")]
)
def test_logit_drift_is_armed_as_given(cell: Cell, given: str, recorded: str) -> None:
    plan = json.loads(cell.run("--dry-run", "--json", "--logit-drift", given).stdout)
    assert plan["plan"]["logit_drift"] == recorded


def test_a_refused_footprint_writes_and_renames_nothing(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    cell.out_dir.mkdir()
    older = cell.out_dir / "toy__ctx512__N2.json"
    older.write_text("an older certificate")
    outcome = cell.run("--max-footprint-gb", "0.0001")
    assert outcome.code == 2
    assert "footprint guard: weights and KV cache need about" in outcome.stderr
    assert "raise --max-footprint-gb" in outcome.stderr
    assert cell.journal() == []
    assert [path.name for path in cell.out_dir.iterdir()] == [older.name]
    assert older.read_text() == "an older certificate"


def test_errors_are_one_line_and_with_json_one_object_too(cell: Cell) -> None:
    outcome = cell.run("--json", "--passes", 0)
    assert outcome.code == 2
    assert json.loads(outcome.stdout)["exit_code"] == 2
    assert "--passes 0" in json.loads(outcome.stdout)["error"]
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.startswith("batch-invariance: --passes 0")


def test_json_prints_one_object_and_progress_goes_to_stderr(tmp_path: Path) -> None:
    cell = light_cell(tmp_path)
    outcome = cell.run("--json", "--quiet")
    assert outcome.stderr == ""
    report = json.loads(outcome.stdout)
    assert (report["verdict"], report["promotable"], report["exit_code"]) == ("GREEN", True, 0)
    assert report["certificate"] == str(outcome.certificate_path)
    assert report["evidence"] == str(outcome.evidence_path)


def test_verbose_has_a_line_for_every_trial(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path).run("--verbose")
    lines = outcome.stderr.splitlines()
    trials = [line for line in lines if line.startswith("  ")]
    assert len(trials) == len(outcome.trials())
    assert any(line.startswith("  C1 lane ") and " q3: ok " in line for line in trials)
    assert any("arm C, pass 1 (saturate)" in line for line in lines)


def test_a_reserved_port_reaches_whoever_chooses_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def choose(reserved: frozenset[int]) -> int:
        asked.append(reserved)
        raise batch_invariance.BatchInvarianceError("no port today")

    monkeypatch.setattr("batch_invariance.live_invariance.server.choose_port", choose)
    outcome = make_cell(tmp_path).run("--reserved-port", 8080, "--reserved-port", 9931)
    assert outcome.code == 1
    assert asked == [frozenset({8080, 9931})]


@pytest.mark.parametrize(
    ("kind", "words", "verdict"),
    [
        ("score", (), "RED"),
        ("token", (), "AMBER"),
        ("finish_reason", (), "AMBER"),
        ("logprob", (), "GREEN"),
        ("logprob", ("--logit-drift", "bits"), "AMBER"),
        ("logprob", ("--logit-drift", "0.01"), "GREEN"),
    ],
)
def test_the_mock_gives_the_colour_that_was_asked_for(
    tmp_path: Path, kind: str, words: tuple[str, ...], verdict: str
) -> None:
    out = ("--out-dir", tmp_path, "--passes", 2)
    outcome = cli("run-mock", "--batch-divergence", kind, *words, *out, out_dir=tmp_path)
    assert outcome.verdict == verdict
    assert outcome.stdout.startswith(verdict)
    assert outcome.code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run-mock", "--cert-source", "live"), "this run's source is mock"),
        (("run-mock", "--batch-divergence", "bogus"), "invalid choice: 'bogus'"),
        (("run-mock", "--divergence-fraction", "2"), "give a share from 0 to 1"),
        (("run-mock", "--ctx", "100"), "use 256 or 512"),
        (("run-mock", "--", "-ub", "1"), "nothing may follow --"),
        (("verify-cert", "c.json", "--", "-x"), "nothing may follow --"),
        (("canary", "-o", "toy.gguf", "--", "-x"), "nothing may follow --"),
        (("canary",), "the following arguments are required: -o/--output"),
        (("verify-cert",), "the following arguments are required: CERT"),
        ((), "the following arguments are required: VERB"),
        (("bogus",), "invalid choice: 'bogus'"),
    ],
)
def test_other_verbs_refuse_as_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli(*words)
    assert outcome.code == 2
    assert said in outcome.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_that_is_not_there_ends_with_one(tmp_path: Path) -> None:
    outcome = cli("verify-cert", tmp_path / "none.json", "--json")
    assert outcome.code == 1
    assert "No such file" in json.loads(outcome.stdout)["error"]


def test_canary_writes_the_same_model_twice_and_never_over_a_file(tmp_path: Path) -> None:
    first = json.loads(cli("canary", "-o", tmp_path / "a.gguf", "--json").stdout)
    second = json.loads(cli("canary", "q8_0", "-o", tmp_path / "b.gguf", "--json").stdout)
    assert first["sha256"] == second["sha256"]
    assert (tmp_path / "a.gguf").stat().st_size == first["bytes"]
    again = cli("canary", "-o", tmp_path / "a.gguf")
    assert again.code == 2
    assert "exists already" in again.stderr


def test_the_version_and_the_module_entry_point() -> None:
    outcome = cli("--version")
    assert (outcome.code, outcome.stderr) == (0, "")
    done = subprocess.run(
        [sys.executable, "-m", "batch_invariance", "--version"],
        env={"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == outcome.stdout == f"batch-invariance {batch_invariance.__version__}\n"


def test_an_output_that_is_full_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batch_invariance", "canary", "-o", tmp_path / "toy.gguf"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command,
            env={"PYTHONPATH": SOURCE},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "batch-invariance: No space left on device\n")


def test_an_output_that_is_closed_costs_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "batch_invariance", "canary", "-o", str(tmp_path / "toy.gguf")]
    command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *words]
    assert subprocess.run(command, env={"PYTHONPATH": SOURCE}, check=False).returncode == 0
    assert (tmp_path / "toy.gguf").is_file()


def test_help_explains_every_exit_code() -> None:
    text = cli("--help").stdout
    for code in ("0 ", "1 ", "2 ", "3 ", "129, 130, 143"):
        assert f"\n  {code}" in text
