"""The reader of an owned server's log: in time, complete, and without keeping what it read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batch_invariance.errors import ServerError
from batch_invariance.invariance_diff.decode_log import DecodeStep
from batch_invariance.live_invariance import log_reader
from batch_invariance.live_invariance.log_reader import (
    CHUNK_BYTES,
    HEAD_KEPT_BYTES,
    PUNCH_BYTES,
    TAIL_KEPT_BYTES,
    DecodeLogReader,
    punch_hole,
)

LIMIT_S = 30.0


class LogFile:
    """A log that grows by appending, as a server writes it: one request after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.us = 0
        self.task = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, text: bytes) -> None:
        os.write(self._fd, text)

    def entry(self, kind: bytes, message: bytes) -> bytes:
        self.us += 1
        time = b"0.%02d.%03d.%03d" % (self.us // 1_000_000, self.us // 1000 % 1000, self.us % 1000)
        return time + b" D " + kind + b": " + message + b"\n"

    def request(self, n_tokens: int = 3) -> bytes:
        """The lines of one request on slot 0: `n_tokens` steps."""
        self.task += 1
        slot = b"id  0 | task %d | " % self.task
        lines = [
            self.entry(b"slot launch_slot_", slot + b"processing task, is_child = 0"),
            self.entry(b"slot   operator()", slot + b"cached n_tokens = 0, memory_seq_rm [0, end)"),
            self.entry(b"srv        decode", b"n_batch (effective) = 512, off = 0"),
        ]
        for held in range(10, 9 + n_tokens):
            token = b"slot decode token, id=1, n_ctx = 512, n_tokens = %d, truncated = 0" % held
            lines += [
                self.entry(b"srv  update_slots", b"posting NEXT_RESPONSE"),
                self.entry(b"slot handle_last_", slot + token),
                self.entry(b"srv        decode", b"n_batch (effective) = 512, off = 0"),
            ]
        stop = b"stop processing: n_tokens = %d, truncated = 0" % (9 + n_tokens)
        lines += [
            self.entry(b"slot      release", slot + stop),
            self.entry(b"srv  update_slots", b"all slots are idle"),
        ]
        return b"".join(lines)

    def allocated(self) -> int:
        return self.path.stat().st_blocks * 512

    def close(self) -> None:
        os.close(self._fd)


class Reading:
    """A reader with its log, the steps that came, and the server's death."""

    def __init__(self, path: Path) -> None:
        self.log = LogFile(path)
        self.dead = threading.Event()
        self.steps: list[DecodeStep] = []
        self.reader = DecodeLogReader(path, self.steps.append, self.dead)


@contextmanager
def reading(path: Path) -> Iterator[Reading]:
    """A reader of a log that is empty."""
    reading = Reading(path)
    with reading.reader:
        try:
            yield reading
        finally:
            reading.log.close()


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Reading]:
    with reading(tmp_path / "server.log") as found:
        yield found


def test_what_is_there_is_read_once(at: Reading) -> None:
    at.reader.drain()
    assert at.steps == []
    at.log.append(at.log.request())
    at.reader.drain()
    assert [step.index for step in at.steps] == [0, 1, 2]
    at.reader.drain()
    assert len(at.steps) == 3
    at.log.append(at.log.request(2))
    at.reader.drain()
    assert [step.index for step in at.steps] == [0, 1, 2, 3, 4]
    assert at.steps[4].participants[0].task == 2
    assert at.reader.offset == at.log.path.stat().st_size


def test_a_log_of_many_chunks_is_read_whole(at: Reading) -> None:
    filler = b"0.00.000.000 D que    start_loop: waiting for new tasks\n" * 2000
    count = 0
    while at.log.path.stat().st_size < 3 * CHUNK_BYTES:
        at.log.append(at.log.request() + filler)
        count += 3
    assert at.reader.drain_until(count, 0.0) is None
    assert [step.index for step in at.steps] == list(range(count))


def test_lines_that_lag_are_waited_for(at: Reading) -> None:
    """The log is written in pieces that end anywhere, after the counter has been read."""
    text = at.log.request(40) + at.log.request(2)

    def write() -> None:
        for i in range(0, len(text), 101):
            at.log.append(text[i : i + 101])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert at.reader.drain_until(42, LIMIT_S) is None
    finally:
        writer.join()
    assert len(at.steps) == 42
    assert at.reader.parser.idle


def test_the_log_is_complete_only_when_every_task_has_ended(at: Reading) -> None:
    *begun, _release, rest = at.log.request(2).splitlines(keepends=True)
    at.log.append(b"".join(begun))
    reason = at.reader.drain_until(2, 0.0)
    assert reason == "the log shows 1 forward passes, the counter 2"
    at.log.append(rest)
    assert at.reader.drain_until(2, 0.0) == "the log does not show the end of 1 tasks"
    assert at.steps != []


@pytest.mark.parametrize(
    ("n_decodes", "reason"),
    [
        (0, "the log shows 3 forward passes, the counter 0"),
        (2, "the log shows 3 forward passes, the counter 2"),
        (4, "the log shows 3 forward passes, the counter 4"),
    ],
)
def test_a_counter_that_disagrees_is_said(at: Reading, n_decodes: int, reason: str) -> None:
    at.log.append(at.log.request())
    assert at.reader.drain_until(n_decodes, 0.0) == reason
    assert len(at.steps) == 3


def test_more_passes_than_counted_end_the_wait_at_once(at: Reading) -> None:
    at.log.append(at.log.request())
    assert at.reader.drain_until(2, LIMIT_S * 1000) is not None


def test_a_dead_server_ends_the_wait_after_its_last_lines(at: Reading) -> None:
    at.log.append(at.log.request())
    at.dead.set()
    assert at.reader.drain_until(3, LIMIT_S * 1000) is None
    assert at.reader.drain_until(4, LIMIT_S * 1000) is not None


def test_an_unknown_format_is_said(at: Reading) -> None:
    at.log.append(b"srv  update_slots: decoding batch, n_tokens = 1\n" * 10)
    reason = at.reader.drain_until(10, 0.0)
    assert reason == "the log shows no forward pass in a known form, the counter 10"
    assert not at.reader.parser.understood


def test_after_a_fault_the_log_is_passed_over(at: Reading) -> None:
    launch = at.log.request().splitlines(keepends=True)[0]
    at.log.append(launch + launch)
    reason = at.reader.drain_until(3, LIMIT_S * 1000)
    assert reason is not None
    assert "before its last one ended" in reason
    at.log.append(b"x" * 5 * CHUNK_BYTES)
    at.reader.drain()
    assert at.reader.offset == at.log.path.stat().st_size
    assert at.steps == []


def test_a_server_without_requests_has_a_complete_log(at: Reading) -> None:
    assert at.reader.drain_until(0, 0.0) is None


def _fill(log: LogFile, size: int) -> int:
    """Appends requests among filler until the log has `size` bytes; the number of their steps."""
    steps = 0
    while log.path.stat().st_size < size:
        log.append(log.request() + b"filler\n" * 10_000)
        steps += 3
    return steps


def test_the_room_of_what_was_read_is_given_back(at: Reading) -> None:
    """Where the file system can: the log then takes a bounded room, and its ends stay."""
    steps = 0
    for _ in range(3):
        steps += _fill(at.log, at.log.path.stat().st_size + 2 * PUNCH_BYTES)
        assert at.reader.drain_until(steps, 0.0) is None
    size = at.log.path.stat().st_size
    assert size > 6 * PUNCH_BYTES
    with open(at.log.path, "rb") as file:
        head = file.read(HEAD_KEPT_BYTES)
        file.seek(-TAIL_KEPT_BYTES, os.SEEK_END)
        tail = file.read()
    assert b"\0" not in head + tail
    if at.reader.reclaims:
        assert at.log.allocated() < HEAD_KEPT_BYTES + 2 * PUNCH_BYTES + TAIL_KEPT_BYTES
    else:
        assert at.log.allocated() >= size
    at.log.append(at.log.request())
    assert at.reader.drain_until(steps + 3, 0.0) is None


def test_nothing_appended_while_room_is_given_back_is_lost(at: Reading) -> None:
    done = threading.Event()
    total = 0

    def write() -> None:
        nonlocal total
        total = _fill(at.log, 5 * PUNCH_BYTES)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        at.reader.drain()
    writer.join()
    assert at.reader.drain_until(total, 0.0) is None
    assert [step.index for step in at.steps] == list(range(total))


def test_without_holes_the_log_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "_FALLOCATE", None)
    with reading(tmp_path / "server.log") as at:
        steps = _fill(at.log, 2 * PUNCH_BYTES)
        assert at.reader.drain_until(steps, 0.0) is None
        assert not at.reader.reclaims
        assert b"\0" not in at.log.path.read_bytes()


def test_a_file_system_that_refuses_holes_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(fd: int, mode: int, offset: int, length: int) -> int:
        asked.append((offset, length))
        return -1

    monkeypatch.setattr(log_reader, "_FALLOCATE", refuse)
    with reading(tmp_path / "server.log") as at:
        assert at.reader.reclaims
        steps = _fill(at.log, 4 * PUNCH_BYTES)
        assert at.reader.drain_until(steps, 0.0) is None
        assert not at.reader.reclaims
    assert len(asked) == 1


def test_a_hole_needs_a_file_that_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 10_000)
    with open(path, "rb") as file:
        assert not punch_hole(file.fileno(), 0, 4096)
    assert path.read_bytes() == b"x" * 10_000


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"cannot open the server's log .*No such file"):
        DecodeLogReader(tmp_path / "none.log", lambda step: None, threading.Event())


def test_closing_twice_is_harmless(at: Reading) -> None:
    at.reader.close()
    at.reader.close()
