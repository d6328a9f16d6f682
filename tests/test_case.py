"""A case as a file, as a script, as a report, and what a replay of it says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import BatchInvarianceError, CaseError, Interrupted
from batch_invariance.formats.case_report import case_report
from batch_invariance.formats.case_script import case_script, request_files
from batch_invariance.invariance_diff.attempts import Rate
from batch_invariance.invariance_diff.case import (
    Case,
    CaseShape,
    DivergenceKind,
    Redaction,
    Reference,
    parse_case,
)
from batch_invariance.invariance_diff.case_judge import (
    Measured,
    ReplayOutcome,
    judge_replay,
    on_other_subject,
    wanted_of,
)
from batch_invariance.invariance_diff.case_launch import portable_words, with_slots
from batch_invariance.invariance_diff.case_origin import ItemStarts, Start, choose, find_starts
from batch_invariance.invariance_diff.case_removal import removed
from batch_invariance.invariance_diff.model import Arm, FailureKind, Message, Trial
from batch_invariance.invariance_diff.packed import pack_floats
from batch_invariance.invariance_diff.schedule import DispatchKind
from batch_invariance.live_invariance import case_folder
from batch_invariance.live_invariance.store import write_new
from case_fixtures import OTHER, SECRET, a_case, answer
from core_fixtures import Ideal, a_completion, a_trial, lost, with_result

LOST = lost(FailureKind.TIMEOUT)(answer())


def test_a_case_is_read_as_it_was_written() -> None:
    case = a_case()
    assert parse_case(case.to_bytes(), "case.json") == case
    assert case.to_bytes().endswith(b"}\n")


def edit(*path: str | int, to: object) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit("schema", to="case/2"), "its schema is 'case/2', this reads case/1"),
        (edit("extra", to=1), "unknown field 'extra'"),
        (edit("shape", "target", to=2), "shape.target names no request"),
        (edit("shape", "target", to=-1), "shape.target names no request"),
        (edit("shape", "target", to="1"), "case.shape.target"),
        (edit("shape", "lanes", to=1), "a wave of 2 does not fit 1 lanes"),
        (edit("shape", "requests", 0, "lane", to=1), "a lane is pinned twice in one wave"),
        (edit("shape", "requests", 0, "lane", to=None), "shape.requests[0].lane does not fit"),
        (edit("shape", "requests", 0, "wave", to=2), "shape.requests[0].wave is not one of"),
        (edit("shape", "requests", 1, "item", "messages", to=[]), "requests[1] has no message"),
        (edit("shape", "requests", 1, "item", "max_tokens", to=0), "[1] asks for no token"),
        (edit("rate", "shown", to=11), "rate counts what cannot be"),
        (edit("search", "start", "lost", to=-1), "search.start counts what cannot be"),
        (edit("logit_drift", to="much"), "logit_drift is neither bits nor an epsilon"),
        (edit("sampling", "top_logprobs", to=0), "sampling is not that of a server of our own"),
    ],
)
def test_what_no_search_can_have_written_is_no_case(
    change: Callable[[Any], None], said: str
) -> None:
    document = json.loads(a_case().to_bytes())
    change(document)
    with pytest.raises(CaseError) as refusal:
        parse_case(json.dumps(document).encode(), "case.json")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"schema": "case/1", "schema": "case/1"}', b"\xff", b"[" * 9000]
)
def test_what_is_no_json_object_is_no_case(data: bytes) -> None:
    with pytest.raises(CaseError, match=r"case case\.json"):
        parse_case(data, "case.json")


# What a replay says.


def measured(*attempts: Trial, alone: Trial | None = None) -> Measured:
    one = answer() if alone is None else alone
    return Measured((one, one), (one, one, one), attempts)


def test_the_recorded_divergence_in_one_attempt_is_enough() -> None:
    said = judge_replay(a_case(), measured(answer(), answer(*OTHER), answer()))
    assert (said.outcome, said.rate, said.n_other) == (
        ReplayOutcome.REPRODUCED,
        Rate(3, 1),
        0,
    )


def test_no_difference_is_not_reproduced_and_says_how_odd_that_is() -> None:
    said = judge_replay(a_case(), measured(*[answer()] * 5))
    assert (said.outcome, said.rate) == (ReplayOutcome.NOT_REPRODUCED, Rate(5, 0))
    assert "at the recorded rate of 9 of 10 that happens with probability" in said.reasons[-1]


@pytest.mark.parametrize("ids", [(5, 8, 7), (4, 6, 7), (5, 6)])
def test_a_parting_elsewhere_is_another_divergence(ids: tuple[int, ...]) -> None:
    said = judge_replay(a_case(), measured(answer(), answer(*ids)))
    assert (said.outcome, said.n_other) == (ReplayOutcome.OTHER_DIVERGENCE, 1)


def test_another_answer_alone_is_never_reproduced() -> None:
    said = judge_replay(a_case(), measured(answer(3, 9, 7), alone=answer(3, 6, 7)))
    assert said.outcome is ReplayOutcome.OTHER_DIVERGENCE
    assert "the target's answer alone is not the recorded one" in said.reasons


def test_too_little_is_unproved() -> None:
    unstable = Measured((answer(), answer()), (answer(), answer(1, 2), answer()), (answer(*OTHER),))
    for seen in (unstable, measured(LOST, LOST), measured(answer(*OTHER), alone=LOST)):
        assert judge_replay(a_case(), seen).outcome is ReplayOutcome.UNPROVED


def test_lost_attempts_prove_nothing_and_are_told() -> None:
    said = judge_replay(a_case(), measured(LOST, answer()))
    assert said.outcome is ReplayOutcome.NOT_REPRODUCED
    assert "1 of 2 attempts were lost" in said.reasons
    assert said.reasons[-1].startswith("0 of 1 attempts")


def test_another_subject_is_its_own_answer_whatever_was_seen() -> None:
    seen = judge_replay(a_case(), measured(answer(*OTHER)))
    said = on_other_subject(["the build is b2, was b1"], seen)
    assert said.outcome is ReplayOutcome.OTHER_SUBJECT
    assert said.measured is ReplayOutcome.REPRODUCED
    assert said.reasons[0] == "the build is b2, was b1"
    assert on_other_subject(["x"], None).measured is None


def test_the_reference_of_slots_is_the_answer_of_one_slot() -> None:
    case = a_case(reference=Reference.ONE_SLOT)
    slots = Measured((answer(), answer()), (answer(*OTHER),) * 3, (answer(*OTHER),))
    assert judge_replay(case, slots).outcome is ReplayOutcome.REPRODUCED
    assert judge_replay(a_case(), slots).outcome is not ReplayOutcome.REPRODUCED


def test_logprobs_count_only_beyond_their_epsilon() -> None:
    alone = answer()
    near = a_trial(a_completion((5, 6, 7), logprobs=pack_floats([-0.4, -0.5, -0.6])))
    assert wanted_of(DivergenceKind.LOGPROB, "bits").seen(alone, near) is not None
    assert wanted_of(DivergenceKind.LOGPROB, "9.5").seen(alone, near) is None
    assert wanted_of(DivergenceKind.TOKEN, None).seen(alone, near) is None


# What others get.


def test_private_text_is_gone_from_every_file_of_a_case_without_it() -> None:
    case = removed(a_case())
    assert case.redaction is Redaction.REMOVED
    shown = case.to_bytes().decode() + case_report(case)
    assert SECRET not in shown
    assert "one two three" not in shown
    assert "cannot be sent again" in case_report(case)
    assert parse_case(case.to_bytes(), "case.json") == case


def test_the_report_says_what_to_do_and_what_ran() -> None:
    report = case_report(a_case())
    for words in (
        "# llama-server answers a request differently beside 1 request",
        "in **9 of 10** attempts on a freshly launched server",
        "sh case.sh",
        "llama-server --model mock-model.gguf -c 1024 --parallel 2",
        f"What about {SECRET}?",
        "parts at token 1: id 6 alone",
        "| model sha256 | " + "b" * 64,
        "| executable sha256 | " + "d" * 64,
        "| environment | GGML\\_X=a b",
    ):
        assert words in report, words


def test_no_prompt_can_leave_its_block() -> None:
    shape = a_case().shape
    text = "```\n# a heading\n````sh\nrm -rf /\n\x1b[2J"
    item = replace(shape.subject.item, messages=(Message("user", text),))
    report = case_report(a_case(shape=shape.with_item(1, item)))
    assert f"`````text\n{text[:-4]}\\u001b[2J\n`````" in report


def test_no_models_name_can_leave_its_block() -> None:
    case = a_case()
    name = "m\n```\n# a heading.gguf"
    subject = replace(case.subject, model=replace(case.subject.model, file=name))
    report = case_report(replace(case, subject=subject))
    assert f"````sh\nllama-server --model '{name}' -c 1024" in report


@pytest.mark.parametrize("fault", [OSError(28, "No space left"), Interrupted(15)])
def test_a_case_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def failing(path: Path, data: bytes) -> None:
        if path.parent.name == "requests":
            raise fault
        write_new(path, data)

    monkeypatch.setattr(case_folder, "write_new", failing)
    wanted = BatchInvarianceError if isinstance(fault, OSError) else Interrupted
    with pytest.raises(wanted):
        case_folder.write_case(tmp_path / "case", a_case())
    assert list(tmp_path.iterdir()) == []


def shapes() -> list[CaseShape]:
    waves = a_case().shape
    delayed = replace(waves.requests[0], delay_ms=30)
    serial = tuple(replace(r, wave=i) for i, r in enumerate(waves.requests))
    free = tuple(replace(r, lane=None) for r in waves.requests)
    return [
        waves,
        replace(waves, requests=(delayed, waves.requests[1])),
        replace(waves, requests=serial, kind=DispatchKind.SERIAL),
        replace(waves, requests=free, kind=DispatchKind.SATURATE),
    ]


@pytest.mark.parametrize("shape", shapes())
@pytest.mark.parametrize("kind", list(DivergenceKind))
def test_the_script_is_one_for_any_posix_shell(shape: CaseShape, kind: DivergenceKind) -> None:
    case: Case = a_case(shape=shape)
    script = case_script(replace(case, expected=replace(case.expected, kind=kind)))
    checked = subprocess.run(
        ["sh", "-n"], input=script.encode(), capture_output=True, check=False, timeout=60
    )
    assert (checked.returncode, checked.stderr) == (0, b"")
    assert "@" not in script.replace('"$@"', "").replace('"@$1"', "").replace("@requests/", "")
    assert "export 'GGML_X=a b'" in script
    assert SECRET not in script


def test_what_is_sent_is_the_body_to_the_byte() -> None:
    files = request_files(a_case())
    assert sorted(files) == ["requests/companion-1.json", "requests/target.json"]
    body = json.loads(files["requests/target.json"])
    assert (body["id_slot"], body["max_tokens"], body["cache_prompt"]) == (1, 8, False)
    assert SECRET in body["messages"][0]["content"]


def test_a_flag_of_the_users_is_quoted_in_the_script() -> None:
    odd = "x'; rm -rf / #@SLOTS@"
    case = a_case()
    script = case_script(replace(case, ran=replace(case.ran, words=(*case.ran.words, "-x", odd))))
    checked = subprocess.run(["sh", "-n"], input=script.encode(), check=False, timeout=60)
    assert checked.returncode == 0
    assert "'x'\"'\"'; rm -rf / #@SLOTS@'" in script


def test_a_start_is_held_against_the_answer_of_a_pass_that_ran_again() -> None:
    header, *rest = Ideal([24] * 8).records()
    first = next(r for r in rest if isinstance(r, Trial) and r.key.arm is Arm.A)
    cut_off = with_result(text="cut off", token_ids=None)(first)
    assert find_starts([header, cut_off, *rest]) == []


def test_a_variables_name_is_no_command_in_the_script(tmp_path: Path) -> None:
    case = a_case()
    name = f"X=1; touch {tmp_path / 'done'}; Y"
    odd = replace(case, cell=replace(case.cell, environment={name: "1"}))
    line = next(one for one in case_script(odd).splitlines() if "touch" in one)
    subprocess.run(["sh", "-c", line], capture_output=True, check=False, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_launch_is_told_without_this_machine() -> None:
    argv = ["/opt/llama-server", "--model", "/m/x.gguf", "-c", "2048", "--parallel", "4"]
    argv += ["--host", "127.0.0.1", "--port", "5", "--api-key-file", "/tmp/k", "--alias", "x"]
    argv += ["--metrics", "--slots", "--log-colors", "off", "-lv", "5", "-fa", "off"]
    words = portable_words(argv)
    assert words == ("-c", "2048", "--parallel", "4", "--slots", "-fa", "off")
    assert with_slots(words, 512, 2)[:4] == ("-c", "1024", "--parallel", "2")


def test_the_example_is_what_its_case_says() -> None:
    """The files beside `case.json` are made from it and from nothing else."""
    folder = Path(__file__).parent.parent / "examples" / "case"
    case = parse_case((folder / "case.json").read_bytes(), "case.json")
    assert len(case.shape.requests) <= 2
    assert case.rate.shown > 0
    assert (folder / "report.md").read_text("utf-8") == case_report(case)
    assert (folder / "case.sh").read_text("utf-8") == case_script(case)
    for name, data in request_files(case).items():
        assert (folder / name).read_bytes() == data


def test_what_diverges_in_a_wave_is_chosen_before_what_needs_a_saturated_pass() -> None:
    waves, *_, saturated = shapes()
    seen = a_case().expected.seen[0]

    def starts(name: str, shape: CaseShape, kind: DivergenceKind, n: int) -> ItemStarts:
        item = replace(shape.subject.item, id=name)
        return ItemStarts(item, kind, 4, n, (Start("somewhere", seen, shape),))

    often = starts("often", saturated, DivergenceKind.SCORE, 4)
    seldom = starts("seldom", waves, DivergenceKind.SCORE, 1)
    tokens = starts("tokens", waves, DivergenceKind.TOKEN, 4)
    assert choose([often, tokens, seldom], None) == seldom
    assert choose([often, tokens], None) == often
    assert choose([often, tokens, seldom], "tokens") == tokens
