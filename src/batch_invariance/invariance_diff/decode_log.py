"""Who took part in each forward pass, read from a llama-server log at `-lv 5` as it grows.

One forward pass, a *step*, is one successful `llama_decode`. `n_decode_total` counts those, and in
builds 0.10068 and 0.10092 also the calls that failed for want of KV cache and were tried again with
a smaller batch; in 0.10434 it no longer does. No call fails where the KV cache holds all slots.

The server fills a batch (each slot that generates adds one token, then slots add pieces of their
prompts), says so line by line, and passes over it, in several passes where it does not fit in one.
Where a piece of a prompt ends shows in the next line of its slot, so a step is known then.

What holds for every request that ended well, without speculation, context shift or shared prompts:
the steps that contain its task are those of its prompt's pieces, plus one per token but the first.

Nothing is guessed: a line that contradicts what came before is a fault, and after a fault no step
is given. Text that reaches the log cannot pass for a participant. It would have to spell a whole
entry, its time between those of its neighbours; and as text can only add lines, never take one
away, it leaves a task with a token too many, a batch with a slot twice or a pass over nothing, or a
number of steps that is not the counter's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batch_invariance.invariance_diff.decode_log_lines import LineKind, LogLine, read_lines

MAX_ENTRY = 1024
"""Bytes that hold any entry wanted here; of a longer unfinished line only the end is kept."""
MAX_LINE = 64 * 1024
MAX_WAITING = 4096
"""Batches that may wait for the end of a piece of a prompt; with more it has none."""


@dataclass(frozen=True, slots=True)
class Participant:
    """One task in one step: its slot, and how many of its tokens the step took.

    `is_prompt`: they belong to the prompt. Otherwise it is the one token generated last.
    """

    slot: int
    task: int
    tokens: int
    is_prompt: bool


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One forward pass: its number since the server's start, from 0, and who was in it.

    `participants` stand in the order of the batch, each slot once, never none. `n_tokens` is the
    sum of theirs.
    """

    index: int
    participants: tuple[Participant, ...]
    n_tokens: int


class _Fault(Exception):
    """The log contradicts itself, or what is known of it."""


class _Piece:
    """A piece of a prompt in a batch; `tokens` is None until the next line of its slot."""

    __slots__ = ("slot", "start", "task", "tokens")

    def __init__(self, slot: int, task: int, start: int) -> None:
        self.slot = slot
        self.task = task
        self.start = start
        self.tokens: int | None = None


class _Batch:
    """One filling of the batch: its parts in order, and the passes (off, most tokens) over it."""

    __slots__ = ("failed", "parts", "passes", "slots")

    def __init__(self) -> None:
        self.parts: list[_Piece | Participant] = []
        self.slots: set[int] = set()
        self.passes: list[tuple[int, int]] = []
        self.failed = False  # the last call for it came to nothing


class _Slot:
    """A slot at work: its task, the piece of prompt without an end, the tokens it holds if known,
    what it adds to a batch when it generates, and whether a batch that it was in was given up."""

    __slots__ = ("failed", "held", "piece", "task", "token")

    def __init__(self, slot: int, task: int) -> None:
        self.task = task
        self.piece: _Piece | None = None
        self.held: int | None = None
        self.token = Participant(slot, task, 1, False)
        self.failed = False


class DecodeLogParser:
    """Takes the log in pieces of any size, from the server's start on, and gives its steps.

    Memory does not grow with the log. `n_steps` counts every step that the log has shown, given or
    still waiting for the end of a prompt's piece, and `n_failed` the calls that came to nothing.
    `fault` is the first contradiction.
    """

    def __init__(self) -> None:
        self.n_steps = 0
        self.n_failed = 0
        self.fault: str | None = None
        self._carry = b""
        self._time_us = 0
        self._slots: dict[int, _Slot] = {}
        self._batch = _Batch()
        self._tried: tuple[int, int] | None = None
        self._waiting: deque[_Batch] = deque()
        self._given = 0

    @property
    def understood(self) -> bool:
        """Whether the log showed at least one step, and nothing that contradicts the format."""
        return self.fault is None and self.n_steps > 0

    @property
    def running(self) -> dict[int, int]:
        """Slot to task, as launched and not yet ended."""
        return {number: slot.task for number, slot in self._slots.items()}

    def agrees(self, n_decodes: int) -> bool:
        """Whether the server's counter may stand at `n_decodes` after what the log has shown."""
        return n_decodes in (self.n_steps, self.n_steps + self.n_failed)

    @property
    def idle(self) -> bool:
        """Whether every task that was launched has ended and every step was given."""
        return not self._slots and self._given == self.n_steps and self._tried is None

    def feed(self, data: bytes) -> list[DecodeStep]:
        """The steps that `data`, the next bytes of the log, completes; none beyond a fault."""
        if self.fault is not None:
            return []
        data = self._carry + data
        whole = data.rfind(b"\n") + 1
        self._carry = data[whole:]
        if len(self._carry) > MAX_LINE:
            # The blank keeps what follows from standing at the beginning of a line.
            self._carry = b" " + self._carry[-MAX_ENTRY:]
        steps: list[DecodeStep] = []
        try:
            for line in read_lines(data[:whole]):
                self._take(line, steps)
        except _Fault as fault:
            self.fault = str(fault)
        return steps

    def _take(self, line: LogLine, steps: list[DecodeStep]) -> None:
        if line.time_us < self._time_us:
            raise _Fault(
                f"a line of {line.time_us} us follows one of {self._time_us} us: the clock was set "
                "back, or the log holds text in the form of its own lines"
            )
        self._time_us = line.time_us
        kind = line.kind
        if kind is LineKind.TOKEN or kind is LineKind.PROMPT:
            self._join(line, steps)
        elif kind is LineKind.DECODE:
            self._confirm()
            self._tried = line.first, line.second
            self._batch.failed = False
        elif kind is LineKind.DECODE_FAILED:
            self.n_failed += self._tried is not None
            self._tried = None
            self._batch.failed = True
        elif kind is LineKind.LOOP:
            self._close(steps)
        elif kind is LineKind.LAUNCH:
            if line.slot in self._slots:
                raise _Fault(f"slot {line.slot} begins task {line.task} before its last one ended")
            self._slots[line.slot] = _Slot(line.slot, line.task)
        elif kind is LineKind.RELEASE:
            self._settle(self._slot(line), line)
            del self._slots[line.slot]
            self._give(steps)
        else:
            raise _Fault(f"a line of {line.time_us} us has a form that is not known")

    def _slot(self, line: LogLine) -> _Slot:
        slot = self._slots.get(line.slot)
        if slot is None or slot.task != line.task:
            raise _Fault(f"slot {line.slot} names task {line.task}, which it did not begin")
        return slot

    def _settle(self, slot: _Slot, line: LogLine) -> None:
        """`line` states the tokens that the slot holds: what its last part must have led to."""
        if slot.piece is not None:
            slot.piece.tokens = line.first - slot.piece.start
            if slot.piece.tokens < 0:
                raise _Fault(f"the prompt of task {line.task} shrinks")
            slot.piece = None
        elif slot.held is not None and slot.held != line.first:
            raise _Fault(f"task {line.task} holds {line.first} tokens after {slot.held}")

    def _join(self, line: LogLine, steps: list[DecodeStep]) -> None:
        """A slot adds its part to the batch; after a pass that begins another batch."""
        if self._tried is not None or self._batch.passes:
            self._close(steps)
        slot = self._slot(line)
        if slot.failed or self._batch.failed:
            raise _Fault(f"task {line.task} goes on after its batch was given up")
        self._settle(slot, line)
        if line.slot in self._batch.slots:
            raise _Fault(f"slot {line.slot} joins one batch twice")
        self._batch.slots.add(line.slot)
        if line.kind is LineKind.TOKEN:
            slot.held = line.first + 1
            self._batch.parts.append(slot.token)
        else:
            if slot.held is not None:
                raise _Fault(f"task {line.task} returns to its prompt")
            slot.piece = _Piece(line.slot, line.task, line.first)
            self._batch.parts.append(slot.piece)

    def _confirm(self) -> None:
        """The pass that was tried was not said to have failed."""
        if self._tried is None:
            return
        if not self._batch.parts:
            raise _Fault("a forward pass has no participant")
        self._batch.passes.append((self._tried[1], self._tried[0]))
        self._tried = None
        self.n_steps += 1

    def _close(self, steps: list[DecodeStep]) -> None:
        """Nothing more happens to this batch."""
        self._confirm()
        if self._batch.failed:
            for number in self._batch.slots & self._slots.keys():
                self._slots[number].failed = True
        elif self._batch.parts and not self._batch.passes:
            raise _Fault("a batch was filled and no forward pass tried")
        if self._batch.passes:
            if len(self._waiting) == MAX_WAITING:
                raise _Fault(f"a piece of a prompt has no end for {MAX_WAITING} batches")
            self._waiting.append(self._batch)
        self._batch = _Batch()
        self._give(steps)

    def _give(self, steps: list[DecodeStep]) -> None:
        """Gives the steps of every batch whose parts are known, in order."""
        while self._waiting:
            parts = _known(self._waiting[0].parts)
            if parts is None:
                return
            batch = self._waiting.popleft()
            for members in _passes(batch, parts):
                steps.append(DecodeStep(self._given, members, sum(p.tokens for p in members)))
                self._given += 1


def _known(parts: list[_Piece | Participant]) -> tuple[Participant, ...] | None:
    known = []
    for part in parts:
        if isinstance(part, Participant):
            known.append(part)
        elif part.tokens is None:
            return None
        elif part.tokens:
            known.append(Participant(part.slot, part.task, part.tokens, True))
    return tuple(known)


def _passes(batch: _Batch, parts: tuple[Participant, ...]) -> list[tuple[Participant, ...]]:
    """The participants of each pass over a batch: it takes the batch's tokens in their order."""
    total = sum(part.tokens for part in parts)
    members: list[tuple[Participant, ...]] = []
    position = 0
    for off, most in batch.passes:
        end = min(off + most, total)
        if off != position or end <= off:
            raise _Fault(f"a pass begins at token {off} of a batch of {total}, not at {position}")
        members.append(parts if end - off == total else _cut(parts, off, end))
        position = end
    if position < total and not batch.failed:
        raise _Fault(f"the passes over a batch of {total} tokens end at {position}")
    return members


def _cut(parts: tuple[Participant, ...], begin: int, end: int) -> tuple[Participant, ...]:
    """What of the parts lies in the tokens from `begin` to `end` of their batch."""
    inside = []
    start = 0
    for part in parts:
        stop = start + part.tokens
        tokens = min(stop, end) - max(start, begin)
        if tokens > 0:
            inside.append(Participant(part.slot, part.task, tokens, part.is_prompt))
        start = stop
    return tuple(inside)
