"""Report and show of a server that the tool did not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batch_invariance.cli import report, show
from batch_invariance.cli.main import main
from batch_invariance.formats.html_style import STYLE
from batch_invariance.formats.html_timeline import ARM_NAMES, paint_of
from batch_invariance.invariance_diff.diff import TOKEN_FIELDS
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.report_words import FIELD_WORDS
from batch_invariance.invariance_diff.rules import INVARIANT_FIELDS
from ci_fixtures import call
from fake_endpoints import KEY, MODEL, FakeEndpoint, Plan, Surface
from report_fixtures import read_page


def endpoint_folder(tmp_path: Path) -> Path:
    """A certificate of a server that does not tell its context, with a claim."""
    with FakeEndpoint(Plan(Surface.SGLANG), 4) as server:
        workset = tmp_path / "w.json"
        workset.write_text(json.dumps([f"Question {i}: say it" for i in range(8)]), "utf-8")
        command = ["certify-endpoint", "--url", server.url, "--model", MODEL]
        command += ["--workset", str(workset), "--concurrency", "4", "--passes", "2", "--quiet"]
        (tmp_path / "key").write_text(KEY, "utf-8")
        command += ["--api-key-file", str(tmp_path / "key")]
        command += ["--max-tokens", "8", "--claims-invariance", "<b>mode</b>"]
        assert main([*command, "--out-dir", str(tmp_path / "out")]) in (0, 3)
    return tmp_path / "out"


def test_an_endpoint_is_shown_with_what_is_known_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder, out = endpoint_folder(tmp_path), tmp_path / "report.html"
    capsys.readouterr()
    assert call(report, capsys, folder, "-o", out).code == 0
    text = read_page(out.read_text("utf-8")).text
    shown = call(show, capsys, next(folder.glob("*.json"))).stdout
    for words in (
        "ctx unknown",
        "endpoint http://127.0.0.1:",
        "a server that the tool did not start",
        "<b>mode</b>",
        "A3: the reference once more, at the end",
        "batch-invariance certify-endpoint --url http://127.0.0.1:",
        "--claims-invariance '<b>mode</b>' --passes 2 --max-tokens 8",
        "weights, flags, KV types, machine",
    ):
        assert words in text
        assert words in shown or "A3" in words
    assert "None" not in text


def test_every_compared_field_has_words() -> None:
    assert set(FIELD_WORDS) == {*INVARIANT_FIELDS, *TOKEN_FIELDS}


def test_every_arm_has_a_name_and_a_paint() -> None:
    assert set(ARM_NAMES) == set(Arm)
    assert all(f".{paint_of(arm)}" in STYLE.html for arm in Arm)
