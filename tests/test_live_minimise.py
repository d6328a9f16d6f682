"""A divergence of a real model, made small, replayed, and shown with curl."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from batch_invariance.live_invariance.launch import choose_port
from reports_fixtures import cli

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]
MIXED = {"table-sales", "log-cause", "logic-seats"}
"""Of 54 to 240 tokens, with the smallest margins in their first tokens."""


def test_mixed_prompts_come_down_to_two_requests_that_anyone_can_send(
    live_server: Path, live_model: Path, tmp_path: Path
) -> None:
    items = json.loads((ROOT / "examples" / "workset.json").read_bytes())
    chosen = [item for item in items if item["id"] in MIXED]
    assert len(chosen) == len(MIXED)
    (tmp_path / "mixed.json").write_text(json.dumps(chosen))
    equipment = ["--server-bin", live_server, "--model", live_model]
    words = ["run-live", *equipment, "--workset", tmp_path / "mixed.json", "--ctx", 2048]
    words += ["--parallel", 3, "--passes", 1, "--max-tokens", 14, "-q"]
    made = cli(*words, "--out-dir", tmp_path / "certs", out_dir=tmp_path / "certs")
    assert made.verdict == "RED", made.stderr

    folder = tmp_path / "case"
    words = ["minimise", made.certificate_path, "--out", folder, "--json", "-q"]
    small = cli(*words, "--attempts", 3, "--max-probes", 3)
    assert small.code == 0, small.stderr
    case = json.loads(small.stdout)
    assert case["n_requests"] <= 2
    assert case["rate"]["shown"] >= 2

    replayed = cli("replay", folder, *equipment, "--json", "-q", "--attempts", 3)
    assert replayed.code == 0, replayed.stdout + replayed.stderr
    assert json.loads(replayed.stdout)["outcome"] == "reproduced"

    env = {**os.environ, "LLAMA_SERVER": str(live_server), "MODEL": str(live_model)}
    env |= {"PORT": str(choose_port(frozenset())), "TRIES": "3"}
    command = ["sh", folder / "case.sh"]
    shown = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=180
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    alone, again, together = shown.stdout.splitlines()[:3]
    assert alone == again
    assert alone.startswith("alone: ")
    assert together.startswith("together: ")
    assert shown.stdout.splitlines()[-1].startswith("another answer in ")
