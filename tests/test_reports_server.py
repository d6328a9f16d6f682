"""What people meet before a single answer counts: wrong slots, slow starts, servers that queue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batch_invariance.invariance_diff.model import Arm
from batch_invariance.live_invariance.http import Exchange
from batch_invariance.live_invariance.telemetry import busy_slots
from fault_runs import of_run
from reports_fixtures import Outcome, cli, light_cell, make_cell, prompts, read_journal

# What the shared decodes prove, and nothing else in the table.
PROOF_GATES = {"F1_overlap", "F3_coverage", "sample"}


def test_d1_a_deterministic_server_with_true_overlap_is_green(tmp_path: Path) -> None:
    outcome = make_cell(tmp_path).run("--cert-source", "live")
    assert (outcome.code, outcome.verdict, outcome.not_passed()) == (0, "GREEN", {})
    assert outcome.stdout.startswith("GREEN  toy, ctx 512, N=2")
    assert outcome.cert["overlap"]["tested_n"] == 2
    assert cli("verify-cert", outcome.certificate_path).code == 0


def test_d1_the_same_through_the_mock_is_green_but_never_promotable(tmp_path: Path) -> None:
    outcome = cli("run-mock", "--passes", 4, "--out-dir", tmp_path, out_dir=tmp_path)
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
    assert outcome.cert["source"] == "mock"
    assert not outcome.cert["promotable"]
    assert outcome.not_passed() == {"F5_provenance": "source_mock"}
    assert "says nothing about any server" in outcome.stdout
    verified = cli("verify-cert", outcome.certificate_path)
    assert verified.code == 3
    assert "NOT PROMOTABLE" in verified.stdout
    assert "source is mock" in verified.stdout


def no_verdict(outcome: Outcome) -> bool:
    return outcome.code == 1 and not outcome.certificates() and outcome.stdout == ""


def asked_for_nothing(outcome: Outcome) -> bool:
    return not any("body" in e for e in read_journal(outcome.out_dir.parent / "journal"))


def test_d2_four_slots_for_one_asked_is_refused_by_figures() -> None:
    outcome = of_run("wrong_slots")
    assert no_verdict(outcome)
    assert "the server has 4 slots, --parallel 1 was asked" in outcome.stderr
    assert asked_for_nothing(outcome)
    assert outcome.trials() == []


def test_a_server_with_another_context_is_refused_by_figures() -> None:
    outcome = of_run("wrong_context")
    assert no_verdict(outcome)
    assert "256 tokens of context, 512 were asked" in outcome.stderr
    assert asked_for_nothing(outcome)


def test_d6_no_request_goes_out_before_the_server_is_ready() -> None:
    # /v1/models answers at once, everything else with 503 until then.
    outcome = of_run("slow_start")
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
    assert outcome.cert["lost_trials"] == []


def test_a_server_that_never_gets_ready_is_given_up_in_time() -> None:
    outcome = of_run("never_ready")
    assert no_verdict(outcome)
    assert "not ready after 0.2 s" in outcome.stderr
    assert asked_for_nothing(outcome)


def test_d7_floods_of_stderr_hold_nothing_up(tmp_path: Path) -> None:
    outcome = make_cell(tmp_path, stderr_flood_bytes=500_000).run()
    assert (outcome.code, outcome.verdict) == (0, "GREEN")


@pytest.mark.parametrize("name", ["old_slots", "slots_off", "slots_absent"])
def test_d8_decode_counts_prove_the_batch_whatever_slots_looks_like(name: str) -> None:
    outcome = of_run(name)
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
    assert outcome.cert["overlap"]["witness"] == "decode_count"


def weak_witness(outcome: Outcome) -> None:
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.not_passed()["F3_coverage"] == "weak_witness"
    assert outcome.cert["overlap"]["witness"] in ("slot_samples", "client_intervals")
    assert "weak_witness" in outcome.stdout
    assert outcome.cert["sensitivity"]["n_hot_trials"] == 0


def test_d8_without_metrics_the_witness_is_declared_too_weak() -> None:
    weak_witness(of_run("no_metrics"))


def test_d8_without_metrics_and_slots_the_witness_is_declared_too_weak(tmp_path: Path) -> None:
    weak_witness(light_cell(tmp_path, no_metrics=True, slots_shape="404").run())


@pytest.mark.parametrize(
    "slots",
    [
        [{"id": 0, "id_task": 71, "is_processing": False}, {"id": 1, "is_processing": False}],
        [{"id": 0, "id_task": 71, "state": 0}, {"id": 1, "id_task": -1, "state": 0}],
    ],
)
def test_d11_a_slot_that_keeps_its_last_task_is_not_busy(slots: list[dict[str, object]]) -> None:
    assert busy_slots(Exchange(200, json.dumps(slots).encode(), None, 0.0, 0.0)) == frozenset()
    slots[1].update({"is_processing": True} if "is_processing" in slots[1] else {"state": 1})
    assert busy_slots(Exchange(200, json.dumps(slots).encode(), None, 0.0, 0.0)) == frozenset({1})


def test_d9_a_prompt_too_long_for_a_slot_is_named_before_the_arms(tmp_path: Path) -> None:
    long: dict[str, object] = {"id": "the long one", "prompt": "word " * 600}
    cell = light_cell(tmp_path, [long, *prompts(7)])
    outcome = cell.run()
    assert no_verdict(outcome)
    assert "'the long one' has 610 prompt tokens and asks for 16 more" in outcome.stderr
    assert "a slot has 512" in outcome.stderr
    assert "q0" not in outcome.stderr
    assert cell.bodies() == []


def test_d12_two_slots_shown_for_four_asked_are_refused(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, cap_parallel=2).run("--parallel", 4)
    assert no_verdict(outcome)
    assert "the server has 2 slots, --parallel 4 was asked" in outcome.stderr
    assert all(trial.key.arm is not Arm.C for trial in outcome.trials())


def test_d12_a_batch_of_two_behind_four_slots_is_not_taken_for_four(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, max_batch=2).run("--parallel", 4)
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.not_passed()["F1_overlap"] == "batch_of_n_not_proved"
    assert outcome.cert["overlap"]["tested_n"] == 2
    assert outcome.cert["overlap"]["client_max_overlap_depth"] == 4


def test_d13_a_queueing_server_fails_through_the_shared_decodes_alone(tmp_path: Path) -> None:
    # Four slots, four requests in flight, and every identity check passes; one runs at a time.
    outcome = light_cell(tmp_path, one_executor=True).run("--parallel", 4)
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert set(outcome.not_passed()) == PROOF_GATES
    assert outcome.not_passed()["F3_coverage"] == "coverage"
    assert outcome.gate("identity")["outcome"] == "PASS"
    assert outcome.cert["overlap"]["client_max_overlap_depth"] == 4
    assert outcome.cert["cobatch_coverage"]["n_co_batched"] == 0
    assert len(outcome.cert["cobatch_coverage"]["uncovered_ids"]) == 8


def test_a_server_without_keys_counts_when_its_socket_is_the_childs(tmp_path: Path) -> None:
    outcome = make_cell(tmp_path, ignore_api_key=True).run()
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
    for start in outcome.starts():
        assert not start.key_enforced
        assert start.socket_owned


def test_a_wrapper_script_without_exec_is_a_server_like_any_other(tmp_path: Path) -> None:
    outcome = make_cell(tmp_path, launcher_without_exec=True).run()
    assert (outcome.code, outcome.verdict) == (0, "GREEN")
