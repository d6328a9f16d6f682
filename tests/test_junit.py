"""JUnit XML and the step's summary: well-formed, counted right, and what a colour becomes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from batch_invariance.cli.cert_files import verify_file
from batch_invariance.cli.ci_output import checked_cell
from batch_invariance.formats.junit import junit_xml, xml_text
from batch_invariance.formats.step_summary import MAX_CELLS, MAX_LINES, step_summary
from batch_invariance.invariance_diff.cell_checks import Check, CheckedCell, Finding, Mark
from batch_invariance.invariance_diff.gates import GATES
from ci_fixtures import AMBER, CANARY, RED, UNVERIFIED, edit, unchanged, write_cert
from core_fixtures import Change
from reports_fixtures import cli, light_cell, make_cell

# What Jenkins' junit-10.xsd allows: attributes, and children, by element.
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {
        "name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp",
        "hostname", "id", "package", "file", "log", "url",
    },
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "time", "classname", "group"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set(),
}  # fmt: skip
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "testcase": {"skipped", "error", "failure", "system-out"},
}


def checked(folder: Path, change: Change = unchanged, accepted: str | None = None) -> CheckedCell:
    return checked_cell(verify_file(write_cert(folder, change)), 1.5, accepted)


def cases(cell: CheckedCell) -> dict[str, tuple[str, str]]:
    """Test case -> what it became, and its message."""
    root = ElementTree.fromstring(junit_xml([cell]))
    found = {}
    for case in root.iter("testcase"):
        (outcome,) = list(case)
        found[case.attrib["name"]] = (outcome.tag, outcome.get("message", ""))
    return found


def valid(element: ElementTree.Element) -> None:
    assert set(element.attrib) <= ATTRIBUTES[element.tag]
    for child in element:
        assert child.tag in CHILDREN[element.tag]
        valid(child)


@pytest.mark.parametrize("change", [unchanged, RED, AMBER, UNVERIFIED, CANARY])
def test_the_form_is_the_one_that_jenkins_validates(tmp_path: Path, change: Change) -> None:
    root = ElementTree.fromstring(junit_xml([checked(tmp_path, change)]))
    valid(root)
    assert root.tag == "testsuites"


def test_there_is_a_case_for_the_evidence_the_verdict_and_every_gate(tmp_path: Path) -> None:
    found = cases(checked(tmp_path))
    assert list(found) == ["evidence", "verdict", *(gate.name for gate in GATES)]
    assert {tag for tag, _ in found.values()} == {"system-out", "skipped"}
    assert found["F4_logit_drift"] == ("skipped", "not armed")


@pytest.mark.parametrize(
    ("change", "gate", "element", "word"),
    [
        (RED, "F0_score", "failure", "score_divergence"),
        (UNVERIFIED, "lost", "error", "lost"),
        (AMBER, "tokens", "failure", "token_only"),
        (CANARY, "F5_provenance", "skipped", "source_canary"),
    ],
)
def test_what_an_outcome_becomes(
    tmp_path: Path, change: Change, gate: str, element: str, word: str
) -> None:
    tag, message = cases(checked(tmp_path, change))[gate]
    assert tag == element
    assert word in message


@pytest.mark.parametrize(
    ("change", "element"),
    [
        (unchanged, "system-out"),
        (CANARY, "system-out"),
        (AMBER, "failure"),
        (UNVERIFIED, "error"),
        (RED, "failure"),
    ],
)
def test_what_a_verdict_becomes(tmp_path: Path, change: Change, element: str) -> None:
    assert cases(checked(tmp_path, change))["verdict"][0] == element


def test_an_accepted_amber_passes_and_says_by_whom(tmp_path: Path) -> None:
    cell = checked(tmp_path, AMBER, accepted="accepted by A. Person: known")
    assert cell.count(Mark.FAILED) == cell.count(Mark.ERROR) == 0
    found = cases(cell)
    assert found["verdict"][0] == "system-out"
    assert found["tokens"] == ("skipped", "accepted by A. Person: known")
    assert b"policy:   accepted by A. Person: known" in junit_xml([cell])


def test_no_acceptance_changes_another_colour(tmp_path: Path) -> None:
    for change, element in ((RED, "failure"), (UNVERIFIED, "error")):
        cell = checked(tmp_path / element, change, accepted="accepted by A. Person: known")
        assert cases(cell)["verdict"][0] == element
        assert b"A. Person" not in junit_xml([cell])


def test_a_file_that_its_evidence_does_not_bear_out_is_an_error(tmp_path: Path) -> None:
    path = write_cert(tmp_path, RED)
    edit(path, lambda cert: cert.update(status="green", verdict="GREEN"))
    found = cases(checked_cell(verify_file(path), 0.0))
    assert list(found) == ["evidence"]
    assert found["evidence"][0] == "error"
    assert "the evidence gives" in found["evidence"][1]


def test_the_counts_add_up(tmp_path: Path) -> None:
    cells = [checked(tmp_path / "a", RED), checked(tmp_path / "b", UNVERIFIED)]
    root = ElementTree.fromstring(junit_xml(cells))
    for node in (root, *root.iter("testsuite")):
        assert int(node.attrib["tests"]) == len(list(node.iter("testcase")))
        assert int(node.attrib["failures"]) == len(list(node.iter("failure")))
        assert int(node.attrib["errors"]) == len(list(node.iter("error")))
    for suite in root.iter("testsuite"):
        assert int(suite.attrib["skipped"]) == len(list(suite.iter("skipped")))
        assert suite.attrib["time"] == "1.500"
        assert sum(float(case.attrib["time"]) for case in suite.iter("testcase")) == 1.5
    assert root.attrib["time"] == "3.000"


def test_the_suite_says_what_was_tested(tmp_path: Path) -> None:
    root = ElementTree.fromstring(junit_xml([checked(tmp_path, CANARY)]))
    (suite,) = root.iter("testsuite")
    assert suite.attrib["name"] == "toy/512/4"
    assert suite.attrib["timestamp"] == "2026-01-02T03:04:05"
    assert suite.attrib["file"].endswith("toy__ctx512__N4.json")
    said = {p.attrib["name"]: p.attrib["value"] for p in root.iter("property")}
    assert said["source"] == "canary"
    assert said["promotable"] == "false"
    assert said["model_sha256"] == "b" * 64


def test_dots_of_a_model_make_no_packages(tmp_path: Path) -> None:
    path = write_cert(tmp_path, model="a.b.Q4_1")
    root = ElementTree.fromstring(junit_xml([checked_cell(verify_file(path), 0.0)]))
    names = {case.attrib["classname"] for case in root.iter("testcase")}
    assert names == {"batch-invariance.a_b_Q4_1/512/4"}


NASTY = "a<b>&\"'\n\t]]>\x00\x08\x0b\x1b[31m\x7f\x85\ud800\udfff\ufffe\uffff\U0001f600é"


def test_any_text_is_well_formed() -> None:
    check = Check(NASTY, Mark.FAILED, NASTY, NASTY, Finding.RED, NASTY)
    cell = CheckedCell(NASTY, NASTY, "u", (check,), properties=((NASTY, NASTY),))
    root = ElementTree.fromstring(junit_xml([cell]))
    kept = "a<b>&\"'\n\t]]>[31m\x7f\x85\U0001f600é"
    assert root.findall(".//testcase")[0].attrib["name"] == kept
    assert root.findall(".//failure")[0].attrib["message"] == kept
    assert xml_text(NASTY) == kept


def test_no_cell_is_a_report_of_no_tests() -> None:
    root = ElementTree.fromstring(junit_xml([]))
    assert root.attrib["tests"] == "0"


def test_the_summary_has_a_row_for_each_cell(tmp_path: Path) -> None:
    text = step_summary(
        [checked(tmp_path / "a"), checked(tmp_path / "b", RED), checked(tmp_path / "c", CANARY)],
        ["FAILED: 1 violation"],
    )
    assert text.startswith("### batch-invariance\n\n- FAILED: 1 violation\n\n| cell | verdict |")
    rows = [line for line in text.splitlines() if line.startswith("| toy")]
    assert [row.split(" | ")[1] for row in rows] == ["GREEN", "RED", "GREEN"]
    assert "every other gate passed; not armed" in rows[0]
    assert "F0\\_score: score\\_divergence" in rows[1]
    assert "source canary" in rows[2]


def test_the_summary_shows_no_markup_of_others() -> None:
    name = "m|`x`<img src=x>\n# [l](http://e) @all"
    cell = CheckedCell(name, "f", "u", (Check("g", Mark.FAILED, name, "r", Finding.RED),))
    (row,) = (line for line in step_summary([cell]).splitlines() if line.startswith("| m"))
    assert "<img" not in row
    assert "@all" not in row
    assert "\\[l\\](http" in row
    assert "m\\|\\`x\\`" in row
    assert len(row.replace("\\|", "").split("|")) == 5


def test_the_summary_stays_below_what_github_keeps() -> None:
    worst = "&" * 5000
    cell = CheckedCell(worst, "f", "u", (Check("g", Mark.FAILED, worst, "r", Finding.RED),))
    text = step_summary([replace(cell, file=str(i)) for i in range(MAX_CELLS + 5)], [worst] * 99)
    assert len(text.encode("utf-8")) < 1 << 20
    assert "| 5 more cells | | |" in text
    assert f"- and {99 - MAX_LINES} more" in text


# The verbs that run or verify one cell.


def outcomes(path: Path) -> dict[str, str]:
    root = ElementTree.fromstring(path.read_bytes())
    return {case.attrib["name"]: next(iter(case)).tag for case in root.iter("testcase")}


def test_a_run_writes_its_reports(tmp_path: Path) -> None:
    junit, sarif = tmp_path / "j.xml", tmp_path / "s.sarif"
    words = ("run-mock", "--batch-divergence", "--passes", 2, "--quiet")
    reports = ("--junit", junit, "--sarif", sarif)
    done = cli(*words, *reports, "--out-dir", tmp_path / "certs", out_dir=tmp_path / "certs")
    assert (done.code, done.verdict) == (0, "RED")
    assert outcomes(junit)["F0_score"] == "failure"
    root = ElementTree.fromstring(junit.read_bytes())
    assert float(root.attrib["time"]) > 0
    assert {p.attrib["value"] for p in root.iter("property")} >= {"mock", "RED"}
    rows = json.loads(sarif.read_bytes())["runs"][0]["results"]
    assert "F0_score" in {row["ruleId"] for row in rows}


def test_a_run_without_a_verdict_leaves_no_older_report(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, die_at_start=9)
    junit = tmp_path / "j.xml"
    older = "<testsuites name='of an older run'/>"
    junit.write_text(older)
    refused = cell.run("--junit", junit, "--max-footprint-gb", "0.0001")
    assert (refused.code, junit.read_text()) == (2, older)
    assert cell.run("--junit", junit).code == 1
    assert not junit.exists()


def test_a_live_run_writes_its_reports(tmp_path: Path) -> None:
    junit = tmp_path / "j.xml"
    outcome = light_cell(tmp_path).run("--quiet", "--junit", junit)
    assert outcome.code == 0
    assert set(outcomes(junit).values()) == {"system-out", "skipped"}


def test_a_verified_certificate_is_reported(tmp_path: Path) -> None:
    path, junit = write_cert(tmp_path / "certs", UNVERIFIED), tmp_path / "j.xml"
    assert cli("verify-cert", path, "--junit", junit).code == 3
    assert outcomes(junit)["verdict"] == "error"
    edit(path, lambda cert: cert.update(promotable=True))
    assert cli("verify-cert", path, "--junit", junit).code == 1
    assert outcomes(junit) == {"evidence": "error"}
    assert cli("verify-cert", path, "--junit", path).code == 2
