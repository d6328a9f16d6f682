"""Whole cells on a real llama-server: the colour, and the reason for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance import cert_is_green, verify_certificate
from batch_invariance.cli.main import main

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[1]
SMALL = ("--parallel", "3", "--passes", "1", "--max-tokens", "14", "--quiet")
"""Enough where a divergence is sure to come."""
QUICK = ("--passes", "2", "--max-tokens", "16", "--quiet")
TOY = ("--passes", "4", "--max-tokens", "64", "--quiet")
"""A toy answers in milliseconds: its waves need more passes and tokens to overlap provably."""


class Cell:
    """One run through the command line, and the files it left."""

    def __init__(self, out_dir: Path, words: list[str]) -> None:
        self.code = main(["run-live", "--out-dir", str(out_dir), *words])
        (path,) = (p for p in out_dir.glob("*.json") if "previous" not in p.name)
        self.path = path
        self.cert: dict[str, Any] = json.loads(path.read_bytes())
        self.evidence = path.with_name(self.cert["evidence"]["file"])

    def outcome(self, gate: str) -> str:
        return next(row["outcome"] for row in self.cert["gates"] if row["gate"] == gate)

    def verify(self) -> bool:
        with open(self.evidence, "rb") as lines:
            return verify_certificate(self.path.read_bytes(), lines).borne_out


def canary(server: Path, out_dir: Path, spec: str | None, *more: str) -> Cell:
    words = ["--server-bin", str(server), "--canary"]
    return Cell(out_dir, words + ([spec] if spec else []) + list(more))


def short(folder: Path) -> Path:
    """Ten of the short example items."""
    items = json.loads((ROOT / "examples" / "workset_short.json").read_bytes())
    path = folder / "short.json"
    path.write_text(json.dumps(items[:10]))
    return path


def model_cell(server: Path, model: Path, out_dir: Path, workset: Path, *more: str) -> Cell:
    words = ["--server-bin", str(server), "--model", str(model), "--workset", str(workset)]
    return Cell(out_dir, [*words, "--ctx", "2048", "--parallel", "4", *more])


MIXED = ("table-sales", "log-cause", "logic-seats")
"""Of 54 to 240 tokens, with the smallest margins in their first tokens."""


def mixed(folder: Path) -> Path:
    """Those of the example items."""
    items = json.loads((ROOT / "examples" / "workset.json").read_bytes())
    chosen = [item for item in items if item["id"] in MIXED]
    assert len(chosen) == len(MIXED)
    path = folder / "mixed.json"
    path.write_text(json.dumps(chosen))
    return path


def test_the_default_canary_is_green_and_says_what_it_is_not(
    live_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = canary(live_server, tmp_path, None, *TOY)
    shown = capsys.readouterr().out
    assert (cell.code, cell.cert["status"], cell.cert["source"]) == (0, "green", "canary")
    assert cell.cert["promotion_scope"]["valid_for"]["server_flags"] == ["--flash-attn", "off"]
    assert "says nothing about any real model" in shown
    assert "--canary f16,twins" in shown
    assert not cert_is_green(cell.cert)
    assert main(["verify-cert", str(cell.path)]) == 3
    assert cell.verify()


def test_twins_turn_red_by_co_batching(
    live_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(40)))
    key.chmod(0o600)
    signed = ("--sign-key", str(key))
    cell = canary(live_server, tmp_path, "f16,twins", *TOY, *signed)
    assert (cell.code, cell.cert["verdict"]) == (3, "RED")
    capsys.readouterr()
    assert main(["verify-cert", "--json", *signed, str(cell.path)]) == 3
    assert json.loads(capsys.readouterr().out)["signature"] == "fits"
    assert cell.cert["divergence_class"] == "co_batching"
    assert cell.cert["arm_b"] == {"ab_passed": True, "bc_passed": False}
    first = cell.cert["divergence_report"]["AC"]["per_id"][0]["first_divergence"]
    assert first["companions"]
    assert first["token_x"] != first["token_y"]
    assert first["margin_x"] is not None
    assert cell.verify()


def test_drift_without_a_flip_is_green_unarmed_and_amber_armed(
    live_server: Path, tmp_path: Path
) -> None:
    unarmed = canary(live_server, tmp_path / "u", "f32", *TOY)
    assert unarmed.cert["verdict"] == "GREEN"
    assert unarmed.cert["claims"] == {"score": True, "token": True, "logprob_bits": False}
    armed = canary(live_server, tmp_path / "a", "f32", *TOY, "--logit-drift", "bits")
    assert (armed.code, armed.cert["verdict"]) == (3, "AMBER")
    assert armed.cert["anomaly"] == "logit_drift"


def test_a_mixture_of_experts_is_recognised_by_its_header(
    live_server: Path, tmp_path: Path
) -> None:
    cell = canary(live_server, tmp_path, "q8_0,moe", *TOY, "--", "--flash-attn", "off")
    assert cell.cert["promotion_scope"]["tested_model_looks_moe"] is True
    assert cell.cert["subject"]["model"]["expert_count"] == 8
    assert cell.cert["verdict"] == "GREEN"


def test_short_prompts_of_a_real_model_are_green_and_promotable(
    live_server: Path, live_model: Path, tmp_path: Path
) -> None:
    words = (*QUICK, "--cert-source", "live")
    cell = model_cell(live_server, live_model, tmp_path / "out", short(tmp_path), *words)
    assert (cell.code, cell.cert["status"], cell.cert["source"]) == (0, "green", "live")
    assert cell.cert["overlap"]["witness"] == "decode_log"
    assert cell.cert["overlap"]["tested_n"] == 4
    assert all(row["proved_shared_decodes"] > 0 for row in cell.cert["rows"])
    assert cell.cert["controls"]["token_sensitive"] is True
    assert main(["verify-cert", str(cell.path)]) == 0


def test_mixed_prompts_of_a_real_model_are_red_by_co_batching(
    live_server: Path, live_model: Path, tmp_path: Path
) -> None:
    cell = model_cell(live_server, live_model, tmp_path / "out", mixed(tmp_path), *SMALL)
    assert (cell.code, cell.cert["verdict"]) == (3, "RED")
    assert cell.cert["divergence_class"] == "co_batching"
    assert cell.outcome("reference") == "PASS"
    assert cell.outcome("control_b") == "PASS"


def test_unified_kv_is_red_by_slot_allocation(
    live_server: Path, live_model: Path, tmp_path: Path
) -> None:
    cell = model_cell(
        live_server,
        live_model,
        tmp_path / "out",
        mixed(tmp_path),
        *SMALL,
        "--",
        "--kv-unified",
    )
    assert cell.cert["verdict"] == "RED"
    assert cell.cert["divergence_class"] == "slot_allocation(+co_batching)"
    assert cell.cert["kv_label"] == "f16/f16 unified"


def test_an_item_that_does_not_fit_is_refused_by_name_before_the_arms(
    live_server: Path, live_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [
        {"id": f"i{n}", "prompt": f"{n}? " + "word " * (400 if n == 3 else 4)} for n in range(9)
    ]
    workset = tmp_path / "w.json"
    workset.write_text(json.dumps(items))
    code = main(
        [
            *("run-live", "--server-bin", str(live_server), "--model", str(live_model)),
            *("--workset", str(workset), "--ctx", "256", "--parallel", "4"),
            *("--out-dir", str(tmp_path / "out"), *QUICK),
        ]
    )
    said = capsys.readouterr().err
    assert code == 1
    assert "'i3'" in said
    assert "'i2'" not in said
    assert not list((tmp_path / "out").glob("*2.json"))


def test_server_flags_that_change_sampling_are_neutralised(
    live_server: Path, tmp_path: Path
) -> None:
    flags = ("--", "--flash-attn", "off", "--temp", "1.5", "--seed", "7", "--top-k", "3")
    hot = canary(live_server, tmp_path / "hot", "q8_0", *TOY, *flags)
    plain = canary(live_server, tmp_path / "plain", "q8_0", *TOY, *flags[:3])
    assert hot.cert["verdict"] == plain.cert["verdict"] == "GREEN"
    answers = [[row["content_sha"] for row in cell.cert["rows"]] for cell in (hot, plain)]
    assert answers[0] == answers[1]


def test_a_second_run_sets_the_first_aside_and_leaves_nothing_else(
    live_server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, out_dir = tmp_path / "tmp", tmp_path / "out"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    canary(live_server, out_dir, None, *TOY)
    canary(live_server, out_dir, None, *TOY)
    stem = "canary-q8_0-seed0__ctx2048__N4"
    assert {p.name for p in out_dir.iterdir()} == {
        f"{stem}.json",
        f"{stem}.evidence.jsonl",
        f"{stem}.previous.json",
        f"{stem}.previous.evidence.jsonl",
    }
    assert list(scratch.iterdir()) == []
