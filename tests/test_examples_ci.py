"""The jobs under examples/ci do what their comments say, run as a CI system runs them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import batch_invariance
from batch_invariance.cli.gate import load_policy
from batch_invariance.cli.main import build_parser
from batch_invariance.formats.toml_subset import read_toml_subset
from batch_invariance.invariance_diff.cert_reading import read_view
from batch_invariance.invariance_diff.dates import utc_seconds
from batch_invariance.invariance_diff.policy import Candidate, Rule
from batch_invariance.invariance_diff.policy_judge import judge
from batch_invariance.invariance_diff.policy_reading import KEYS, read_policy
from ci_fixtures import RED, unchanged, write_cert
from core_fixtures import Change
from reports_fixtures import CTX, make_cell

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "examples" / "ci"
CERTS = ROOT / "examples" / "certs"
SOURCE = str(Path(batch_invariance.__file__).parents[1])
EMBEDDED = {"policy.toml": "toml", "conftest_gate.py": "python"}


@pytest.mark.parametrize(("name", "language"), EMBEDDED.items())
def test_the_page_shows_the_files(name: str, language: str) -> None:
    page = (ROOT / "docs" / "ci-gating.md").read_text("utf-8")
    assert f"```{language}\n{(JOBS / name).read_text('utf-8')}```\n" in page


def test_the_page_names_every_job() -> None:
    page = (ROOT / "docs" / "ci-gating.md").read_text("utf-8")
    for job in JOBS.iterdir():
        assert f"](../examples/ci/{job.name})" in page


# The policy.


def test_the_policy_is_one_on_every_python() -> None:
    path = JOBS / "policy.toml"
    subset = read_policy(read_toml_subset(path.read_text("utf-8"), "policy"), "policy")
    assert load_policy(path) == subset
    assert len(subset.required) == 2
    assert [str(acceptance.cell) for acceptance in subset.accept_amber] == [
        "SmolLM2-135M-Instruct.Q4_1/2048/4"
    ]


def test_the_policy_fits_the_bundled_certificates() -> None:
    """By what they say; whether their evidence bears them out is another test's question."""
    candidates, newest = [], 0
    for name in ("demo_short_live_cert", "demo_dense_live_cert"):
        view = read_view(json.loads((CERTS / f"{name}.json").read_bytes()))
        newest = max(newest, utc_seconds(view.ts_utc or "") or 0)
        candidates.append(Candidate(name, view, ()))
    judgement = judge(load_policy(JOBS / "policy.toml"), candidates, newest + 86_400.0)
    assert judgement.of("demo_short_live_cert") == ()
    red = judgement.of("demo_dense_live_cert")
    assert [violation.rule for violation in red] == [Rule.VERDICT, Rule.BOUND]
    assert len(judgement.violations) == 2


def test_the_page_explains_every_key() -> None:
    page = (ROOT / "docs" / "ci-gating.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert set(KEYS) <= set(rows)
    for rule in Rule:
        assert f"`{rule.value}`" in page


# The jobs.


def blocks(name: str) -> list[str]:
    """The literal blocks of shell in a YAML file, `run: |` and `- |`, in order."""
    found: list[str] = []
    indent: int | None = None
    for line in (JOBS / name).read_text("utf-8").splitlines():
        lead = len(line) - len(line.lstrip())
        if indent is not None and (not line.strip() or lead > indent):
            found[-1] += line + "\n"
            continue
        indent = None
        if re.fullmatch(r"\s*(run: |- )\|", line):
            indent = lead
            found.append("")
    return [textwrap.dedent(block) for block in found]


@pytest.mark.parametrize("name", ["github-action.yml", "gitlab-ci.yml"])
def test_every_command_of_a_job_parses(name: str) -> None:
    commands = []
    for block in blocks(name):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["batch-invariance"]:
                end = words.index("||") if "||" in words else len(words)
                commands.append(["4" if w in ("$CTX", "$PARALLEL") else w for w in words[1:end]])
    assert [words[0] for words in commands] == ["run-live", "gate"]
    for words in commands:
        assert callable(build_parser().parse_args(words).run)


def test_the_action_hands_every_input_on() -> None:
    text = (JOBS / "github-action.yml").read_text("utf-8")
    declared = set(re.findall(r"^  ([a-z-]+):\n    description:", text, re.MULTILINE))
    used = set(re.findall(r"\$\{\{ inputs\.([a-z-]+) \}\}", text))
    assert declared == used
    assert "${{" not in "".join(blocks("github-action.yml")), "inputs are no part of a script"
    workflow = (JOBS / "github-workflow.yml").read_text("utf-8")
    given = set(re.findall(r"^          ([a-z-]+): ", workflow.split("with:")[1], re.MULTILINE))
    assert given <= declared
    required = re.findall(r"^  ([a-z-]+):\n    description:.*\n    required: true", text, re.M)
    assert set(required) <= given


def run_job(name: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a job's blocks one after the other until one fails, as a CI system does."""
    shim = folder / "bin" / "batch-invariance"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m batch_invariance "$@"\n')
    shim.chmod(0o755)
    own = {
        **os.environ,
        **env,
        "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": SOURCE,
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    for block in blocks(name):
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", block]
        done = subprocess.run(
            command, cwd=folder, env=own, capture_output=True, text=True, check=False
        )
        if done.returncode:
            break
    return done


@pytest.mark.parametrize("name", ["github-action.yml", "gitlab-ci.yml"])
@pytest.mark.parametrize(("slots", "code"), [("2", 0), ("3", 3)])
def test_a_job_passes_and_fails_as_its_policy_says(
    tmp_path: Path, name: str, slots: str, code: int
) -> None:
    cell = make_cell(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text(f'version = 1\nrequired = ["toy/{CTX}/{slots}"]\n')
    env = {
        "SERVER": str(cell.server),
        "MODEL": str(cell.model),
        "WORKSET": str(cell.workset),
        "POLICY": str(policy),
        "CTX": str(CTX),
        "PARALLEL": "2",
        "OUT": "certs",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    done = run_job(name, tmp_path, env)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "certs" / "gate.xml").read_bytes().startswith(b"<?xml")
    summary = (tmp_path / "summary.md").read_text("utf-8")
    assert ("PASSED" if code == 0 else "FAILED") in summary
    if code:
        assert f"toy/{CTX}/3: required: there is no certificate for it" in done.stdout


@pytest.mark.parametrize("name", ["github-action.yml", "gitlab-ci.yml"])
def test_a_job_without_a_verdict_never_reaches_the_gate(tmp_path: Path, name: str) -> None:
    cell = make_cell(tmp_path)
    env = {
        "SERVER": str(cell.server),
        "MODEL": str(tmp_path / "none.gguf"),
        "WORKSET": str(cell.workset),
        "POLICY": "none.toml",
        "CTX": str(CTX),
        "PARALLEL": "2",
        "OUT": "certs",
    }
    done = run_job(name, tmp_path, env)
    assert done.returncode == 2
    assert "none.gguf" in done.stderr


# The gated test suite.


def run_suite(folder: Path, certificate: Path | None) -> subprocess.CompletedProcess[str]:
    suite = folder / "suite"
    suite.mkdir(exist_ok=True)
    (suite / "conftest.py").write_bytes((JOBS / "conftest_gate.py").read_bytes())
    (suite / "test_it.py").write_text(
        "def test_it(certificate):\n    assert certificate['dispatch_n'] == 4\n"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE}
    env.pop("CERTIFICATE", None)
    if certificate is not None:
        env["CERTIFICATE"] = str(certificate)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=suite,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("change", "code"), [(unchanged, 0), (RED, 3)])
def test_a_suite_runs_on_a_promotable_certificate_alone(
    tmp_path: Path, change: Change, code: int
) -> None:
    path = write_cert(tmp_path / "certs", change)
    done = run_suite(tmp_path, path)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("1 passed" in done.stdout) is (code == 0)
    if code:
        assert "the cell is not certified" in done.stdout + done.stderr
        assert "score_divergence" in done.stdout + done.stderr


def test_a_suite_does_not_run_without_proof(tmp_path: Path) -> None:
    path = write_cert(tmp_path / "certs")
    done = run_suite(tmp_path, None)
    assert done.returncode == 3
    assert "CERTIFICATE names none" in done.stdout + done.stderr
    path.with_suffix(".evidence.jsonl").unlink()
    assert run_suite(tmp_path, path).returncode == 3
    path.write_text("{}")
    assert run_suite(tmp_path, path).returncode == 3
