"""`gate` as a user runs it: files, exit codes, lines, and the reports for CI."""

from __future__ import annotations

import argparse
import json
import os
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from batch_invariance.cli import gate, golden
from batch_invariance.cli.ci_output import (
    STEP_SUMMARY_VARIABLE,
    CiTargets,
    add_ci_options,
    ci_targets,
    write_ci_outputs,
)
from batch_invariance.errors import UsageError
from case_fixtures import a_case
from ci_fixtures import (
    AMBER,
    CANARY,
    RED,
    UNVERIFIED,
    Done,
    at,
    call,
    edit,
    on_launches,
    on_model,
    write_cert,
    write_policy,
)
from core_fixtures import then

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_step_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STEP_SUMMARY_VARIABLE, raising=False)


def run_gate(capsys: Capture, tmp_path: Path, *required: str, **asked: object) -> Done:
    policy = write_policy(tmp_path, *required, **asked)
    return call(gate, capsys, tmp_path / "certs", "--policy", policy)


def violations(done: Done) -> list[str]:
    return [line.strip()[2:] for line in done.lines if line.startswith("  - ")]


def test_a_folder_that_fulfils_its_policy(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs")
    write_cert(tmp_path / "certs" / "flags", ctx=512, model="other")
    done = run_gate(capsys, tmp_path, "toy/512/4", "oth*/*/4")
    assert (done.code, done.stderr) == (0, "")
    assert done.lines[0].startswith("PASSED  ")
    assert done.lines[0].endswith("fulfilled by 2 certificates")
    assert sorted(done.lines[1:]) == ["  GREEN  other/512/4", "  GREEN  toy/512/4"]


@pytest.mark.parametrize("change", [RED, AMBER, UNVERIFIED])
def test_one_line_for_each_violation(tmp_path: Path, capsys: Capture, change: object) -> None:
    write_cert(tmp_path / "certs", change)  # type: ignore[arg-type]
    done = run_gate(capsys, tmp_path, "toy/512/4", "toy/512/8", max_age_days=1)
    assert done.code == 3
    said = violations(done)
    assert len(said) == 3
    assert said[0].startswith("toy/512/4: verdict: is ")
    assert said[1].startswith("toy/512/4: age: ")
    assert said[2] == "toy/512/8: required: there is no certificate for it"
    assert "3 violations" in done.lines[0]


def test_an_empty_folder_and_an_empty_policy_fail(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "certs").mkdir()
    done = run_gate(capsys, tmp_path, "*/*/*")
    assert done.code == 3
    assert violations(done) == ["*/*/*: required: there is no certificate for it"]
    write_cert(tmp_path / "certs")
    done = run_gate(capsys, tmp_path)
    assert done.code == 1
    assert "required: name at least one cell" in done.stderr


def test_the_age_is_measured_on_the_clock(tmp_path: Path, capsys: Capture) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_cert(tmp_path / "certs", at(now))
    assert run_gate(capsys, tmp_path, "toy/512/4", max_age_days=1).code == 0
    write_cert(tmp_path / "certs", at("2020-01-01T00:00:00Z"))
    done = run_gate(capsys, tmp_path, "toy/512/4", max_age_days=1)
    assert "days old, at most 1 allowed" in violations(done)[0]


@pytest.mark.parametrize("name", ["status", "model", "ts_utc"])
def test_an_edited_certificate_does_not_pass(tmp_path: Path, capsys: Capture, name: str) -> None:
    path = write_cert(tmp_path / "certs", then(RED, at("2020-01-01T00:00:00Z")))
    better = {
        "status": {"status": "green", "verdict": "GREEN", "promotable": True, "gates": []},
        "model": {"model": "other"},
        "ts_utc": {"ts_utc": "2026-01-02T03:04:05Z"},
    }
    edit(path, lambda cert: cert.update(better[name]))
    done = run_gate(capsys, tmp_path, "*/512/4")
    assert done.code == 3
    assert len(violations(done)) == 1
    assert ": evidence: " in violations(done)[0]
    assert "the evidence gives" in violations(done)[0]


def test_no_evidence_no_pass(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path / "certs")
    path.with_suffix(".evidence.jsonl").unlink()
    done = run_gate(capsys, tmp_path, "toy/512/4")
    assert done.code == 3
    assert violations(done)[0].startswith("toy/512/4: evidence: there is no evidence at ")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"model": "toy"}', b"\xff\xfe"])
def test_a_named_file_that_is_no_certificate_is_a_violation(
    tmp_path: Path, capsys: Capture, data: bytes
) -> None:
    write_cert(tmp_path / "certs")
    bad = tmp_path / "bad.json"
    bad.write_bytes(data)
    policy = write_policy(tmp_path, "toy/512/4")
    done = call(gate, capsys, tmp_path / "certs", bad, "--policy", policy)
    assert done.code == 3
    (line,) = violations(done)
    assert line.startswith(f"{bad}: evidence: certificate: ")


def test_what_a_folder_holds_beside_certificates(tmp_path: Path, capsys: Capture) -> None:
    certs = tmp_path / "certs"
    path = write_cert(certs)
    (certs / "toy__ctx512__N4.previous.json").write_bytes(b"set aside")
    (certs / ".hidden.json").write_bytes(b"hidden")
    (certs / ".git").mkdir()
    (certs / ".git" / "x.json").write_bytes(b"hidden")
    (certs / "index.json").write_text('{"cells": []}')
    (certs / "notes.txt").write_text("notes")
    done = run_gate(capsys, tmp_path, "toy/512/4")
    assert done.code == 0
    assert f"  left out, no certificate: {certs / 'index.json'}" in done.lines
    (certs / "broken.json").write_text('{"cells": [')
    assert violations(run_gate(capsys, tmp_path, "toy/512/4")) == [
        f"{certs / 'broken.json'}: evidence: certificate: is not JSON: "
        "Expecting value: line 1 column 12 (char 11)"
    ]
    (certs / "broken.json").unlink()
    (certs / "copy.json").write_bytes(path.read_bytes())
    done = run_gate(capsys, tmp_path, "toy/512/4")
    assert [line.split(": ")[1] for line in violations(done)] == ["duplicate"]


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path / "certs")
    policy = write_policy(tmp_path, "toy/512/4")
    done = call(gate, capsys, path, path.parent, path, "--policy", policy)
    assert done.code == 0
    assert "1 certificate" in done.lines[0]


def test_a_foreign_certificate_is_said_and_not_judged(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs", model="other")
    done = run_gate(capsys, tmp_path, "toy/512/4", max_age_days=1)
    assert [line.split(": ")[1] for line in violations(done)] == ["foreign", "required"]


def test_the_subject_must_be_the_right_one(tmp_path: Path, capsys: Capture) -> None:
    change = then(on_model(sha256="1" * 64), on_launches(executable_sha256="2" * 64))
    write_cert(tmp_path / "certs", change)
    asked = {"model_sha256": ["1" * 64], "server_sha256": ["2" * 64]}
    assert run_gate(capsys, tmp_path, "toy/512/4", **asked).code == 0
    asked = {"model_sha256": ["b" * 64], "server_sha256": ["f" * 64]}
    done = run_gate(capsys, tmp_path, "toy/512/4", **asked)
    assert [line.split(": ")[1] for line in violations(done)] == ["model_sha256", "server_sha256"]


def test_a_canary_passes_where_the_policy_allows_it(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs", CANARY)
    assert run_gate(capsys, tmp_path, "toy/512/4").code == 3
    assert run_gate(capsys, tmp_path, "toy/512/4", sources=["canary"]).code == 0


ACCEPT = {"toy/512/4": {"reason": "rounding in f16, ticket 7", "signed_off_by": "A. Person"}}


def test_an_accepted_amber_passes_and_is_said(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs", AMBER)
    done = run_gate(capsys, tmp_path, "toy/512/4", accept_amber=ACCEPT)
    assert done.code == 0
    assert done.lines[1] == ("  AMBER  toy/512/4, accepted by A. Person: rounding in f16, ticket 7")


TOML = """\
version = 1
required = ["toy/*/4"]
max_prompt_rate_upper_bound_95 = "0.9"

[accept_amber."toy/512/4"]
reason = "known"
signed_off_by = "A. Person"
"""


def test_a_policy_in_toml(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs", AMBER)
    policy = tmp_path / "policy.toml"
    policy.write_text(TOML, "utf-8")
    done = call(gate, capsys, tmp_path / "certs", "--policy", policy)
    assert done.code == 0
    policy.write_text(TOML.replace("reason", "because"), "utf-8")
    done = call(gate, capsys, tmp_path / "certs", "--policy", policy)
    assert done.code == 1
    assert "accept_amber.toy/512/4.because: unknown" in done.stderr
    assert "reason: say it in words" in done.stderr


@pytest.mark.parametrize(
    ("name", "data", "code", "said"),
    [
        ("p.json", b"{", 1, "is not JSON"),
        ("p.json", b"[]", 1, "is not a JSON object"),
        ("p.json", b'{"version": 1, "version": 1}', 1, "an object has a key twice"),
        ("p.json", b'{"version": NaN}', 1, "NaN is not JSON"),
        ("p.json", b"\xff", 1, "is not UTF-8"),
        ("p.toml", b"version = ", 1, "policy "),
        ("p.yaml", b"version: 1", 2, "must end in .json or .toml"),
    ],
)
def test_a_policy_that_cannot_be_read(
    tmp_path: Path, capsys: Capture, name: str, data: bytes, code: int, said: str
) -> None:
    write_cert(tmp_path / "certs")
    (tmp_path / name).write_bytes(data)
    done = call(gate, capsys, tmp_path / "certs", "--policy", tmp_path / name)
    assert done.code == code
    assert said in done.stderr
    assert done.stdout == ""


def test_paths_that_are_not_there(tmp_path: Path, capsys: Capture) -> None:
    policy = write_policy(tmp_path, "toy/512/4")
    done = call(gate, capsys, tmp_path / "none", "--policy", policy)
    assert (done.code, "there is no such file or folder" in done.stderr) == (2, True)
    done = call(gate, capsys, tmp_path, "--policy", tmp_path / "none.json")
    assert (done.code, "No such file" in done.stderr) == (1, True)
    assert call(gate, capsys, tmp_path).code == 2


def test_json_says_the_same(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path / "certs", RED)
    policy = write_policy(tmp_path, "toy/512/4")
    done = call(gate, capsys, path, "--policy", policy, "--json")
    report = done.json
    assert (done.code, report["exit_code"], report["passed"]) == (3, 3, False)
    (violation,) = report["violations"]
    assert (violation["rule"], violation["cell"]) == ("verdict", "toy/512/4")
    assert violation["file"] == str(path)
    assert report["certificates"] == [
        {
            "file": str(path),
            "cell": "toy/512/4",
            "verdict": "RED",
            "source": "live",
            "accepted": None,
            "passed": False,
        }
    ]


def test_a_hostile_name_stays_on_its_line(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs", model="a\nPASSED\x1b[2J")
    done = run_gate(capsys, tmp_path, "toy/512/4")
    assert "\x1b" not in done.stdout
    assert len(done.lines) == 3
    assert not done.lines[1].startswith("PASSED")


def junit_cases(path: Path) -> dict[str, list[str]]:
    """Test case -> what it became, over all suites."""
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        found.setdefault(case.attrib["name"], []).append(next(iter(case)).tag)
    return found


def test_junit_and_sarif_show_the_policy(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs", CANARY)
    policy = write_policy(tmp_path, "toy/512/4", "toy/512/8", max_age_days=36500)
    junit, sarif = tmp_path / "g.xml", tmp_path / "g.sarif"
    words = (tmp_path / "certs", "--policy", policy, "--junit", junit, "--sarif", sarif)
    assert call(gate, capsys, *words).code == 3
    cases = junit_cases(junit)
    assert cases["required toy/512/4"] == ["system-out"]
    assert cases["required toy/512/8"] == ["failure"]
    assert cases["policy_source"] == ["failure"]
    assert cases["policy_age"] == ["system-out"]
    assert cases["verdict"] == ["system-out"]
    assert "policy_bound" not in cases
    rows = json.loads(sarif.read_bytes())["runs"][0]["results"]
    assert [row["ruleId"] for row in rows] == ["policy_required", "policy_source"]
    assert {row["level"] for row in rows} == {"error"}


def test_nothing_shows_as_fulfilled_that_was_not_judged(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs", model="other")
    policy = write_policy(tmp_path, "toy/512/4", max_age_days=1)
    junit = tmp_path / "g.xml"
    call(gate, capsys, tmp_path / "certs", "--policy", policy, "--junit", junit)
    cases = junit_cases(junit)
    assert cases["policy_foreign"] == ["failure"]
    assert not {"policy_age", "policy_verdict", "policy_source"} & set(cases)


def test_cases_and_golden_files_are_no_certificates(tmp_path: Path, capsys: Capture) -> None:
    certs = tmp_path / "certs"
    cert = write_cert(certs)
    policy = write_policy(tmp_path, "toy/512/4")
    (certs / "case").mkdir()
    (certs / "case" / "case.json").write_bytes(a_case().to_bytes())
    assert call(golden, capsys, "record", cert, "-o", certs / "golden.json").code == 0
    done = call(gate, capsys, certs, "--policy", policy, "--json")
    assert done.code == 0
    left_out = [Path(file).name for file in done.json["left_out"]]
    assert left_out == ["case.json", "golden.json"]
    # What states a verdict is judged, whatever else it says.
    edit(cert, lambda document: document.update(schema="golden/1"))
    assert call(gate, capsys, certs, "--policy", policy).code == 3


def test_a_folder_behind_a_link_is_searched_once(tmp_path: Path, capsys: Capture) -> None:
    certs = tmp_path / "certs"
    write_cert(certs)
    write_cert(tmp_path / "elsewhere", RED)
    (certs / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(certs)
    policy = write_policy(tmp_path, "toy/512/4")
    done = call(gate, capsys, certs, "--policy", policy, "--json")
    assert done.code == 3
    files = [Path(row["file"]).parent.name for row in done.json["certificates"]]
    assert files == ["more", "certs"]
    assert {v["rule"] for v in done.json["violations"]} == {"verdict", "duplicate"}


def test_an_older_report_is_replaced(tmp_path: Path, capsys: Capture) -> None:
    write_cert(tmp_path / "certs")
    policy = write_policy(tmp_path, "toy/512/4")
    junit = tmp_path / "g.xml"
    junit.write_text("<?xml version='1.0'?>\n<testsuites/>")
    call(gate, capsys, tmp_path / "certs", "--policy", policy, "--junit", junit)
    assert junit.read_bytes().startswith(b"<?xml")


def test_a_report_is_not_written_over_another_file(tmp_path: Path, capsys: Capture) -> None:
    path = write_cert(tmp_path / "certs")
    policy = write_policy(tmp_path, "toy/512/4")
    named = tmp_path / "named.json"
    named.write_bytes(path.read_bytes())
    notes = tmp_path / "notes.xml"
    notes.write_text("<notes/> of somebody")
    for option in ("--junit", "--sarif"):
        for target in (path, policy, named, notes, path.with_suffix(".evidence.jsonl"), tmp_path):
            before = target.read_bytes() if target.is_file() else b""
            words = (path, named, "--policy", policy, option, target)
            done = call(gate, capsys, *words)
            assert done.code == 2
            assert f"{option} {target}: " in done.stderr
            assert not before or target.read_bytes() == before
    # As root it would be unlinked.
    assert call(gate, capsys, path, "--policy", policy, "--junit", os.devnull).code == 2
    same = tmp_path / "same"
    done = call(gate, capsys, path, "--policy", policy, "--junit", same, "--sarif", same)
    assert done.code == 2
    assert not same.exists()
    done = call(gate, capsys, path, "--policy", policy, "--junit", tmp_path / "no" / "x.xml")
    assert done.code == 2


def test_the_summary_is_appended_to_the_steps_own(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv(STEP_SUMMARY_VARIABLE, str(summary))
    write_cert(tmp_path / "certs", RED)
    assert run_gate(capsys, tmp_path, "toy/512/4").code == 3
    text = summary.read_text("utf-8")
    assert text.startswith("before\n### batch-invariance\n\n- FAILED")
    assert "| toy/512/4 | RED |" in text


def test_a_summary_that_cannot_be_written_costs_a_note(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STEP_SUMMARY_VARIABLE, str(tmp_path))
    write_cert(tmp_path / "certs")
    done = run_gate(capsys, tmp_path, "toy/512/4")
    assert done.code == 0
    assert "no step summary" in done.stderr


def test_targets_are_checked_before_anything_starts(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_ci_options(parser)
    args = parser.parse_args(["--junit", str(tmp_path / "toy__ctx512__N4.json")])
    with pytest.raises(UsageError, match="a file of another kind"):
        ci_targets(args)
    args = parser.parse_args([])
    assert ci_targets(args) == CiTargets(None, None, None)
    write_ci_outputs(CiTargets(None, None, None), [])
    args = parser.parse_args(["--junit", str(tmp_path / "j.xml")])
    targets = ci_targets(args)
    (tmp_path / "j.xml").write_text("older")
    targets.clear()
    assert os.listdir(tmp_path) == []
