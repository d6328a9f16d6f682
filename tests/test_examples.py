"""The bundled certificates: each is derived again from the evidence beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from batch_invariance import cert_is_green, is_promotable, verify_certificate
from batch_invariance.cli.main import main
from batch_invariance.invariance_diff.model import Completion, Item, Message, Scored
from batch_invariance.scorer_api import apply_scorer, describe_scorer, resolve_scorer

ROOT = Path(__file__).parents[1]
CERTS = ROOT / "examples" / "certs"
ENDPOINTS = ROOT / "examples" / "endpoints"
MATRIX = ROOT / "examples" / "matrix"
CELLS = sorted(path for path in MATRIX.glob("certs/*/*.json"))
RED = CERTS / "demo_dense_live_cert.json"
GREEN = CERTS / "demo_short_live_cert.json"


def load(path: Path) -> dict[str, Any]:
    cert: dict[str, Any] = json.loads(path.read_bytes())
    return cert


@pytest.mark.parametrize(
    "path",
    [*sorted([*CERTS.glob("*.json"), *ENDPOINTS.glob("*.json")]), *CELLS],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_a_bundled_certificate_is_borne_out_by_its_evidence(path: Path) -> None:
    with open(path.parent / load(path)["evidence"]["file"], "rb") as lines:
        verification = verify_certificate(path.read_bytes(), lines)
    assert verification.problems == ()
    assert verification.borne_out


def test_the_sweep_has_every_cell_of_its_plan() -> None:
    index = json.loads((MATRIX / "certs" / "matrix.json").read_bytes())
    listed = {entry["file"]: entry["verdict"] for entry in index["cells"]}
    assert len(listed) == 24
    assert set(listed) == {path.relative_to(MATRIX / "certs").as_posix() for path in CELLS}
    assert [load(path)["verdict"] for path in CELLS] == [
        listed[path.relative_to(MATRIX / "certs").as_posix()] for path in CELLS
    ]


def test_the_report_of_the_sweep_is_what_the_program_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but its date."""
    monkeypatch.chdir(MATRIX)
    assert main(["report", "certs", "-o", str(tmp_path / "report.html")]) == 0
    date = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    pages = [tmp_path / "report.html", MATRIX / "report.html"]
    written, kept = (date.sub("", page.read_text("utf-8")) for page in pages)
    assert written == kept


def test_both_demos_are_there() -> None:
    assert {RED, GREEN} <= set(CERTS.glob("*.json"))


def test_the_red_demo_is_co_batching_with_floor_coverage_and_attribution() -> None:
    cert = load(RED)
    assert (cert["verdict"], cert["source"]) == ("RED", "live")
    assert cert["divergence_class"] == "co_batching"
    assert cert["completion_floor"]["completion_floor_ok"] is True
    assert cert["cobatch_coverage"]["cobatch_coverage_ok"] is True
    assert cert["cobatch_coverage"]["attribution_certain"] is True
    assert cert["arm_b"]["ab_passed"] is True
    assert not cert_is_green(cert)


def test_the_green_demo_is_promotable(capsys: pytest.CaptureFixture[str]) -> None:
    cert = load(GREEN)
    assert cert_is_green(cert)
    assert is_promotable(cert)
    assert main(["verify-cert", str(GREEN)]) == 0
    assert "PROMOTABLE" in capsys.readouterr().out


def test_the_red_demo_is_not_promoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-cert", str(RED)]) == 3
    assert "NOT PROMOTABLE" in capsys.readouterr().out


def test_the_real_vllm_diverges_by_its_own_counters_and_repeats_itself_alone() -> None:
    cert = load(ENDPOINTS / "vllm_endpoint_cert.json")
    outcome = {row["gate"]: row["outcome"] for row in cert["gates"]}
    assert (cert["verdict"], cert["source"]) == ("RED", "endpoint")
    assert cert["divergence_class"] == "co_batching"
    assert cert["overlap"]["witness"] == "decode_count"
    assert cert["endpoint"]["engine"] == "vllm"
    assert cert["endpoint"]["claim"]["borne_out"] is False
    assert outcome["reference"] == outcome["isolation"] == outcome["identity"] == "PASS"


def test_transformers_serve_proves_nothing_and_is_told_what_it_lacks() -> None:
    cert = load(ENDPOINTS / "transformers_serve_endpoint_cert.json")
    reasons = {row["gate"]: row["reason"] for row in cert["gates"]}
    assert (cert["verdict"], cert["source"]) == ("UNVERIFIED", "endpoint")
    assert reasons["F3_coverage"] == "weak_witness"
    assert "a witness of batches" in " ".join(cert["endpoint"]["wants"])


TOUCHED = "examples.unified_diff_scorer:TouchedFiles"
PATCH = """--- a/src/one.py
+++ b/src/one.py
@@ -1 +1 @@
-a
+b
--- /dev/null
+++ b/tests/test_one.py
@@ -0,0 +1 @@
+c
"""
FILES = "tests/test_one.py src/one.py"


def touched(text: str, expected: str | None = FILES, *params: str, finish: str = "stop") -> Scored:
    item = Item("q", (Message("user", "Fix it."),), expected)
    scorer = resolve_scorer(TOUCHED, params)
    return apply_scorer(scorer, Completion(text, finish_reason=finish), item)


@pytest.fixture
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("in_the_checkout")
def test_the_scorer_built_from_nothing_compares_the_touched_files() -> None:
    right = Scored("src/one.py\ntests/test_one.py", FILES, "ok", 1.0, True)
    assert touched(PATCH) == right
    assert touched(f"Here you are:\n```diff\n{PATCH}```\nDone.") == right
    assert touched(f"<think>+++ b/x.py</think>{PATCH}") == right
    half = touched(PATCH.replace("tests/test_one.py", "two.py"))
    assert (half.score, half.passed, half.failure_mode) == (1 / 3, False, "ok")
    assert touched(PATCH, None) == Scored("src/one.py\ntests/test_one.py", None, "ok", None, None)


@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.parametrize(
    ("text", "finish", "mode"),
    [("", "stop", "empty"), ("Change one.py.", "stop", "no_diff"), ("---", "length", "truncated")],
)
def test_the_scorer_built_from_nothing_says_what_failed(text: str, finish: str, mode: str) -> None:
    assert touched(text, finish=finish) == Scored(None, FILES, mode, 0.0, False)


@pytest.mark.usefixtures("in_the_checkout")
def test_the_scorer_built_from_nothing_takes_a_parameter() -> None:
    plain = touched(PATCH.replace("test_one", "test_two"))
    assert (plain.score, plain.passed) == (1 / 3, False)
    tuned = touched(PATCH.replace("test_one", "test_two"), FILES, "ignore_tests=true")
    assert (tuned.extracted_answer, tuned.passed) == ("src/one.py", True)
    infos = [describe_scorer(resolve_scorer(TOUCHED, p)) for p in ([], ["ignore_tests=true"])]
    assert dict(infos[1].params) == {"ignore_tests": True}
    assert infos[0].sha256 != infos[1].sha256


def test_the_page_shows_the_scorer_built_from_nothing() -> None:
    source = (ROOT / "examples" / "unified_diff_scorer.py").read_text("utf-8")
    page = (ROOT / "docs" / "scorers.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks[-1] == source[source.index("from __future__") :]
