"""What people meet in the answers: odd replies, lost ones, noise, and too little of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.invariance_diff.model import Arm
from reports_fixtures import N_ITEMS, Outcome, light_cell


def test_d3_text_of_another_item_at_three_in_flight_is_red_at_four_only(tmp_path: Path) -> None:
    assert light_cell(tmp_path / "two", mix_donor_at=3).run("--parallel", 2).verdict == "GREEN"
    cell = light_cell(tmp_path / "four", mix_donor_at=3)
    outcome = cell.run("--parallel", 4)
    assert (outcome.code, outcome.verdict) == (3, "RED")
    assert outcome.cert["divergence_class"] == "contamination"
    for entry in outcome.cert["contamination"]:
        assert entry["id"] not in {donor["id"] for donor in entry["donors"]}
        assert {donor["kind"] for donor in entry["donors"]} == {"prompt"}
    first = outcome.cert["contamination"][0]
    assert (
        f"CONTAMINATION: THE ANSWER TO {first['id']} HOLDS TEXT OF {first['donors'][0]['id']} "
        in outcome.stdout
    )
    assert "first divergence: item" in outcome.stdout
    # The donor's text stands in the summary, beside what arm A said.
    shown = next(line for line in outcome.stdout.splitlines() if line.startswith("  C: "))
    assert "Question" in shown
    assert "name a river" not in outcome.certificate_path.read_text()


def test_d4_an_odd_first_reply_is_not_blamed_on_batching(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, first_reply_odd=True).run()
    assert (outcome.code, outcome.verdict) == (0, "GREEN")


def test_d5_error_objects_with_status_200_are_never_scored(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, error_object_200=True).run()
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == {"error_object"}
    assert outcome.cert["untested_ids"] == [f"q{i}" for i in range(8)]
    assert all(trial.scored is None for trial in outcome.trials())
    assert outcome.cert["divergence_report"]["AC"]["n_compared"] == 0
    assert "planted error object" in outcome.stderr


@pytest.mark.parametrize("kind", ["finish_reason", "token_count", "tool_args", "reasoning"])
def test_d14_what_differs_under_load_beside_equal_content_costs_the_green(
    tmp_path: Path, kind: str
) -> None:
    outcome = light_cell(tmp_path, under_load=kind).run()
    if kind == "token_count":
        # The server's own counter of generated tokens contradicts its answers as well.
        assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
        assert {"tokens", "isolation"} <= outcome.not_passed().keys()
    else:
        assert (outcome.code, outcome.verdict) == (3, "AMBER")
        assert outcome.not_passed() == {"tokens": "token_only"}
    # One of the fake's answers may end by itself, and shows no other finish reason then.
    assert len(outcome.cert["token_divergence_ids"]) >= N_ITEMS - 1
    # The serial arms agree, also where every tool call has a random id.
    assert outcome.gate("reference")["outcome"] == "PASS"
    assert outcome.gate("control_b")["outcome"] == "PASS"


def test_d15_an_id_that_fails_everywhere_is_untested_not_equal(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, http_500_for_prompt_containing="Question 3").run()
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.cert["untested_ids"] == ["q3"]
    assert outcome.cert["divergence_report"]["AC"]["n_ids_compared"] == 7
    assert {(lost["id"], lost["kind"]) for lost in outcome.cert["lost_trials"]} == {
        ("q3", "http_error")
    }
    assert {lost["arm"] for lost in outcome.cert["lost_trials"]} >= {"A", "A2", "B", "C"}
    assert "lost trial: q3: http_error: planted failure for this prompt" in outcome.stderr


def lost_in_c(outcome: Outcome, *kinds: str) -> None:
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == set(kinds)
    assert {lost["arm"] for lost in outcome.cert["lost_trials"]} == {"C"}
    assert outcome.gate("F0_score")["outcome"] == "PASS"
    for kind in kinds:
        assert f"1 {kind} in C" in outcome.gate("lost")["measured"]
        assert f": {kind}: " in outcome.stderr


def test_d16_failures_in_arm_c_are_told_by_their_kinds(tmp_path: Path) -> None:
    faults = {"http_500": 4, "reset": 5, "truncated_json": 7, "bad_json": 8}
    outcome = light_cell(tmp_path, fail_nth_concurrent=faults).run()
    lost_in_c(outcome, "http_error", "connection", "truncated_body", "bad_json")
    assert outcome.footer().ended == "complete"


def test_d16_one_lost_trial_is_enough(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, fail_nth_concurrent={"http_500": 5}).run()
    lost_in_c(outcome, "http_error")
    assert outcome.cert["untested_ids"] == []


@pytest.mark.parametrize("shape", ["is_processing", "state"])
def test_d16_a_hang_is_a_timeout_and_an_idle_slot_is_used_again(tmp_path: Path, shape: str) -> None:
    # The slot keeps the id of its last task, which is no reason to wait for it (D11).
    cell = light_cell(tmp_path, fail_nth_concurrent={"hang": 5}, slots_shape=shape)
    outcome = cell.run("--request-timeout", 1)
    lost_in_c(outcome, "timeout")
    assert outcome.footer().ended == "complete"


@pytest.mark.parametrize(
    "faults",
    [
        {"fail_nth_concurrent": {"hang_busy": 5}},
        {"fail_nth_concurrent": {"hang": 5}, "slots_shape": "404"},
    ],
)
def test_d16_a_slot_that_is_not_known_to_be_idle_ends_the_arm_as_lost(
    tmp_path: Path, faults: dict[str, Any]
) -> None:
    outcome = light_cell(tmp_path, **faults).run("--request-timeout", "0.5")
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == {"timeout"}
    assert "still busy after its request timed out" in outcome.stderr
    assert outcome.not_passed()["completeness"] == "incomplete"


def test_stop_on_lost_ends_the_run_there(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, fail_nth_concurrent={"http_500": 5}).run("--stop-on-lost")
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert "--stop-on-lost" in outcome.footer().ended
    assert len(outcome.cert["lost_trials"]) == 1
    assert {t.key.arm for t in outcome.trials()}.isdisjoint({Arm.P, Arm.CONFIRM})


def test_stop_on_red_ends_the_run_there(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, mix_donor_at=2).run("--stop-on-red")
    assert (outcome.code, outcome.verdict) == (3, "RED")
    assert "--stop-on-red" in outcome.footer().ended
    assert outcome.cert["divergence_report"]["AC"]["n_divergent"] == 1
    # Nobody looked at the rest, so nothing is put down to co-batching.
    assert outcome.cert["divergence_class"].startswith("unattributed")


def test_d18_noise_from_run_to_run_is_not_blamed_on_batching(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, noise_serial=True).run()
    assert outcome.code == 3
    assert outcome.not_passed()["reference"] == "reference_unstable"
    assert outcome.cert["divergence_class"] == "unstable_reference"
    assert "co_batching" not in outcome.stdout


def test_d23_a_reply_that_splits_a_character_is_lost_not_read_around(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, split_utf8=True).run()
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == {"bad_json"}


@pytest.mark.parametrize(
    ("items", "words", "said"),
    [
        (["the same", "the same"], (), "1 distinct prompts"),
        (None, ("--max-tokens", 1), "at most 8 generated tokens"),
    ],
)
def test_d24_too_little_evidence_is_said_up_front_and_never_green(
    tmp_path: Path, items: list[str] | None, words: tuple[object, ...], said: str
) -> None:
    cell = light_cell(tmp_path, items)
    plan = cell.run(*words, "--dry-run")
    assert plan.code == 0
    assert f"this run can never be GREEN: {said}" in plan.stdout
    short = json.loads(cell.run(*words, "--dry-run", "--json").stdout)["never_green"]
    assert any(reason.startswith(said) for reason in short)
    assert cell.journal() == []
    outcome = cell.run(*words)
    assert f"this run can never be GREEN: {said}" in outcome.stderr.split("launching")[0]
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.not_passed()["sample"] == "sample_too_small"


def test_a_positive_control_that_the_server_ignores_bars_the_green(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, ignore_logit_bias=True).run()
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.not_passed() == {"positive_control": "control_not_seen"}


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"cached_tokens_report": 3}, "reused a prompt cache"),
        ({"draft_n_report": 3}, "used speculation"),
    ],
)
def test_cached_or_speculated_answers_are_not_isolated(
    tmp_path: Path, faults: dict[str, Any], said: str
) -> None:
    outcome = light_cell(tmp_path, **faults).run()
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.not_passed() == {"isolation": "not_isolated"}
    assert said in outcome.stdout
