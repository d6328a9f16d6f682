"""A remedy found on a real llama-server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports_fixtures import cli

pytestmark = pytest.mark.live


def test_an_f32_canary_is_mended_by_switching_flash_attention_off(
    live_server: Path, tmp_path: Path
) -> None:
    words = ["run-live", "--server-bin", live_server, "--canary", "f32", "--out-dir", tmp_path]
    assert cli(*words, "-q", "--", "--flash-attn", "on").code == 3
    (certificate,) = tmp_path.glob("*.json")
    out_dir = tmp_path / "diagnosis"
    more = ["--own-only", "--remedy=--flash-attn off", "--confirm-runs", 1, "--keep-slots"]
    outcome = cli("diagnose", certificate, "--out-dir", out_dir, "-q", *more)
    assert outcome.code == 0, outcome.stderr
    report = json.loads((out_dir / "diagnosis.json").read_bytes())
    assert report["remedy"] == "--flash-attn off"
    today, remedy = report["rows"]
    assert (today["verdict"], remedy["verdict"]) == ("RED", "GREEN")
    assert remedy["speed_to_today"] > 0
    assert report["command"].endswith("--parallel 4 --no-kv-unified --flash-attn off")
