"""`workset boundary`: prompts of exact lengths about the engine's boundaries, and near ties."""

from __future__ import annotations

import json
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.boundary_workset import (
    NEAR_TIE,
    SLOT_END,
    BoundarySpec,
    Tie,
    boundary_targets,
    boundary_workset,
    near_tie_item,
    tie_again,
    ties_of,
)
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.workset import items_sha256, parse_workset
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.prepare import ServerChoice, know_server
from batch_invariance.live_invariance.token_counter import token_counter
from reports_fixtures import CTX, Cell, Outcome, cli, make_cell, start_cli
from waiting import runs, wait_until

SPEC = BoundarySpec(ctx=2048, max_tokens=64, n_ubatch=512, parallel=4, count=16, seed=1)
FRAME = 9
DIGEST_OF_SEED_1 = "a6dcae9fb4d33bc611082e53e2bddc261a1330153c8ac281a45e7a9ade5378a8"


def words_and_frame(messages: Sequence[Message]) -> int:
    """A tokenizer of one token a word, and a template that costs nine."""
    return FRAME + sum(len(message.content.split()) for message in messages)


def characters(messages: Sequence[Message]) -> int:
    return 20 + sum(len(message.content) for message in messages)


def pairs_of_words(messages: Sequence[Message]) -> int:
    """No text has an odd number of tokens."""
    return 2 * words_and_frame(messages)


def lengths(spec: BoundarySpec) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for target in boundary_targets(spec)[0]:
        found.setdefault(target.family, []).append(target.tokens)
    return {family: sorted(tokens) for family, tokens in found.items()}


# --- which lengths ---


def test_each_boundary_is_met_from_both_sides_and_the_slots_end_from_inside() -> None:
    assert lengths(SPEC) == {
        "around 64": [63, 64, 65],
        "around 128": [127, 128, 129],  # four of them fill a batch of 512
        "around 256": [255, 256, 257],
        "around 512": [511, 512, 513],
        SLOT_END: [1983, 1984],
    }
    assert boundary_targets(SPEC)[1] == ()


def test_the_physical_batch_is_a_boundary_of_its_own() -> None:
    found = lengths(replace(SPEC, n_ubatch=300, parallel=1))
    assert found["around 300"] == [299, 300, 301]
    assert "around 75" not in found


def test_what_does_not_fit_with_its_answer_is_left_out_and_said() -> None:
    targets, left_out = boundary_targets(replace(SPEC, ctx=512))
    assert max(target.tokens for target in targets) == 512 - 64
    assert left_out == ("around 512: with 64 tokens to generate it does not fit 512",)


def test_slots_without_an_end_of_their_own_have_none() -> None:
    targets, left_out = boundary_targets(replace(SPEC, slot_ends=False))
    assert SLOT_END not in {target.family for target in targets}
    assert left_out == ("slot end: slots that share one KV buffer do not end at 2048",)


# --- the prompts ---


@pytest.mark.parametrize("count", [words_and_frame, characters])
def test_every_length_is_reached_exactly(count: Any) -> None:
    found = boundary_workset(SPEC, count)
    assert len(found.placed) == 16
    for placed in found.placed:
        assert count(placed.item.messages) == placed.reached == placed.wanted
        assert placed.reached + 64 <= SPEC.ctx
        assert placed.item.max_tokens == 64
        assert placed.item.expected_answer is None
    assert {placed.wanted for placed in found.placed} >= {63, 64, 65, 511, 512, 513, 1984}
    assert len({placed.item.messages for placed in found.placed}) == 16
    assert len({placed.item.id for placed in found.placed}) == 16


def test_one_seed_gives_the_same_bytes_and_another_changes_every_prompt() -> None:
    def items(seed: int) -> list[Item]:
        found = boundary_workset(replace(SPEC, seed=seed), words_and_frame)
        return [placed.item for placed in found.placed]

    # The digest is written down: it must not depend on Python's version or the platform.
    assert items_sha256(items(1)) == items_sha256(items(1)) == DIGEST_OF_SEED_1
    both = zip(items(1), items(2), strict=True)
    assert all(one.id == two.id and one.messages != two.messages for one, two in both)


def test_long_and_short_prompts_take_turns() -> None:
    reached = [placed.reached for placed in boundary_workset(SPEC, words_and_frame).placed]
    middle = sorted(reached)[len(reached) // 2]
    assert all(reached[i] >= middle >= reached[i + 1] for i in range(0, 12, 2))


def test_a_length_that_no_words_reach_is_reported_with_the_nearest() -> None:
    found = boundary_workset(SPEC, pairs_of_words)
    odd = [placed for placed in found.placed if placed.wanted % 2]
    assert odd
    assert all(placed.reached == placed.wanted - 1 for placed in odd)


def test_lengths_within_the_chat_template_are_left_out_and_said() -> None:
    found = boundary_workset(SPEC, lambda messages: 55 + words_and_frame(messages))
    assert min(placed.reached for placed in found.placed) == 65
    assert "63, 64 tokens: the chat template alone takes 64" in found.left_out


def test_a_count_below_the_targets_says_what_is_missing_and_still_meets_every_boundary() -> None:
    found = boundary_workset(replace(SPEC, count=5), words_and_frame)
    assert {placed.wanted for placed in found.placed} == {64, 128, 256, 512, 1984}
    assert found.left_out[-1].endswith("tokens: more targets than --count 5")


# --- near ties ---


def row(text: bytes, *tops: tuple[int, float]) -> dict[str, object]:
    top_logprobs = [{"id": i, "token": "?", "logprob": p} for i, p in tops]
    return {"id": tops[0][0], "bytes": list(text), "top_logprobs": top_logprobs}


def answer(*rows: dict[str, object]) -> bytes:
    return json.dumps({"choices": [{"logprobs": {"content": list(rows)}}]}).encode()


def test_every_position_knows_its_margin_and_the_text_before_it() -> None:
    found = ties_of(3, answer(row(b"On", (7, -0.5), (9, -0.75)), row(b"e", (2, -3.0), (1, -3.5))))
    assert found == [Tie(3, 0, "", 0.25, (7, 9)), Tie(3, 1, "On", 0.5, (1, 2))]


def test_half_a_character_is_no_beginning_of_a_request() -> None:
    snow = "\u2603".encode()
    rows = [row(snow[:1], (1, -1.0), (2, -2.0)), row(snow[1:], (1, -1.0), (2, -2.0))]
    found = ties_of(0, answer(*rows, row(b"x", (1, -1.0), (2, -2.0))))
    assert [(tie.position, tie.before) for tie in found] == [(0, ""), (2, "\u2603")]


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"logprobs": null}]}',
        b'{"choices": [{"logprobs": {"content": 5}}]}',
        answer({"id": 1, "bytes": [65], "top_logprobs": []}),
        answer({"id": 1, "bytes": [65], "top_logprobs": [{"id": 1, "logprob": -1.0}]}),
        answer({"id": 1, "top_logprobs": "many"}),
    ],
)
def test_a_response_without_two_candidates_holds_no_ties(response: bytes) -> None:
    assert ties_of(0, response) == []


def test_bytes_that_are_none_end_the_reading() -> None:
    broken = {**row(b"", (1, -1.0), (2, -2.0)), "bytes": [300]}
    assert len(ties_of(0, answer(broken, row(b"a", (1, -1.0), (2, -2.0))))) == 1


def test_an_item_asks_for_the_one_token_at_the_tie() -> None:
    prompt = Item("len64", (Message("user", "Hi"),), None, "around 64", None, 64)
    item = near_tie_item(prompt, Tie(0, 3, "Well, I", 0.01, (4, 5)))
    assert item.id == "tie-len64-3"
    assert item.messages == (Message("user", "Hi"), Message("assistant", "Well, I"))
    assert (item.family, item.max_tokens, item.expected_answer) == (NEAR_TIE, 1, None)


def test_a_tie_counts_only_where_the_same_two_tokens_lead_again() -> None:
    tie = Tie(0, 3, "Well, I", 0.01, (4, 5))
    assert tie_again(tie, answer(row(b"a", (5, -0.5), (4, -0.625)))) == 0.125
    assert tie_again(tie, answer(row(b"a", (5, -0.5), (6, -0.625)))) is None
    assert tie_again(tie, b"{}") is None


# --- counting, against a fake server ---


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_cell(tmp_path)


def choice_of(cell: Cell, *flags: str) -> ServerChoice:
    return ServerChoice(cell.server, cell.model, 2048, UserFlags(flags))


def test_the_counter_starts_one_sparing_server_and_leaves_none(cell: Cell) -> None:
    choice = choice_of(cell, "-ctk", "f16")
    with token_counter(choice, know_server(choice, 1), 60.0) as count:
        short = count([Message("user", "Hello there")])
        assert count([Message("user", "Hello there"), Message("user", "again")]) > short
        assert count.facts.parallel == 1
    (start,) = cell.starts()
    argv = start["argv"]
    assert argv[argv.index("-c") + 1] == "256"
    # --no-repack is unknown to this build.
    assert argv[-5:] == ["-ctk", "f16", "--no-warmup", "-ngl", "0"]
    wait_until(lambda: not runs(start["pid"]))


def test_what_the_user_decides_is_left_to_the_user(cell: Cell) -> None:
    choice = choice_of(cell, "--n_gpu_layers=99", "--warmup")
    with token_counter(choice, know_server(choice, 1), 60.0):
        pass
    assert cell.starts()[0]["argv"][-2:] == ["--n_gpu_layers=99", "--warmup"]


BARE_SERVER = """#!/bin/sh
exec {python} - "$@" <<'EOF'
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({statuses}.get(self.path, 404))
    def answer(self, status):
        body = b'{{"error": {{"message": "no such thing"}}}}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

words = sys.argv[1:]
if "--port" in words:
    port = int(words[words.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
EOF
"""


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ({}, "/apply-template answered HTTP 404"),
        ({"/apply-template": 500}, '/apply-template answered HTTP 500 {"error"'),
        ({"/apply-template": 200}, "/apply-template answered HTTP 200"),
    ],
)
def test_a_server_that_cannot_count_is_an_error_that_says_so(
    cell: Cell, statuses: dict[str, int], said: str
) -> None:
    cell.server.write_text(BARE_SERVER.format(python=sys.executable, statuses=statuses))
    cell.server.chmod(cell.server.stat().st_mode | stat.S_IXUSR)
    choice = choice_of(cell)
    known = know_server(choice, 1)
    with token_counter(choice, known, 60.0) as count, pytest.raises(ServerError) as caught:
        count([Message("user", "Hi")])
    assert "the server cannot count prompts" in str(caught.value)
    assert said in str(caught.value)
    assert "use a build with /tokenize and /apply-template" in str(caught.value)


# --- the command line, against a fake server ---


def run(cell: Cell, *words: object) -> Outcome:
    output = cell.folder / "boundary.json"
    return cli(
        *("workset", "boundary", "--server-bin", cell.server, "--model", cell.model),
        *("--ctx", CTX, "--parallel", 2, "--max-tokens", 16, "-o", output, *words),
    )


def test_a_set_is_written_and_its_lengths_reported(cell: Cell) -> None:
    outcome = run(cell, "--json")
    assert outcome.code == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    workset = parse_workset((cell.folder / "boundary.json").read_bytes(), "boundary.json")
    assert report["sha256"] == workset.sha256
    assert report["n_items"] == len(workset.items) == 16
    assert [entry["id"] for entry in report["prompts"]] == [item.id for item in workset.items]
    assert all(entry["wanted_tokens"] == entry["reached_tokens"] for entry in report["prompts"])
    assert report["left_out"] == ["around 512: with 16 tokens to generate it does not fit 512"]
    assert report["near_ties"] == []


def test_a_person_sees_the_lengths_by_family(cell: Cell) -> None:
    outcome = run(cell)
    assert outcome.code == 0
    assert "16 prompts, 0 near ties" in outcome.stdout
    assert "around 64    63, 63, 64, 64, 65, 65 tokens" in outcome.stdout
    assert "note: left out: around 512" in outcome.stdout
    again = run(cell)
    assert again.code == 2
    assert "exists already" in again.stderr
    assert len(cell.starts()) == 1


def test_a_server_that_does_not_continue_an_answer_gives_no_near_ties(cell: Cell) -> None:
    outcome = run(cell, "--count", 3, "--near-tie", 2)
    assert outcome.code == 1
    assert "no near tie" in outcome.stderr
    assert "continue an assistant's message" in outcome.stderr
    assert not (cell.folder / "boundary.json").exists()
    # The serial run asks with the body of a run: greedy, logprobs, no cache.
    first = json.loads(cell.bodies()[0])
    assert (first["temperature"], first["logprobs"], first["cache_prompt"]) == (0.0, True, False)
    assert (len(cell.bodies()), len(cell.starts())) == (3 + 4, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ctx", 700), "--ctx 700 is no positive multiple of 256"),
        (("--parallel", 0), "--parallel 0: give 1 to 256"),
        (("--count", 0), "--count 0: give 1 to 4096"),
        (("--near-tie", -1), "--near-tie -1: give 0 to 4096"),
        (("--max-tokens", 512), "--max-tokens 512: leaves no prompt in --ctx 512"),
        (("--seed", -1), "--seed -1: give 0 to"),
        (("-o", "/no/such/folder/b.json"), "there is no folder /no/such/folder"),
        (("--model", "/no/such.gguf"), "No such file or directory"),
        (("--", "--ctx-size", "512"), "--ctx-size (the context is given by --ctx"),
        (("--near-tie", 1, "--", "-ub", 1), "-ub 1: a batch of 2 requests cannot form"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_a_start(
    cell: Cell, words: tuple[object, ...], said: str
) -> None:
    outcome = run(cell, *words)
    assert outcome.code == 2
    assert said in outcome.stderr
    assert cell.journal() == []


def test_a_template_that_fills_the_slot_leaves_nothing_to_generate(cell: Cell) -> None:
    outcome = run(cell, "--ctx", 256, "--max-tokens", 252)
    assert outcome.code == 1
    assert "the chat template alone takes" in outcome.stderr


def test_a_signal_ends_the_server_and_leaves_no_file(tmp_path: Path) -> None:
    cell = make_cell(tmp_path / "cell", behaviour={"tick_s": 0.05})
    output = tmp_path / "b.json"
    words = ["workset", "boundary", "--server-bin", str(cell.server), "--model", str(cell.model)]
    words += ["--ctx", str(CTX), "--parallel", "2", "--near-tie", "2", "-o", str(output)]
    process = start_cli(words, tmp_path / "tmp", tmp_path / "stderr")
    wait_until(lambda: cell.bodies() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    pids = [pid for start in cell.starts() for pid in (start["pid"], start["guardian"])]
    assert len(pids) == 4
    wait_until(lambda: not any(runs(pid) for pid in pids))
    assert not output.exists()
    assert list((tmp_path / "tmp").iterdir()) == []
