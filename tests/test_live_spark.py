"""The reference profile and the server's log on a real server and a real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli.main import main
from batch_invariance.profiles.spark.families import Family

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def spark(
    live_server: Path, live_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The certificate of a run of all families at a small fill."""
    folder = tmp_path_factory.mktemp("spark")
    words = ["run-live", "--profile", "spark", "--server-bin", str(live_server)]
    words += ["--model", str(live_model), "--ctx", "2048", "--parallel", "4", "--passes", "1"]
    words += ["--fills", "0.05", "--max-tokens", "8", "--out-dir", str(folder), "--quiet"]
    assert main(words) in (0, 3)
    (path,) = folder.glob("*__N4.json")
    cert: dict[str, Any] = json.loads(path.read_bytes())
    return cert


def test_every_family_and_fill_is_compared_and_scored(spark: dict[str, Any]) -> None:
    report = spark["divergence_report"]["AC"]
    assert set(report["by_family"]) == {family.value for family in Family}
    assert set(report["by_fill"]) == {"0.05"}
    assert spark["lost_trials"] == []
    assert spark["untested_ids"] == []
    assert all(row["score"] is not None for row in spark["rows"])
    assert set(spark["score_impact"]["by_family"]) == {family.value for family in Family}
    assert spark["score_impact"]["n_scored"] == len(Family)
    assert spark["scorer"]["name"] == "spark"


def test_the_log_proves_every_pass_to_the_decode(spark: dict[str, Any]) -> None:
    assert spark["overlap"]["log_fault"] is None
    assert spark["overlap"]["witness"] == "decode_log"
    assert spark["schedule_space"]["n_passes_by_log"] == spark["n_passes"]
    assert spark["schedule_space"]["ids_prefill_with_decode"] > 0
