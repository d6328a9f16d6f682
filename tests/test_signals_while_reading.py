"""A signal that comes while files are read ends the program; it says nothing about the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_invariance.cli import cert_files
from batch_invariance.cli.main import main
from batch_invariance.errors import Interrupted
from batch_invariance.live_invariance import sweep_state
from ci_fixtures import write_cert, write_policy
from sweep_fixtures import Launches, mock_group, sweep

SIGTERM = 15


def struck(path: Path) -> Iterator[bytes]:
    raise Interrupted(SIGTERM)


@pytest.mark.parametrize(
    "words",
    [
        lambda cert, folder: ["gate", cert, "--policy", write_policy(folder, "*/*/*")],
        lambda cert, folder: ["list", cert],
        lambda cert, folder: ["show", cert],
        lambda cert, folder: ["report", cert, "-o", folder / "report.html"],
        lambda cert, folder: ["attest", cert, "-o", folder / "statement.json"],
        lambda cert, folder: ["golden", "record", cert, "-o", folder / "golden.json"],
    ],
    ids=["gate", "list", "show", "report", "attest", "golden"],
)
def test_a_verb_that_reads_certificates_ends_with_the_signal(
    words: Callable[[Path, Path], list[object]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cert = write_cert(tmp_path / "certs")
    command = [str(word) for word in words(cert, tmp_path)]
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(cert_files, "read_lines", struck)
    assert main(command) == 128 + SIGTERM
    assert set(tmp_path.iterdir()) == before
    assert capsys.readouterr().out == ""


def test_a_sweep_that_is_ended_while_it_looks_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches()
    sweep([mock_group(launches)], tmp_path).run()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    launches.made.clear()
    monkeypatch.setattr(sweep_state, "read_lines", struck)
    with pytest.raises(Interrupted):
        sweep([mock_group(launches)], tmp_path).run()
    assert launches.made == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json*")} == before
