"""A temporary folder that goes with its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from batch_invariance.errors import BatchInvarianceError
from batch_invariance.live_invariance.owned_folder import owned_folder
from reports_fixtures import cli_environment
from waiting import wait_until

HOLDER = """
import sys
from batch_invariance.live_invariance.owned_folder import owned_folder
with owned_folder("held-") as folder:
    (folder / "model.gguf").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary_files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_it_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with owned_folder("some-") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "sub").mkdir()
    assert list(tmp_path.iterdir()) == []


def test_it_is_gone_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), owned_folder("some-"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_leaves_none(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=cli_environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().decode().strip())
        assert (folder / "model.gguf").is_file()
        process.kill()
    wait_until(lambda: not folder.exists())


def test_no_room_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(BatchInvarianceError, match="cannot make a temporary folder"):
        with owned_folder("some-"):
            pass
