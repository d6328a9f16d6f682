"""The soak itself, over as many runs as it takes to end one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_llama_server import write_fake_server
from reports_fixtures import QUICK

SOAK = Path(__file__).resolve().parent / "soak"


def test_three_runs_leave_nothing_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SOAK)
    soak = __import__("soak")
    monkeypatch.setattr(soak, "LENGTH", ("--passes", "2", "--max-tokens", "8"))
    server = write_fake_server(tmp_path, behaviour=QUICK)
    words = ["--server-bin", str(server), "--work", str(tmp_path / "work")]
    words += ["--results", str(tmp_path / "results.txt")]
    assert soak.main([*words, "--runs", "1"]) == 0
    assert soak.main([*words, "--runs", "3"]) == 0
    assert capsys.readouterr().out.count(": none, end, GREEN\n") == 2
    results = (tmp_path / "results.txt").read_text()
    assert "runs        3, of which 2 were left alone: 2 GREEN" in results
    assert "ended       1: 1 SIGINT\n" in results
    assert "fault       none" in results
    # Whatever a run leaves is found.
    left = tmp_path / "work" / "tmp" / "left"
    left.touch()
    monkeypatch.setattr(soak, "GONE_S", 0.0)
    with pytest.raises(soak.SoakFault, match=r"left behind: .*left"):
        soak.Soak(server, 1, tmp_path / "work")._check_left("token")
