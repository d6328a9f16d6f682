"""A divergence on a real server, made small, replayed, and shown with curl."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from batch_invariance.formats.toy_gguf import ToySpec
from batch_invariance.live_invariance.canary import write_canary
from batch_invariance.live_invariance.launch import choose_port
from reports_fixtures import cli
from server_by_hand import NAME, started_by_hand

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]
MIXED = {"table-sales", "log-cause", "logic-seats"}
"""Of 54 to 240 tokens, with the smallest margins in their first tokens."""


def mixed(folder: Path) -> Path:
    """The work-set, as a file in this folder."""
    items = json.loads((ROOT / "examples" / "workset.json").read_bytes())
    chosen = [item for item in items if item["id"] in MIXED]
    assert len(chosen) == len(MIXED)
    path = folder / "mixed.json"
    path.write_text(json.dumps(chosen))
    return path


def shown_with_curl(folder: Path, tries: int, **more: str) -> None:
    """The script of a case shows it."""
    command = ["sh", folder / "case.sh"]
    env = {**os.environ, **more, "TRIES": str(tries)}
    shown = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=180
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    alone, again, together = shown.stdout.splitlines()[:3]
    assert alone == again
    assert alone.startswith("alone: ")
    assert together.startswith("together: ")
    assert shown.stdout.splitlines()[-1].startswith("another answer in ")


def test_twins_come_down_to_two_requests_that_anyone_can_send(
    live_server: Path, tmp_path: Path
) -> None:
    """On servers that are launched for it."""
    words = ["run-live", "--server-bin", live_server, "--canary", "f16,twins", "--passes", 4, "-q"]
    made = cli(*words, "--out-dir", tmp_path / "certs", out_dir=tmp_path / "certs")
    assert made.verdict == "RED", made.stderr

    folder = tmp_path / "case"
    words = ["minimise", made.certificate_path, "--out", folder, "--json", "-q"]
    small = cli(*words, "--attempts", 6, "--max-probes", 12)
    assert small.code == 0, small.stderr
    case = json.loads(small.stdout)
    assert case["n_requests"] <= 2
    assert case["rate"]["shown"] >= 2

    words = ["replay", folder, "--server-bin", live_server, "--json", "-q", "--attempts", 6]
    replayed = cli(*words)
    assert replayed.code == 0, replayed.stdout + replayed.stderr
    assert json.loads(replayed.stdout)["outcome"] == "reproduced"

    model = write_canary(ToySpec.parse("f16,twins"), tmp_path)
    port = str(choose_port(frozenset()))
    shown_with_curl(folder, 6, LLAMA_SERVER=str(live_server), MODEL=str(model), PORT=port)


def test_a_server_that_was_started_by_hand_comes_down_to_two_requests_too(
    live_server: Path, live_model: Path, tmp_path: Path
) -> None:
    flags = ["-c", 6144, "--parallel", 3, "--metrics"]
    with started_by_hand(live_server, live_model, tmp_path, *flags) as url:
        words: list[object] = ["certify-endpoint", "--url", url, "--model", NAME]
        words += ["--concurrency", 3]
        words += ["--workset", mixed(tmp_path), "--max-tokens", 14, "--passes", 1, "-q"]
        made = cli(*words, "--out-dir", tmp_path / "certs", out_dir=tmp_path / "certs")
        assert made.verdict == "RED", made.stderr

        folder = tmp_path / "case"
        words = ["minimise", made.certificate_path, "--url", url, "--out", folder, "--json", "-q"]
        small = cli(*words, "--attempts", 2, "--max-probes", 2)
        assert small.code == 0, small.stderr
        case = json.loads(small.stdout)
        assert case["n_requests"] <= 2
        assert case["rate"]["shown"] >= 1

        replayed = cli("replay", folder, "--url", url, "--json", "-q", "--attempts", 2)
        assert replayed.code == 0, replayed.stdout + replayed.stderr
        assert json.loads(replayed.stdout)["outcome"] == "reproduced"
        shown_with_curl(folder, 2, URL=url)
