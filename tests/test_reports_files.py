"""What people do with files: edit them, point at wrong ones, run twice, fill the disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import fault_runs
from fault_cases import CASES
from reports_fixtures import Cell, Outcome, cli, light_cell, make_cell


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return light_cell(tmp_path_factory.mktemp("green")).run()


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return light_cell(tmp_path_factory.mktemp("red"), mix_donor_at=2).run()


def copied(outcome: Outcome, folder: Path) -> tuple[Path, Path]:
    """The outcome's certificate and evidence in another folder, to be tampered with."""
    return (
        Path(shutil.copy(outcome.certificate_path, folder)),
        Path(shutil.copy(outcome.evidence_path, folder)),
    )


def rewrite(path: Path, **changes: object) -> None:
    document = json.loads(path.read_bytes())
    document.update(changes)
    path.write_text(json.dumps(document, sort_keys=True, indent=2) + "\n")


def test_a_green_certificate_verifies_wherever_it_lies(green: Outcome, tmp_path: Path) -> None:
    certificate, evidence = copied(green, tmp_path)
    result = cli("verify-cert", certificate)
    assert result.code == 0
    assert result.stdout.startswith("PROMOTABLE")
    evidence = evidence.rename(tmp_path / "elsewhere.jsonl")
    assert cli("verify-cert", certificate).code == 1
    assert cli("verify-cert", certificate, "--evidence", evidence).code == 0
    report = json.loads(cli("verify-cert", certificate, "--evidence", evidence, "--json").stdout)
    assert (report["promotable"], report["verdict"], report["exit_code"]) == (True, "GREEN", 0)


def test_a_red_certificate_is_borne_out_and_not_promoted(red: Outcome) -> None:
    assert (red.code, red.verdict) == (3, "RED")
    result = cli("verify-cert", red.certificate_path)
    assert result.code == 3
    assert "NOT PROMOTABLE" in result.stdout
    assert "score_divergence" in result.stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "green"},
        {"status": "green", "verdict": "GREEN", "promotable": True},
        {"status": "green", "verdict": "GREEN", "promotable": True, "decision_reasons": []},
    ],
)
def test_d19_a_certificate_edited_to_green_is_refused(
    red: Outcome, tmp_path: Path, changes: dict[str, object]
) -> None:
    certificate, _ = copied(red, tmp_path)
    rewrite(certificate, **changes)
    result = cli("verify-cert", certificate)
    assert result.code == 1
    assert "REFUSED" in result.stdout
    assert 'status: says "green", the evidence gives "failed"' in result.stdout


def test_d19_a_certificate_written_by_hand_is_refused(tmp_path: Path) -> None:
    certificate = tmp_path / "m__ctx512__N2.json"
    required = {"model": "m", "ctx": 512, "dispatch_n": 2, "status": "green", "source": "live"}
    certificate.write_text(json.dumps(required))
    result = cli("verify-cert", certificate)
    assert result.code == 1
    assert "names no evidence: it can be shown, not verified" in result.stderr


def test_d19_one_cells_evidence_does_not_bear_out_anothers_certificate(
    green: Outcome, red: Outcome, tmp_path: Path
) -> None:
    certificate, evidence = copied(green, tmp_path)
    shutil.copy(red.evidence_path, evidence)
    assert cli("verify-cert", certificate).code == 1


@pytest.mark.parametrize("harm", ["a byte", "a line less", "the end cut off"])
def test_d19_evidence_that_was_touched_bears_nothing_out(
    green: Outcome, tmp_path: Path, harm: str
) -> None:
    certificate, evidence = copied(green, tmp_path)
    lines = evidence.read_bytes().splitlines(keepends=True)
    middle = len(lines) // 2
    if harm == "a byte":
        lines[middle] = lines[middle].replace(b"1", b"2", 1)
    elif harm == "a line less":
        del lines[middle]
    else:
        del lines[middle:]
    evidence.write_bytes(b"".join(lines))
    result = cli("verify-cert", certificate)
    assert result.code == 1
    assert "REFUSED" in result.stdout


def test_without_its_evidence_a_certificate_cannot_be_verified(
    green: Outcome, tmp_path: Path
) -> None:
    certificate, evidence = copied(green, tmp_path)
    evidence.unlink()
    result = cli("verify-cert", certificate)
    assert result.code == 1
    assert result.stdout == ""
    assert f"no evidence at {evidence}" in result.stderr


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model": "m"}', '{"a": NaN}'])
def test_a_file_that_is_no_certificate_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cert.json"
    path.write_text(text)
    result = cli("verify-cert", path)
    assert result.code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("batch-invariance: certificate: ")


def test_d20_a_second_run_right_after_the_first_works(tmp_path: Path) -> None:
    cell = light_cell(tmp_path)
    first = cell.run()
    before = (first.certificate_path.read_bytes(), first.evidence_path.read_bytes())
    second = cell.run()
    assert (first.code, second.code) == (0, 0)
    stem = "toy__ctx512__N2"
    assert (cell.out_dir / f"{stem}.previous.json").read_bytes() == before[0]
    assert (cell.out_dir / f"{stem}.previous.evidence.jsonl").read_bytes() == before[1]
    assert cli("verify-cert", second.certificate_path).code == 0


def test_d20_a_run_that_fails_leaves_no_older_green_standing(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    assert cell.run().code == 0
    make_cell(tmp_path, die_at_completion=3)
    assert cell.run().code == 1
    assert [path.name for path in cell.out_dir.glob("*.json")] == ["toy__ctx512__N2.previous.json"]


def nothing_started(cell: Cell) -> bool:
    return cell.journal() == []


@pytest.mark.parametrize("below", ["", "deeper"])
def test_d21_an_out_dir_that_is_a_file_is_refused_before_the_start(
    tmp_path: Path, below: str
) -> None:
    cell = make_cell(tmp_path)
    (tmp_path / "taken").write_text("mine")
    outcome = cell.run("--out-dir", tmp_path / "taken" / below)
    fault_runs.check(CASES["out_dir_file"], outcome)
    assert f"--out-dir {tmp_path / 'taken' / below}" in outcome.stderr
    assert nothing_started(cell)
    assert (tmp_path / "taken").read_text() == "mine"


def test_d21_a_disk_without_room_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, (1 << 40) - 9, 9))
    outcome = cell.run()
    fault_runs.check(CASES["disk"], outcome)
    assert "9 B free" in outcome.stderr
    assert nothing_started(cell)
    assert not cell.out_dir.exists()


def test_d21_a_disk_that_is_full_at_the_end_costs_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = light_cell(tmp_path)
    replace = os.replace

    def full(source: Any, target: Any) -> None:
        if Path(target).parent == cell.out_dir and Path(source).name.startswith(".tmp-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    outcome = cell.run()
    fault_runs.check(CASES["certificate_full"], outcome)
    assert "No space left on device" in outcome.stderr
    assert outcome.footer().ended == "complete"
    left = sorted(path.name for path in cell.out_dir.iterdir() if not path.name.startswith("."))
    assert left == ["toy__ctx512__N2.evidence.jsonl"]
    assert not list(cell.out_dir.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", ["is empty"]),
        (b"[]", ["holds no items"]),
        (b"[1, ", ["not JSON"]),
        (b"\xff\xfe[]", ["is not UTF-8"]),
        (b'{"items": []}', ["unknown key items", "needs exactly one of item, prompt and messages"]),
        (
            b'[{"id": "a", "prompt": 5}, {"id": "b", "promt": "x"}, {"id": "c", "prompt": "x"},'
            b' {"id": "c", "prompt": "y"}, {"prompt": "z", "max_tokens": "8"}, 7]',
            [
                "item [0]: prompt must be a string, is 5",
                "item [1]: unknown key promt; did you mean prompt?",
                "item [3]: id 'c' is already taken by item [2]",
                "item [4]: max_tokens must be a whole number",
                "item [5]: must be an object or a string, is 7",
            ],
        ),
    ],
)
def test_d22_a_bad_work_set_is_told_in_one_line_with_all_its_faults(
    tmp_path: Path, data: bytes, said: list[str]
) -> None:
    cell = light_cell(tmp_path)
    cell.workset.write_bytes(data)
    outcome = cell.run()
    assert outcome.code == 1
    assert outcome.stderr.count("\n") == 1
    assert outcome.stderr.startswith("batch-invariance: work-set set.json: ")
    for fault in said:
        assert fault in outcome.stderr
    assert nothing_started(cell)
    assert not cell.out_dir.exists()


def test_d22_a_work_set_with_an_id_for_the_terminal_is_refused_escaped(tmp_path: Path) -> None:
    cell = light_cell(tmp_path, [{"id": "red\x1b[31m", "prompt": "x"}])
    outcome = cell.run()
    assert outcome.code == 1
    assert "\x1b" not in outcome.stderr
    assert "\\x1b[31m" in outcome.stderr


def test_d23_prompts_of_every_kind_run_and_are_told_apart(tmp_path: Path) -> None:
    texts = [
        "",
        " ",
        "a\0b",
        "🙂🏽 family 👨‍👩‍👧",
        "日本語の川について",
        "\x1b[31mred",
        "x" * 5000,
        "é\u2028\r\n",
    ]
    outcome = light_cell(tmp_path, texts).run("--ctx", 1024)
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
    assert len({trial.item_id for trial in outcome.trials()}) == len(texts)


def test_d23_odd_texts_are_shown_escaped(tmp_path: Path) -> None:
    texts = [{"id": f"q{i}-川🙂", "prompt": f"\x1b[31m\0 {i} 日本語\nnext"} for i in range(8)]
    outcome = light_cell(tmp_path, texts, mix_donor_at=2).run("--verbose")
    assert outcome.verdict == "RED"
    shown = outcome.stdout + outcome.stderr
    assert "-川🙂" in shown
    assert "\\x1b[31m\\x00" in outcome.stdout
    assert "\x1b" not in shown
    assert "\0" not in shown
