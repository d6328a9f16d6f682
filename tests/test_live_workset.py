"""Counting, boundary prompts and near ties on a real llama-server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli.main import main
from batch_invariance.formats.toy_gguf import ToySpec, toy_model_bytes
from batch_invariance.invariance_diff.boundary_workset import ties_of
from batch_invariance.invariance_diff.model import Completion, Item, Message
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.response import parse_response
from batch_invariance.invariance_diff.workset import parse_workset
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.prepare import ServerChoice, know_server
from batch_invariance.live_invariance.token_counter import ask_each, serving, token_counter

pytestmark = pytest.mark.live

SAMPLING = Sampling(1, 1, 5)
ONE_THREAD = ("--threads", "1")
"""Threads that wait for each other are what makes a busy machine slow."""


def items_of(*chats: Sequence[Message]) -> list[Item]:
    return [Item(f"c{i}", tuple(chat)) for i, chat in enumerate(chats)]


CHATS = items_of(
    [Message("user", "Name three fruits.")],
    [Message("user", "")],
    [
        Message("system", "Be short."),
        Message("user", "<|im_start|> na\u00efve \u65e5\u672c"),
    ],
    [Message("user", "Say yes."), Message("assistant", "Well, I")],
    [Message("user", "word " * 100)],
)


def test_the_counter_agrees_with_what_the_server_measures(
    live_server: Path, live_model: Path
) -> None:
    choice = ServerChoice(
        live_server, live_model, 1024, UserFlags((*ONE_THREAD, "--flash-attn", "off"))
    )
    known = know_server(choice, 1)
    with token_counter(choice, known, 120.0) as count:
        counted = [count(item.messages) for item in CHATS]
    with serving(choice, known, 120.0) as server:
        exchanges = ask_each(server, CHATS, SAMPLING, 120.0)
    measured = []
    for exchange in exchanges:
        completion = parse_response(exchange.status, exchange.body, SAMPLING.max_tokens)
        assert isinstance(completion, Completion)
        measured.append(completion.prompt_tokens)
    assert counted == measured


def test_a_begun_answer_is_continued_at_the_same_place(live_server: Path, live_model: Path) -> None:
    choice = ServerChoice(live_server, live_model, 512, UserFlags(ONE_THREAD))
    (prompt,) = items_of([Message("user", "Name three fruits.")])
    with serving(choice, know_server(choice, 1), 120.0) as server:
        (whole,) = ask_each(server, [prompt], Sampling(1, 8, 5), 120.0)
        ties = [tie for tie in ties_of(0, whole.body) if tie.before]
        begun = items_of(*([*prompt.messages, Message("assistant", t.before)] for t in ties))
        again = ask_each(server, begun, Sampling(1, 1, 5), 120.0)
    assert len(ties) >= 5
    pairs = [ties_of(0, exchange.body)[0].pair for exchange in again]
    assert pairs == [tie.pair for tie in ties]


def boundary(capsys: pytest.CaptureFixture[str], output: Path, *words: object) -> dict[str, Any]:
    code = main(
        [
            str(w)
            for w in (
                "workset",
                "boundary",
                "-o",
                output,
                "--parallel",
                4,
                "--json",
                *words,
                "--",
                *ONE_THREAD,
            )
        ]
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    report: dict[str, Any] = json.loads(captured.out)
    return report


def test_boundary_prompts_have_exact_lengths_and_near_ties_are_near(
    live_server: Path, live_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "b.json"
    server = ("--server-bin", live_server, "--model", live_model, "--ctx", 256)
    report = boundary(capsys, output, *server, "--count", 6, "--max-tokens", 16, "--near-tie", 2)
    assert all(entry["wanted_tokens"] == entry["reached_tokens"] for entry in report["prompts"])
    assert len(report["near_ties"]) == 2
    margins = [tie["margin_nats"] for tie in report["near_ties"]]
    assert margins == sorted(margins)
    # Of some 90 greedy positions of this model the closest two lie below a tenth of a nat.
    assert margins[-1] < 0.1
    workset = parse_workset(output.read_bytes(), output.name)
    assert workset.sha256 == report["sha256"]
    ties = {item.id: item for item in workset.items if item.family == "near-tie"}
    assert set(ties) == {tie["id"] for tie in report["near_ties"]}
    assert all(item.max_tokens == 1 and item.messages[-1].role == "assistant"
               for item in ties.values())  # fmt: skip
    shown = main([str(w) for w in ("workset", "show", output, *server, "--json")])
    lengths = json.loads(capsys.readouterr().out)["lengths"]
    assert shown == 0
    assert {e["id"]: e["reached_tokens"] for e in report["prompts"]}.items() <= lengths.items()


def test_the_prompts_at_the_slots_end_are_answered_in_full(
    live_server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, output = tmp_path / "toy.gguf", tmp_path / "b.json"
    model.write_bytes(toy_model_bytes(ToySpec.parse("q8_0")))
    words = ("--server-bin", live_server, "--model", model, "--ctx", 256, "--max-tokens", 32)
    boundary(capsys, output, *words)
    ends = [i for i in parse_workset(output.read_bytes(), "b").items if i.family == "slot end"]
    assert ends
    choice = ServerChoice(live_server, model, 256, UserFlags(ONE_THREAD))
    with serving(choice, know_server(choice, 1), 120.0) as server:
        exchanges = ask_each(server, ends, Sampling(1, 64, 5), 120.0)
    for exchange in exchanges:
        completion = parse_response(exchange.status, exchange.body, 32)
        assert isinstance(completion, Completion)
        assert (completion.prompt_tokens or 0) + 32 in (255, 256)
        assert (completion.completion_tokens, completion.truncated) == (32, False)
