"""compare and golden on a real llama-server: the same cell again, and with another flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reports_fixtures import Outcome, cli

pytestmark = pytest.mark.live
TOY = ("--canary", "f16,twins", "--passes", "2", "--max-tokens", "32", "--quiet")


def cell(server: Path, out_dir: Path, *flags: str) -> Path:
    words = ("run-live", "--server-bin", server, *TOY, "--out-dir", out_dir)
    return cli(*words, *(("--", *flags) if flags else ()), out_dir=out_dir).certificate_path


def said(outcome: Outcome) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(outcome.stdout)
    assert value["exit_code"] == outcome.code
    return value


def test_the_same_server_answers_as_recorded_and_a_flag_shows(
    live_server: Path, tmp_path: Path
) -> None:
    first = cell(live_server, tmp_path / "first")
    golden = tmp_path / "golden.json"
    recorded = said(cli("golden", "record", first, "-o", golden, "--json"))
    assert recorded["not_recorded"] == {}
    assert recorded["n_with_logprobs"] == recorded["n_items"] >= 8

    again = cell(live_server, tmp_path / "again")
    same = said(cli("golden", "check", "--logprobs", golden, again, "--json"))
    assert (same["outcome"], same["reasons"]) == ("SAME", [])
    assert {item["state"] for item in same["items"]} == {"same"}

    other = cell(live_server, tmp_path / "other", "--flash-attn", "off")
    result = said(cli("compare", first, other, "--json"))
    changed = {fact["name"] for fact in result["facts"] if fact["agreement"] == "changed"}
    assert changed == {"server flags"}
    # How the answers fare under the other kernels is theirs; that all were compared is ours.
    assert result["incomparable"] == []
    assert result["reference"]["unknown"] == []
    checked = said(cli("golden", "check", golden, other, "--json"))
    assert {item["state"] for item in checked["items"]} <= {"same", "changed"}
    assert (checked["outcome"] == "SAME") == (
        {item["state"] for item in checked["items"]} == {"same"}
    )
