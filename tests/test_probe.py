"""The probe: what it counts, what it proves, what it refuses, and what it leaves behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.invariance_diff.codec import from_json, to_json
from batch_invariance.invariance_diff.decode_witness import DecodeTally
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    FailureKind,
    Scored,
    Trial,
    TrialKey,
)
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids
from batch_invariance.invariance_diff.probe import (
    LoadLog,
    ProbeOutcome,
    ProbeResult,
    ProbeRun,
    WaveCount,
    judge_probe,
    read_load_log,
)
from batch_invariance.invariance_diff.records import Counters, SlotSamples
from batch_invariance.invariance_diff.tracker import NO_COUNTERS
from batch_invariance.invariance_diff.ubatch import Layout
from reports_fixtures import Cell, Outcome, cli, make_cell

# The pure result.


def answer(ids: Sequence[int] = (1, 2, 3), text: str = "a b c", **more: Any) -> Completion:
    """Tokens at logprob -0.1, each with an alternative at -2.1."""
    tops = [t for token in ids for t in (token, token + 100)]
    given = Completion(
        text=text,
        finish_reason="length",
        token_ids=pack_ids(ids),
        logprobs=pack_floats([-0.5 - i / 8 for i in range(len(ids))]),
        top_ids=pack_ids(tops),
        top_logprobs=pack_floats([lp for i in range(len(ids)) for lp in (-0.5 - i / 8, -2.5)]),
        prompt_tokens=9,
        completion_tokens=len(ids),
        cache_n=0,
        truncated=False,
    )
    return replace(given, **more)


ALONE = answer()


def trial(place: int, result: Completion | Failure, lanes: int, arm: Arm = Arm.C) -> Trial:
    scored = None if isinstance(result, Failure) else Scored(None, None, "not_scored", None, None)
    wave = place // lanes
    return Trial(
        TrialKey(arm, 0, 0, place), "prompt", place % lanes, None, "0" * 64, wave, wave + 0.9,
        result, scored,
    )  # fmt: skip


def counters(decodes: int | None) -> Counters:
    return Counters(decodes, None, None)


def probe_run(
    concurrent: Sequence[Completion | Failure],
    serial: Sequence[Completion | Failure] = (ALONE, ALONE),
    **more: Any,
) -> ProbeRun:
    """A run on two slots in which every wave shared all of its passes."""
    tokens = sum(r.completion_tokens or 0 for r in concurrent if isinstance(r, Completion))
    given = ProbeRun(
        parallel=2,
        n_serial=len(serial),
        n_concurrent=len(concurrent),
        serial=tuple(trial(i, r, 1, Arm.B) for i, r in enumerate(serial)),
        concurrent=tuple(trial(i, r, 2) for i, r in enumerate(concurrent)),
        warmup=WaveCount(counters(0), counters(24), 48),
        load=WaveCount(counters(100), counters(100 + tokens // 2), tokens),
        slots=SlotSamples(5, 2),
    )
    return replace(given, **more)


def test_equal_answers_with_proved_overlap_are_the_same() -> None:
    result = judge_probe(probe_run([ALONE] * 4))
    assert result.outcome is ProbeOutcome.SAME
    assert result.reasons == ()
    assert (result.overlap.tested_n, result.overlap.client_depth) == (2, 2)
    (variant,) = result.concurrent.variants
    assert (variant.count, variant.lanes, variant.differs_in) == (4, (0, 1), ())
    assert (result.serial.n_distinct_tokens, result.concurrent.n_distinct_texts) == (1, 1)


def test_a_difference_is_counted_and_placed_with_the_serial_margin() -> None:
    other = answer((1, 7, 3), "a x c")
    third = answer((1, 2, 3, 4), "a b c d")
    result = judge_probe(probe_run([ALONE, other, ALONE, other, third, other]))
    assert result.outcome is ProbeOutcome.DIFFERENT
    assert result.reasons == ("4 of 6 answers at once are not the serial one",)
    common, alone, longer = result.concurrent.variants
    assert (common.count, common.first_request, common.lanes) == (3, 1, (1,))
    assert common.first is not None
    assert (common.first.token_index, common.first.token_x, common.first.token_y) == (1, 2, 7)
    assert common.first.margin_x == pytest.approx(-0.625 + 2.5)
    assert (alone.count, alone.differs_in, alone.first) == (2, (), None)
    assert longer.first is not None
    assert (longer.first.token_index, longer.first.token_x, longer.first.token_y) == (3, None, 4)
    assert "completion_tokens" in longer.differs_in
    assert (result.concurrent.n_distinct_tokens, result.concurrent.n_distinct_texts) == (3, 3)


@pytest.mark.parametrize(
    ("change", "distinct"),
    [
        ({"finish_reason": "stop"}, (1, 1)),
        ({"reasoning": "hm"}, (1, 1)),
        ({"tool_calls": "[]"}, (1, 1)),
        ({"token_ids": pack_ids([1, 9, 3])}, (2, 1)),
        ({"text": "a b C"}, (1, 2)),
    ],
)
def test_everything_generated_counts(change: dict[str, Any], distinct: tuple[int, int]) -> None:
    result = judge_probe(probe_run([ALONE, ALONE, replace(ALONE, **change), ALONE]))
    assert result.outcome is ProbeOutcome.DIFFERENT
    assert [v.count for v in result.concurrent.variants] == [3, 1]
    series = result.concurrent
    assert (series.n_distinct_tokens, series.n_distinct_texts) == distinct


def test_the_reference_is_the_most_common_serial_answer() -> None:
    odd = answer((5, 2, 3), "o b c")
    result = judge_probe(probe_run([ALONE] * 2, [odd, ALONE, ALONE]))
    assert result.outcome is ProbeOutcome.UNSTABLE
    assert result.reasons == ("the serial answers differ too: 2 distinct",)
    assert [v.differs_in == () for v in result.serial.variants] == [True, False]
    assert result.concurrent.variants[0].differs_in == ()
    tie = judge_probe(probe_run([ALONE] * 2, [odd, ALONE]))
    assert tie.serial.variants[0].text == odd.text
    assert tie.outcome is ProbeOutcome.UNSTABLE


def test_moved_logprobs_are_told_and_cost_nothing() -> None:
    moved = replace(ALONE, logprobs=pack_floats([-0.5, -0.625, -0.875]))
    result = judge_probe(probe_run([ALONE, moved, moved, ALONE]))
    assert result.outcome is ProbeOutcome.SAME
    assert (result.concurrent.n_drifted, result.concurrent.max_drift) == (2, 0.125)


LOST = Failure(FailureKind.TIMEOUT, "too slow")


def test_lost_requests_are_data_and_cost_the_same() -> None:
    server = Failure(FailureKind.HTTP_ERROR, "first", 500)
    again = Failure(FailureKind.HTTP_ERROR, "second", 500)
    run = probe_run([ALONE] * 8 + [server, LOST, again], n_concurrent=12)
    result = judge_probe(run)
    assert result.outcome is ProbeOutcome.UNPROVED
    assert result.reasons == ("4 concurrent requests lost: 2 http_error, 1 timeout, 1 not sent",)
    assert [(loss.kind, loss.count, loss.detail) for loss in result.concurrent.losses] == [
        (FailureKind.HTTP_ERROR, 2, "first"),
        (FailureKind.TIMEOUT, 1, "too slow"),
    ]


def test_without_a_serial_answer_there_is_nothing_to_compare_with() -> None:
    result = judge_probe(probe_run([ALONE, answer((4, 5, 6))], [LOST, LOST]))
    assert result.outcome is ProbeOutcome.UNPROVED
    assert "2 serial requests lost: 2 timeout" in result.reasons
    assert all(variant.first is None for variant in result.concurrent.variants)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"load": WaveCount(counters(0), counters(12), 12)}, "a batch of 1 proved, 2 needed"),
        ({"load": WaveCount(NO_COUNTERS, NO_COUNTERS, 12)}, "a batch of 0 proved"),
        ({"load": WaveCount(counters(9), counters(3), 12)}, "a batch of 0 proved"),
        ({"load": WaveCount(counters(9), counters(9), 12)}, "a batch of 0 proved"),
        ({"ended": "the server died in the load (exit code 9)"}, "the server died in the load"),
    ],
)
def test_what_is_not_proved_is_named(change: dict[str, Any], said: str) -> None:
    result = judge_probe(probe_run([ALONE] * 4, **change))
    assert result.outcome is ProbeOutcome.UNPROVED
    assert any(said in reason for reason in result.reasons)


def test_requests_that_never_met_prove_nothing() -> None:
    run = probe_run([ALONE] * 4)
    apart = tuple(replace(t, dispatch_ts=10.0 * i, complete_ts=10.0 * i + 1)
                  for i, t in enumerate(run.concurrent))  # fmt: skip
    result = judge_probe(replace(run, concurrent=apart))
    assert result.outcome is ProbeOutcome.UNPROVED
    assert result.overlap.client_depth == 1


def test_a_blunt_count_is_made_good_by_the_warm_up_and_busy_slots() -> None:
    tokens = 12
    blunt = WaveCount(counters(0), counters(9), tokens)
    four: dict[str, Any] = {
        "parallel": 4,
        "load": blunt,
        "warmup": WaveCount(counters(0), counters(24), 96),
    }
    proved = judge_probe(probe_run([ALONE] * 4, slots=SlotSamples(3, 4), **four))
    assert (proved.overlap.tested_n, proved.outcome) == (4, ProbeOutcome.SAME)
    for slots in (SlotSamples(3, 3), SlotSamples(0, 4), None):
        result = judge_probe(probe_run([ALONE] * 4, slots=slots, **four))
        assert result.outcome is ProbeOutcome.UNPROVED
        assert result.overlap.tested_n < 4
    # Slots seen busy prove nothing of a server whose passes were never shared.
    queue = WaveCount(counters(0), counters(tokens), tokens)
    four["load"] = queue
    result = judge_probe(probe_run([ALONE] * 4, slots=SlotSamples(3, 4), **four))
    assert result.overlap.tested_n == 1


def test_the_log_of_forward_passes_proves_what_a_count_is_too_blunt_for() -> None:
    blunt = WaveCount(counters(0), counters(9), 12)
    four: dict[str, Any] = {"parallel": 4, "load": blunt, "warmup": blunt, "slots": None}
    tally = DecodeTally(Layout(True, 512))
    prompts = tuple(n for lane in range(4) for n in (lane, 10 + lane, 9))
    alone = [(1, 3, 13, 0)] * 6
    tally.add([(1, *prompts), (2, *(n for lane in range(4) for n in (lane, 10 + lane, 0)))])
    run = probe_run([ALONE] * 4, **four)
    run = replace(run, concurrent=tuple(trial(i, ALONE, 4) for i in range(4)))
    disagrees = read_load_log(tally, run.concurrent, blunt)
    assert disagrees == LoadLog(None, "the log shows 3 forward passes, the counter 9")
    result = judge_probe(replace(run, log=disagrees))
    assert (result.outcome, result.overlap.tested_n) == (ProbeOutcome.UNPROVED, 2)
    three = WaveCount(counters(0), counters(3), 12)
    proved = read_load_log(tally, run.concurrent, three)
    assert proved == LoadLog(4, None)
    result = judge_probe(replace(run, log=proved))
    assert (result.outcome, result.overlap.tested_n) == (ProbeOutcome.SAME, 4)
    tally.add(alone)
    fault = read_load_log(tally, run.concurrent, blunt).fault
    assert fault == "slot 3, task 13: 9 passes, 1 of them with its prompt, for 3 tokens"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cache_n": 3}, "took part of a prompt from its cache"),
        ({"cache_n": None}, "does not say whether it used its prompt cache"),
        ({"draft_n": 2}, "the server speculates"),
        ({"completion_tokens": None}, "does not say how many"),
        ({"token_ids": None}, "lacks token ids"),
    ],
)
def test_what_an_answer_does_not_say_counts_against_it(change: dict[str, Any], said: str) -> None:
    odd = replace(ALONE, **change)
    result = judge_probe(probe_run([odd] * 4, [odd] * 2))
    assert result.outcome is ProbeOutcome.UNPROVED
    assert any(said in reason for reason in result.reasons)


def test_an_empty_answer_proves_nothing() -> None:
    empty = answer((), "")
    load = WaveCount(counters(0), counters(2), 4)
    result = judge_probe(probe_run([empty] * 4, [empty] * 2, load=load))
    assert result.outcome is ProbeOutcome.UNPROVED
    assert any("has no token" in reason for reason in result.reasons)


def test_the_result_travels_as_json() -> None:
    result = judge_probe(probe_run([ALONE, answer((1, 7, 3), "a x c"), LOST, ALONE]))
    assert from_json(ProbeResult, json.loads(json.dumps(to_json(result))), "probe") == result


# The verb, against a fake server.

COUNT = 12


def words(cell: Cell, *more: object) -> list[object]:
    given = ["probe", "--server-bin", cell.server, "--model", cell.model, "--ctx", 512]
    given += ["--parallel", 4, "--count", COUNT, "--max-tokens", 16, "--prompt", "Name a river."]
    return [*given, *more]


def probed(cell: Cell, *more: object) -> tuple[Outcome, dict[str, Any]]:
    outcome = cli(*words(cell, "--json", *more))
    return outcome, json.loads(outcome.stdout)


def test_a_sound_server_gives_one_answer_and_leaves_nothing(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    outcome = cli(*words(cell))
    assert outcome.code == 0
    lines = outcome.stdout.splitlines()
    assert lines[0] == (
        "SAME  toy, ctx 512, 4 slots: every answer at once is the serial answer, token by token"
    )
    assert "12 answers at once on 4 slots: 1 distinct (12)" in lines
    assert "8 answers one at a time over 4 slots: 1 distinct (8)" in lines
    assert any(line.startswith("overlap: 4 in flight at once") for line in lines)
    assert any(line.endswith("a batch of 4 is proved") for line in lines)
    assert "writes no certificate" in lines[-1]
    assert "[8/20] 12 requests at once on 4 slots, about" in outcome.stderr
    after = sorted(path.name for path in tmp_path.iterdir())
    assert after == sorted([*before, "journal"])


def test_every_request_is_the_same_but_for_its_slot(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    assert probed(cell, "--seed", 7, "--serial-count", 5)[0].code == 0
    bodies = [json.loads(body) for body in cell.bodies()]
    warm, rest = bodies[:4], bodies[4:]
    assert [body["ignore_eos"] for body in warm] == [True] * 4
    assert len(rest) == 5 + COUNT
    assert [body.pop("id_slot") for body in rest[:5]] == [0, 1, 2, 3, 0]
    assert {body.pop("id_slot") for body in rest[5:]} == {0, 1, 2, 3}
    assert all(body == rest[0] for body in rest)
    assert (rest[0]["temperature"], rest[0]["seed"], rest[0]["cache_prompt"]) == (0.0, 7, False)
    assert rest[0]["messages"] == [{"role": "user", "content": "Name a river."}]


def test_answers_that_change_under_load_are_placed(tmp_path: Path) -> None:
    behaviour = {"gather_s": 0.02, "batch_divergence": "score"}
    cell = make_cell(tmp_path, behaviour=behaviour)
    outcome = cli(*words(cell))
    assert outcome.code == 3
    assert outcome.stdout.startswith("DIFFERENT  toy, ctx 512, 4 slots: ")
    assert "parts from the serial answer at token " in outcome.stdout
    assert "\n    alone: " in outcome.stdout
    _, report = probed(cell)
    assert (report["outcome"], report["exit_code"]) == ("different", 3)
    assert report["serial"]["n_distinct_tokens"] == 1
    variant = report["concurrent"]["variants"][0]
    assert variant["first"]["token_index"] > 0
    assert variant["first"]["margin_x"] > 0


def test_tokens_that_differ_in_equal_text_are_told_apart(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, behaviour={"gather_s": 0.02, "batch_divergence": "token"})
    outcome, report = probed(cell)
    assert (outcome.code, report["outcome"]) == (3, "different")
    assert report["concurrent"]["n_distinct_texts"] == 1
    assert any(variant["first"] for variant in report["concurrent"]["variants"])


def test_an_equal_text_that_ends_otherwise_is_another_answer(tmp_path: Path) -> None:
    outcome = cli(*words(make_cell(tmp_path, under_load="finish_reason")))
    assert outcome.code == 3
    assert "another finish_reason than alone" in outcome.stdout


@pytest.mark.parametrize(
    "faults",
    [{"one_executor": True}, {"max_batch": 2}, {"no_metrics": True}],
    ids=["queue", "half", "no metrics"],
)
def test_a_server_whose_overlap_is_not_proved_is_not_called_sound(
    tmp_path: Path, faults: dict[str, Any]
) -> None:
    outcome, report = probed(make_cell(tmp_path, **faults))
    assert (outcome.code, report["outcome"]) == (3, "unproved")
    assert any(reason.startswith("overlap not proved: ") for reason in report["reasons"])
    assert report["concurrent"]["n_distinct_tokens"] == 1


def test_noise_is_not_put_down_to_the_load(tmp_path: Path) -> None:
    outcome = cli(*words(make_cell(tmp_path, noise_serial=True)))
    assert outcome.code == 3
    assert outcome.stdout.startswith("UNSTABLE  toy")
    assert "  - the serial answers differ too: 8 distinct" in outcome.stdout


def test_an_odd_first_reply_is_taken_by_the_warm_up(tmp_path: Path) -> None:
    assert cli(*words(make_cell(tmp_path, first_reply_odd=True))).code == 0


def test_lost_requests_are_said_at_once_and_in_the_end(tmp_path: Path) -> None:
    # The first four concurrent requests are the warm-up's.
    faults = {"http_500": 6, "bad_json": 9}
    outcome = cli(*words(make_cell(tmp_path, fail_nth_concurrent=faults)))
    assert outcome.code == 3
    assert outcome.stdout.startswith("UNPROVED  toy")
    assert "  - 2 concurrent requests lost: 1 http_error, 1 bad_json\n" in outcome.stdout.replace(
        "1 bad_json, 1 http_error", "1 http_error, 1 bad_json"
    )
    assert "lost request: http_error: " in outcome.stderr
    assert "lost request: bad_json: " in outcome.stderr


def test_a_slot_that_never_lets_go_ends_the_probe(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, fail_nth_concurrent={"hang_busy": 6})
    outcome = cli(*words(cell, "--request-timeout", 1))
    assert outcome.code == 3
    assert outcome.stdout.startswith("UNPROVED  toy")
    assert "ended in the load: slot " in outcome.stdout
    assert "1 timeout" in outcome.stdout


def test_a_server_that_dies_under_the_load_is_data(tmp_path: Path) -> None:
    cell = make_cell(tmp_path, die_when_concurrent=-int(signal.SIGKILL), die_after=6)
    outcome = cli(*words(cell))
    assert outcome.code == 3
    assert "the server died in the load (killed by SIGKILL)" in outcome.stdout
    assert "  | " in outcome.stdout
    assert "server_died" in outcome.stdout


@pytest.mark.parametrize(("completion", "part"), [(2, "warm-up"), (7, "serial control")])
def test_a_server_that_dies_before_the_load_ends_with_one(
    tmp_path: Path, completion: int, part: str
) -> None:
    outcome = cli(*words(make_cell(tmp_path, die_at_completion=completion)))
    assert outcome.code == 1
    assert f"the server died in the {part} (exit code 9): no result" in outcome.stderr
    assert outcome.stdout == ""


def test_a_server_that_is_not_what_was_asked_ends_with_one(tmp_path: Path) -> None:
    outcome = cli(*words(make_cell(tmp_path / "slots", slots_override=2)))
    assert outcome.code == 1
    assert "the server has 2 slots, --parallel 4 was asked" in outcome.stderr
    outcome = cli(*words(make_cell(tmp_path / "start", die_at_start=7)))
    assert outcome.code == 1
    assert "the server died at start: exit code 7" in outcome.stderr


def test_a_prompt_that_does_not_fit_is_refused_before_any_request(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    outcome = cli(*words(cell, "--prompt", "word " * 600))
    assert outcome.code == 1
    assert "item 'prompt' has " in outcome.stderr
    assert cell.bodies() == []


def test_what_a_cache_or_a_draft_did_is_said(tmp_path: Path) -> None:
    outcome = cli(*words(make_cell(tmp_path / "cache", cached_tokens_report=3)))
    assert (outcome.code, "from its cache" in outcome.stdout) == (3, True)
    outcome = cli(*words(make_cell(tmp_path / "draft", draft_n_report=2)))
    assert (outcome.code, "speculates" in outcome.stdout) == (3, True)


def test_a_prompt_may_come_from_a_file_to_the_byte(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    (tmp_path / "p.txt").write_bytes("Nenne einen Fluß.\r\n".encode())
    given = words(cell, "--prompt-file", tmp_path / "p.txt", "--quiet")
    at = given.index("--prompt")
    outcome = cli(*given[:at], *given[at + 2 :])
    assert outcome.code == 0
    assert outcome.stderr == ""
    messages = json.loads(cell.bodies()[-1])["messages"]
    assert messages == [{"role": "user", "content": "Nenne einen Fluß.\r\n"}]


def test_a_canary_brings_its_own_model_and_prompt(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    outcome = cli("probe", "--server-bin", cell.server, "--canary", "--parallel", 2, "--count", 4)
    assert outcome.code == 0
    assert outcome.stdout.startswith("SAME  canary-q8_0-seed0, ctx 2048, 2 slots: ")
    (start,) = cell.starts()
    assert start["argv"][-2:] == ["--flash-attn", "off"]
    model = start["argv"][start["argv"].index("--model") + 1]
    assert not Path(model).exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--parallel", 1), "--parallel 1: nothing runs at once; give 2 or more"),
        (("--parallel", 300), "--parallel 300: give 1 to 256"),
        (("--count", 3), "--count 3: give 4 (--parallel) to 100000"),
        (("--count", 100_001), "--count 100001: give 4"),
        (("--serial-count", 1), "--serial-count 1: give 2 to 100000"),
        (("--serial-count", 0), "--serial-count 0: give 2"),
        (("--max-tokens", 0), "--max-tokens 0: give 1 or more"),
        (("--seed", -1), "--seed -1: give 0 to"),
        (("--ctx", 700), "--ctx 700 is no positive multiple of 256"),
        (("--model", "/no/such.gguf"), "--model /no/such.gguf: No such file"),
        (("--server-bin", "/no/such"), "--server-bin /no/such: there is no such"),
        (("--prompt-file", "/no/such"), "--prompt and --prompt-file: give one of them"),
        (("--canary",), "--canary makes its own model"),
        (("--max-footprint-gb", "0.0001"), "footprint guard: weights and KV cache need about"),
        (("--request-timeout", 0), "'0' is not a number above 0"),
        (("--", "--parallel", "2"), "--parallel (the number of slots is given by --parallel)"),
        (("--", "-ub", "2"), "-ub 2: a batch of 4 requests cannot form"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(
    tmp_path: Path, more: tuple[object, ...], said: str
) -> None:
    cell = make_cell(tmp_path)
    outcome = cli(*words(cell, *more))
    assert outcome.code == 2
    assert said in outcome.stderr
    assert outcome.stdout == ""
    assert cell.starts() == []


def test_a_missing_model_and_prompt_are_named_together(tmp_path: Path) -> None:
    outcome = cli("probe", "--server-bin", make_cell(tmp_path).server)
    assert outcome.code == 2
    assert "--model, --prompt or --prompt-file: needed unless --canary" in outcome.stderr


@pytest.mark.parametrize(
    ("content", "said"), [(b"\xff", "not UTF-8 at byte 0"), (None, "No such file")]
)
def test_a_prompt_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    cell = make_cell(tmp_path)
    path = tmp_path / "p.txt"
    if content is not None:
        path.write_bytes(content)
    base = ("probe", "--server-bin", cell.server, "--model", cell.model)
    outcome = cli(*base, "--prompt-file", path)
    assert outcome.code == 2
    assert f"--prompt-file {path}: {said}" in outcome.stderr


def test_counters_that_may_leave_their_range_are_announced(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    more = ("--max-tokens", 60_000, "--max-footprint-gb", "0.0001")
    outcome = cli(*words(cell, *more))
    assert "counters are exact below 1000000" in outcome.stderr
