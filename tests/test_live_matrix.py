"""A sweep on a real llama-server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batch_invariance import verify_certificate
from reports_fixtures import cli

pytestmark = pytest.mark.live


def test_two_sizes_share_the_arm_that_is_run_once(live_server: Path, tmp_path: Path) -> None:
    words = ["run-matrix", "--server-bin", live_server, "--model", "canary:q8_0", "-q"]
    words += ["--parallel", "2,4", "--passes", 2, "--max-tokens", 16, "--out-dir", tmp_path]
    outcome = cli(*words, "--json")
    assert outcome.code == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert [entry["verdict"] for entry in report["cells"]] == ["GREEN", "GREEN"]
    (arm,) = report["shared_arms"]
    for entry in report["cells"]:
        path = tmp_path / entry["file"]
        cert = json.loads(path.read_bytes())
        assert cert["shared_arms"][0]["sha256"] == arm["sha256"]
        with open(path.with_name(cert["evidence"]["file"]), "rb") as lines:
            assert verify_certificate(path.read_bytes(), lines).borne_out
