"""`certify-endpoint` against a real llama-server that was started by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_invariance import cert_is_green, verify_certificate
from batch_invariance.cli.main import main
from server_by_hand import NAME, started_by_hand

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]


@pytest.fixture
def url(live_server: Path, live_model: Path, tmp_path: Path) -> Iterator[str]:
    """A server of four slots with its metrics on, as somebody might run it."""
    flags = ["-c", 4096, "--parallel", 4, "--metrics"]
    with started_by_hand(live_server, live_model, tmp_path, *flags) as address:
        yield address


def test_the_short_prompts_end_clean_with_the_witness_named(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["certify-endpoint", "--url", url, "--model", NAME, "--concurrency", "4"]
    words += ["--workset", str(ROOT / "examples" / "workset_short.json")]
    words += ["--max-tokens", "16", "--passes", "2", "--quiet"]
    assert main([*words, "--out-dir", str(tmp_path / "certs")]) == 0
    (path,) = (tmp_path / "certs").glob("*.json")
    cert = json.loads(path.read_bytes())
    assert cert_is_green(cert, require_source="endpoint")
    assert cert["overlap"]["witness"] == "decode_count"
    assert cert["endpoint"]["engine"] == "llama.cpp"
    assert cert["endpoint"]["wants"] == []
    assert "witness decode_count" in capsys.readouterr().out
    with open(path.with_name(cert["evidence"]["file"]), "rb") as lines:
        assert verify_certificate(path.read_bytes(), lines).borne_out
