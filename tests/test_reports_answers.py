"""What people meet in the answers: odd replies, lost ones, noise, and too little of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batch_invariance.invariance_diff.model import Arm
from batch_invariance.live_invariance.http import MAX_BODY_BYTES
from fake_faulty_server import OVERSIZED_BYTES
from fault_runs import of_run
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


def test_d5_error_objects_with_status_200_are_never_scored() -> None:
    outcome = of_run("error_object")
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


def test_d15_an_id_that_fails_everywhere_is_untested_not_equal() -> None:
    outcome = of_run("one_id_fails")
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.cert["untested_ids"] == ["q3"]
    assert outcome.cert["divergence_report"]["AC"]["n_ids_compared"] == 7
    assert {(lost["id"], lost["kind"]) for lost in outcome.cert["lost_trials"]} == {
        ("q3", "http_error")
    }
    assert {lost["arm"] for lost in outcome.cert["lost_trials"]} >= {"A", "A2", "B", "C"}
    assert "lost trial: q3: http_error: planted failure for this prompt" in outcome.stderr


def lost_in_c(outcome: Outcome, **kinds: int) -> None:
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == set(kinds)
    assert {lost["arm"] for lost in outcome.cert["lost_trials"]} == {"C"}
    assert outcome.gate("F0_score")["outcome"] == "PASS"
    for kind, count in kinds.items():
        assert f"{count} {kind} in C" in outcome.gate("lost")["measured"]
        assert f": {kind}: " in outcome.stderr


def test_d16_failures_in_arm_c_are_told_by_their_kinds() -> None:
    """One each of everything that can happen to a request; slots that are idle are used again."""
    outcome = of_run("http_500")
    lost_in_c(
        outcome,
        http_error=1,
        timeout=2,
        connection=2,
        truncated_body=2,
        bad_json=3,
        oversized_body=1,
    )
    assert OVERSIZED_BYTES > MAX_BODY_BYTES
    assert outcome.footer().ended == "complete"


def test_d16_one_lost_trial_is_enough(tmp_path: Path) -> None:
    outcome = light_cell(tmp_path, fail_nth_concurrent={"http_500": 5}).run()
    lost_in_c(outcome, http_error=1)
    assert outcome.cert["untested_ids"] == []


def test_d16_an_idle_slot_of_an_older_build_is_used_again_after_a_hang(tmp_path: Path) -> None:
    # The slot keeps the id of its last task, which is no reason to wait for it (D11).
    cell = light_cell(tmp_path, fail_nth_concurrent={"hang": 5}, slots_shape="state")
    outcome = cell.run("--request-timeout", 1)
    lost_in_c(outcome, timeout=1)
    assert outcome.footer().ended == "complete"


def still_busy(outcome: Outcome) -> None:
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.lost_kinds() == {"timeout"}
    assert "still busy after its request timed out" in outcome.stderr
    assert outcome.not_passed()["completeness"] == "incomplete"


def test_d16_a_slot_that_stays_busy_ends_the_arm_as_lost() -> None:
    still_busy(of_run("hang_busy"))


def test_d16_a_slot_that_is_not_known_to_be_idle_ends_the_arm_as_lost(tmp_path: Path) -> None:
    cell = light_cell(tmp_path, fail_nth_concurrent={"hang": 5}, slots_shape="404")
    still_busy(cell.run("--request-timeout", "0.5"))


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


def test_d23_a_reply_that_splits_a_character_is_lost_not_read_around() -> None:
    outcome = of_run("split_character")
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


def test_a_positive_control_that_the_server_ignores_bars_the_green() -> None:
    outcome = of_run("ignored_ban")
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.not_passed() == {"positive_control": "control_not_seen"}


@pytest.mark.parametrize(
    ("name", "said"),
    [("prompt_cache", "reused a prompt cache"), ("speculation", "used speculation")],
)
def test_cached_or_speculated_answers_are_not_isolated(name: str, said: str) -> None:
    outcome = of_run(name)
    assert (outcome.code, outcome.verdict) == (3, "UNVERIFIED")
    assert outcome.not_passed() == {"isolation": "not_isolated"}
    assert said in outcome.stdout
