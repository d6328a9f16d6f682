"""The bundled certificates: each is derived again from the evidence beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance import cert_is_green, is_promotable, verify_certificate
from batch_invariance.cli.main import main

CERTS = Path(__file__).parents[1] / "examples" / "certs"
RED = CERTS / "demo_dense_live_cert.json"
GREEN = CERTS / "demo_short_live_cert.json"


def load(path: Path) -> dict[str, Any]:
    cert: dict[str, Any] = json.loads(path.read_bytes())
    return cert


@pytest.mark.parametrize("path", sorted(CERTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_bundled_certificate_is_borne_out_by_its_evidence(path: Path) -> None:
    with open(path.parent / load(path)["evidence"]["file"], "rb") as lines:
        verification = verify_certificate(path.read_bytes(), lines)
    assert verification.problems == ()
    assert verification.borne_out


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
