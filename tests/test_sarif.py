"""SARIF 2.1.0: what the format and GitHub require, levels, places, fingerprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli.cert_files import verify_file
from batch_invariance.cli.ci_output import checked_cell, uri_of
from batch_invariance.formats.sarif import sarif_json
from batch_invariance.invariance_diff.cell_checks import CheckedCell
from batch_invariance.invariance_diff.gates import GATES
from ci_fixtures import AMBER, CANARY, RED, UNVERIFIED, edit, unchanged, write_cert
from core_fixtures import Change


def checked(folder: Path, change: Change = unchanged, accepted: str | None = None) -> CheckedCell:
    return checked_cell(verify_file(write_cert(folder, change)), 0.0, accepted)


def log(*cells: CheckedCell) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(sarif_json(cells, "1.2.3"))
    return value


def results(*cells: CheckedCell) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log(*cells)["runs"][0]["results"]
    return found


def test_the_head_of_the_log() -> None:
    value = log()
    assert value["version"] == "2.1.0"
    assert value["$schema"].endswith("/sarif-schema-2.1.0.json")
    (run,) = value["runs"]
    assert run["tool"]["driver"]["name"] == "batch-invariance"
    assert run["tool"]["driver"]["version"] == "1.2.3"
    assert run["results"] == []


def test_every_gate_is_a_rule_with_the_texts_that_github_wants(tmp_path: Path) -> None:
    rules = log(checked(tmp_path, RED))["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [*(gate.name for gate in GATES), "evidence"]
    for rule in rules:
        for name in ("shortDescription", "fullDescription", "help"):
            assert rule[name]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")


@pytest.mark.parametrize(
    ("change", "levels"),
    [
        (unchanged, {}),
        (CANARY, {}),
        (RED, {"F0_score": "error", "tokens": "warning"}),
        (AMBER, {"tokens": "warning"}),
        (UNVERIFIED, {"lost": "error"}),
    ],
)
def test_a_result_for_each_gate_that_costs_a_colour(
    tmp_path: Path, change: Change, levels: dict[str, str]
) -> None:
    found = {row["ruleId"]: row["level"] for row in results(checked(tmp_path, change))}
    assert found.items() >= levels.items()
    assert bool(found) is bool(levels)
    if change is not UNVERIFIED:
        assert set(found) == set(levels)


def test_a_result_points_at_the_line_of_its_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = checked(Path("some certs"), RED)
    lines = Path(cell.file).read_text("ascii").splitlines()
    rules = log(cell)["runs"][0]["tool"]["driver"]["rules"]
    for row in results(cell):
        assert rules[row["ruleIndex"]]["id"] == row["ruleId"]
        (location,) = row["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"] == {
            "uri": "some%20certs/toy__ctx512__N4.json",
            "uriBaseId": "%SRCROOT%",
        }
        region = place["region"]
        assert f'"gate": "{row["ruleId"]}"' in lines[region["startLine"] - 1]
        assert (region["startColumn"], region["endLine"]) == (1, region["startLine"] + 1)
        assert row["message"]["text"].startswith("toy/512/4: ")


def test_a_file_outside_the_current_folder_has_an_absolute_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cell = checked(tmp_path / "there", RED)
    location = results(cell)[0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": (tmp_path / "there" / "toy__ctx512__N4.json").as_uri()}
    assert uri_of(Path("a b:c.json")) == "a%20b%3Ac.json"


def test_fingerprints_stay_when_figures_change(tmp_path: Path) -> None:
    def prints(row: dict[str, Any]) -> tuple[str, ...]:
        return tuple(row["partialFingerprints"].values())

    first = {row["ruleId"]: row for row in results(checked(tmp_path, RED))}
    again = {row["ruleId"]: row for row in results(checked(tmp_path, AMBER))}
    assert first["tokens"]["message"] != again["tokens"]["message"]
    assert prints(first["tokens"]) == prints(again["tokens"])
    assert prints(first["tokens"]) != prints(first["F0_score"])
    elsewhere = {row["ruleId"]: row for row in results(checked(tmp_path / "x", RED))}
    assert prints(first["tokens"]) != prints(elsewhere["tokens"])
    assert first["tokens"]["partialFingerprints"]["primaryLocationLineHash"].endswith(":1")


def test_an_accepted_amber_is_a_suppressed_result(tmp_path: Path) -> None:
    (row,) = results(checked(tmp_path, AMBER, accepted="accepted by A. Person: known"))
    assert row["suppressions"] == [
        {
            "kind": "external",
            "status": "accepted",
            "justification": "accepted by A. Person: known",
        }
    ]
    assert "suppressions" not in results(checked(tmp_path / "b", AMBER))[0]


def test_a_refused_file_is_an_error_of_the_evidence(tmp_path: Path) -> None:
    path = write_cert(tmp_path, RED)
    edit(path, lambda cert: cert.update(promotable=True))
    (row,) = results(checked_cell(verify_file(path), 0.0))
    assert (row["ruleId"], row["level"]) == ("evidence", "error")
    assert row["locations"][0]["physicalLocation"]["region"]["startLine"] == 1
    path.write_bytes(b"{")
    (row,) = results(checked_cell(verify_file(path), 0.0))
    assert row["message"]["text"].startswith("toy__ctx512__N4.json: evidence: ")
