"""The probe on a real llama-server: the classic symptom, and a cell that does not show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reports_fixtures import cli

pytestmark = pytest.mark.live


def probed(server: Path, *more: object) -> tuple[int, dict[str, Any]]:
    outcome = cli("probe", "--server-bin", server, "--json", *more)
    return outcome.code, json.loads(outcome.stdout)


def test_twins_have_many_answers_at_once_and_one_alone(live_server: Path) -> None:
    code, report = probed(live_server, "--canary", "f16,twins", "--parallel", 8, "--max-tokens", 32)
    assert (code, report["outcome"]) == (3, "different")
    serial, load = report["serial"], report["concurrent"]
    assert (serial["n_answered"], serial["n_distinct_tokens"]) == (16, 1)
    assert load["n_answered"] == 64
    assert load["n_distinct_tokens"] > 1
    assert sum(variant["count"] for variant in load["variants"]) == 64
    parted = [variant["first"] for variant in load["variants"] if variant["differs_in"]]
    assert parted
    for first in parted:
        # Twin tokens have nearly the same output row, and neighbouring ids.
        assert 0 <= first["token_index"] < 32
        assert abs(first["token_x"] - first["token_y"]) == 1
        assert 0 <= first["margin_x"] < 0.01
    assert report["overlap"]["proved"]
    assert report["overlap"]["n_decodes"] < report["overlap"]["n_tokens"]


def test_a_quantised_canary_without_flash_attention_has_one_answer(live_server: Path) -> None:
    code, report = probed(
        live_server, "--canary", "q8_0", "--max-tokens", 32, "--", "--flash-attn", "off"
    )
    assert (code, report["outcome"], report["reasons"]) == (0, "same", [])
    assert report["concurrent"]["n_distinct_tokens"] == 1
    assert report["overlap"]["log"] == {"peak": 8, "fault": None}


def test_a_real_model_is_probed_with_a_prompt_of_ones_own(
    live_server: Path, live_model: Path
) -> None:
    more = ("--prompt", "Name a river.", "--parallel", 2, "--count", 4, "--max-tokens", 16)
    code, report = probed(live_server, "--model", live_model, "--ctx", 512, *more)
    # Whether it diverges is the model's affair; that batches formed is the probe's.
    assert report["overlap"]["proved"]
    assert (code == 0) == (report["outcome"] == "same")
    assert report["serial"]["n_answered"] == report["concurrent"]["n_answered"] == 4
