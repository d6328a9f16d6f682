"""The lines of a llama-server log at `-lv 5` that tell of forward passes, and no others.

Format, read in the builds 0.10068, 0.10092 and 0.10434 and in the source of b11434 (`SLT_DBG`,
`SLT_TRC`, `SRV_DBG` in `server-common.h`, `common_log_entry::print`): an entry is a head, minutes,
seconds, milli- and microseconds since the start and a letter for the level, then a message and its
newline. An entry whose message has no newline is followed by the next head on the same line, and a
message may hold newlines, so an entry may begin anywhere in a line; the entries wanted here always
end with it.

The log also holds text that others chose: every generated token, every answer as JSON, what the
chat template renders. None of it is taken for an entry unless it spells a whole one, head included,
up to the end of a line.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from operator import itemgetter
from typing import NamedTuple


class LineKind(Enum):
    """What a line says; `first` and `second` of `LogLine` are explained with each."""

    LAUNCH = auto()
    """A slot begins a task."""
    PROMPT = auto()
    """A piece of the task's prompt joins the batch. `first`: tokens the slot held before it."""
    TOKEN = auto()
    """The task's last token joins the batch. `first`: tokens the slot held before it."""
    DECODE = auto()
    """A forward pass is tried. `first`: the most tokens it may take, `second`: the tokens of the
    batch that earlier passes took."""
    DECODE_FAILED = auto()
    """The pass that was tried came to nothing."""
    LOOP = auto()
    """The server begins another round, or finds every slot idle."""
    RELEASE = auto()
    """A slot ends its task. `first`: tokens it held."""
    STRANGE = auto()
    """A line of these kinds in a form that is not known, or one that nothing here can count."""


class LogLine(NamedTuple):
    """One line of interest: `time_us` since the server's start, slot and task (-1: names none)."""

    kind: LineKind
    time_us: int
    slot: int = -1
    task: int = -1
    first: int = 0
    second: int = 0


class _Form(NamedTuple):
    """One kind of line: words that no line of it lacks, its head, and the whole of it."""

    words: bytes
    head: re.Pattern[bytes]
    whole: re.Pattern[bytes]
    kind: LineKind


_HEAD = rb"(\d{1,9})\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] "
_SLOT = _HEAD + rb"slot +\S+: id +(\d{1,9}) \| task (\d{1,18}) \| "
_DECODE = _HEAD + rb"srv +decode: "
_LOOP = _HEAD + rb"srv +update_slots: "
_NEVER = rb"(?!)"


def _slot_form(words: bytes, rest: bytes, kind: LineKind) -> _Form:
    head = _SLOT + re.escape(words)
    return _Form(b"| " + words, re.compile(head), re.compile(head + rest + rb"\Z"), kind)


def _server_form(words: bytes, head: bytes, rest: bytes, kind: LineKind) -> _Form:
    return _Form(words, re.compile(head), re.compile(head + rest + rb"\Z"), kind)


_COUNT = rb"(\d{1,18})"
_SLOT_FORMS = (
    _slot_form(
        b"slot decode token",
        rb", id=\d+, n_ctx = \d+, n_tokens = " + _COUNT + rb", truncated = \d",
        LineKind.TOKEN,
    ),
    _slot_form(
        b"cached n_tokens", rb" = " + _COUNT + rb", memory_seq_rm \[\d+, end\)", LineKind.PROMPT
    ),
    _slot_form(b"processing task", rb", is_child = (0)", LineKind.LAUNCH),
    _slot_form(
        b"stop processing", rb": n_tokens = " + _COUNT + rb", truncated = \d", LineKind.RELEASE
    ),
    # A pass over drafted tokens is no pass per token: such a log is not counted.
    _slot_form(b"generate_draft", _NEVER, LineKind.STRANGE),
)
_SERVER_FORMS = (
    _server_form(
        b" decode: n_batch",
        _DECODE + rb"n_batch",
        rb" \(effective\) = " + _COUNT + rb", off = " + _COUNT,
        LineKind.DECODE,
    ),
    _server_form(
        b" decode: ",
        _DECODE + rb"(?!n_batch)",
        rb"(?:no tokens to decode|.* off = \d+, n_batch = \d+, ret = -?\d+)",
        LineKind.DECODE_FAILED,
    ),
    _server_form(
        b" update_slots: ",
        _LOOP + rb"(?!decode\(\))",
        rb"(?:posting NEXT_RESPONSE|all slots are idle)",
        LineKind.LOOP,
    ),
    _server_form(
        b" update_slots: decode()",
        _LOOP + rb"decode\(\)",
        rb" failed: .*",
        LineKind.DECODE_FAILED,
    ),
)


def read_lines(block: bytes) -> list[LogLine]:
    """What a block of whole lines says of forward passes, in the order of the lines.

    `block` ends with a newline. Nearly all lines of a log are passed over without a look.
    """
    found: list[tuple[int, LogLine]] = []
    for form in _SLOT_FORMS:
        for start, fields in _lines_with(block, form):
            slot, task = int(fields[5]), int(fields[6])
            if fields.re is form.whole:
                line = LogLine(form.kind, _time_us(fields), slot, task, int(fields[7]))
            else:
                line = LogLine(LineKind.STRANGE, _time_us(fields), slot, task)
            found.append((start, line))
    for form in _SERVER_FORMS:
        for start, fields in _lines_with(block, form):
            kind = form.kind if fields.re is form.whole else LineKind.STRANGE
            if kind is LineKind.DECODE:
                most, off = int(fields[5]), int(fields[6])
                found.append((start, LogLine(kind, _time_us(fields), -1, -1, most, off)))
            else:
                found.append((start, LogLine(kind, _time_us(fields))))
    found.sort(key=itemgetter(0))
    return [line for _, line in found]


def _lines_with(block: bytes, form: _Form) -> list[tuple[int, re.Match[bytes]]]:
    """The lines of one form: where each starts, and its match, of the head alone where the rest
    is strange. Further inside a line strange words are text that quotes a log, not an entry."""
    found = []
    at = block.find(form.words)
    while at >= 0:
        start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        fields = form.whole.search(block, start, end) or form.head.match(block, start, end)
        if fields is not None:
            found.append((start, fields))
        at = block.find(form.words, end)
    return found


def _time_us(fields: re.Match[bytes]) -> int:
    return int(fields[1]) * 60_000_000 + int(fields[2] + fields[3] + fields[4])
