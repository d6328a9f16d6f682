"""The mock server's engine: N slots, one thread that decodes, and honest counters.

It batches as llama-server does. A request waits until its slot is idle; one tick is one decode;
every active slot is in it; a new request joins at the next tick, and the decode of its prompt
yields its first token. Overlap does not depend on luck: an idle engine holds its first tick while
a connection that was accepted has not yet said what it wants, and for a short window after each
arrival. The window is longer while fewer requests are there than ran together the last time, and
over at once when there are requests for all slots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batch_invariance.errors import ServerError
from batch_invariance.live_invariance.mock_answer import (
    BatchDivergence,
    Finish,
    GenerationRequest,
    GenerationResult,
    MockBehaviour,
    diverge,
    spell_out,
)
from batch_invariance.live_invariance.mock_model import EOS_ID, advance, choose, first_step

__all__ = [
    "BatchDivergence",
    "Counters",
    "GenerationRequest",
    "GenerationResult",
    "Job",
    "MockBehaviour",
    "MockEngine",
    "SlotState",
]

N_BATCH = 2048
"""Prompt tokens that one decode takes in, shared by all slots: llama-server's default for `-b`."""

_ANNOUNCEMENT_S = 1.0
"""A connection that stays silent for longer than this no longer holds the first tick."""

_PATIENCE_S = 0.05
"""The window after an arrival while companions are missing: longer than a scheduler's hiccup."""


@dataclass(slots=True)
class Counters:
    """The engine's totals, as `/metrics` shows them.

    `busy_slots` sums, over all decodes, the slots that were processing. `longest` is the most
    tokens one slot held. `processing` and `deferred` are the requests of the moment.
    """

    decodes: int = 0
    busy_slots: int = 0
    prompt_tokens: int = 0
    prompt_s: float = 0.0
    predicted_tokens: int = 0
    predicted_s: float = 0.0
    longest: int = 0
    processing: int = 0
    deferred: int = 0


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot as `/slots` shows it. `id_task` stays after the request; None: never used."""

    id_slot: int
    is_processing: bool
    id_task: int | None
    n_decoded: int


class Job:
    """A submitted request on its way through the engine, guarded by the engine's lock."""

    def __init__(self, request: GenerationRequest, id_task: int, seed_text: str) -> None:
        self.request = request
        self.id_task = id_task
        self.start = self.step = first_step(seed_text)
        self.ids: list[int] = []
        self.prompt_left = max(1, request.prompt_tokens)
        self.peak_batch = 0
        self.launched_at = self.first_token_at = self.ended_at = 0.0
        self.finish: Finish | None = None
        self.bias = dict(request.bias)
        if request.ignore_eos:
            self.bias[EOS_ID] = float("-inf")


class MockEngine:
    """Runs requests on `slots` slots. Start it, submit, wait for each job, stop it.

    A subclass may plant faults by overriding `seed_text`, `select_batch` and `wait`.
    """

    def __init__(self, slots: int, behaviour: MockBehaviour) -> None:
        self.behaviour = behaviour
        self._slots: list[Job | None] = [None] * slots
        self._last_job: list[Job | None] = [None] * slots
        self._queue: list[Job] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._announced: dict[int, float] = {}
        self._last_arrival = 0.0
        # How many requests ran together since the engine was last idle; a wave at the beginning.
        self._crowd = slots
        self._last_number = 0
        self._totals = Counters()
        self._thread = threading.Thread(target=self._run, name="mock-engine", daemon=True)

    def start(self) -> None:
        """Start the decoding thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop at once; requests that still run raise ServerError in `wait`."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        self._thread.join()

    def announce(self) -> int:
        """Say that a request may be about to arrive; give the number to `withdraw` it by."""
        with self._changed:
            number = self._take_number()
            self._announced[number] = time.monotonic()
            return number

    def withdraw(self, number: int) -> None:
        """Say that the announced request has been submitted, or was none."""
        with self._changed:
            self._announced.pop(number, None)
            self._changed.notify_all()

    def submit(self, request: GenerationRequest) -> Job:
        """Queue a request."""
        with self._changed:
            job = Job(request, self._take_number(), self.seed_text(request))
            self._queue.append(job)
            self._last_arrival = time.monotonic()
            self._changed.notify_all()
            return job

    def wait(self, job: Job) -> GenerationResult:
        """Wait for a job's end and give its answer. Raises ServerError when stopped before."""
        with self._changed:
            self._changed.wait_for(lambda: job.finish is not None or self._stopping.is_set())
            if job.finish is None:
                raise ServerError("the mock server was stopped while a request ran; repeat it")
        answer = spell_out(job.start, job.ids, job.request.top, job.finish)
        if self.behaviour.strikes(job.request.prompt, job.peak_batch):
            answer = diverge(self.behaviour.batch_divergence, answer, job.start)
        return GenerationResult(
            id_task=job.id_task,
            answer=answer,
            peak_batch=job.peak_batch,
            prompt_s=job.first_token_at - job.launched_at,
            predicted_s=job.ended_at - job.first_token_at,
        )

    def counters(self) -> Counters:
        """Copy the totals and the numbers of the moment."""
        with self._changed:
            return replace(self._totals, processing=len(self._active()), deferred=len(self._queue))

    def slots(self) -> tuple[SlotState, ...]:
        """Read all slots at one moment."""
        with self._changed:
            return tuple(
                SlotState(
                    id_slot=index,
                    is_processing=self._slots[index] is not None,
                    id_task=None if job is None else job.id_task,
                    n_decoded=0 if job is None else len(job.ids),
                )
                for index, job in enumerate(self._last_job)
            )

    def seed_text(self, request: GenerationRequest) -> str:
        """Give the text that the whole answer is derived from."""
        return request.prompt

    def select_batch(self, active: Sequence[Job]) -> Sequence[Job]:
        """Choose which active jobs share the next decode: all of them. The lock is held."""
        return active

    def _take_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _active(self) -> list[Job]:
        return [job for job in self._slots if job is not None]

    def _run(self) -> None:
        due = 0.0
        while True:
            with self._changed:
                if not self._active():
                    self._changed.wait_for(lambda: self._stopping.is_set() or bool(self._queue))
                    self._gather()
                if self._stopping.is_set():
                    return
                self._admit()
                self._crowd = max(self._crowd, len(self._active()))
                batch = self.select_batch(self._active())
            # This is the decode itself: what arrives meanwhile joins the next one.
            now = time.monotonic()
            due = max(due, now - self.behaviour.tick_s) + self.behaviour.tick_s
            self._stopping.wait(due - now)
            if batch:
                with self._changed:
                    self._decode(batch)

    def _gather(self) -> None:
        """Hold the first tick while companions may still arrive."""
        expected, self._crowd = self._crowd, 0
        while not self._stopping.is_set() and len(self._queue) < len(self._slots):
            # More than last time means that a wave has begun, of unknown size.
            complete = len(self._queue) == expected
            window = self.behaviour.gather_s if complete else _PATIENCE_S
            holds = [at + _ANNOUNCEMENT_S for at in self._announced.values()]
            left = max([self._last_arrival + window, *holds]) - time.monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _admit(self) -> None:
        waiting, self._queue = self._queue, []
        for job in waiting:
            index = self._idle_slot(job.request.id_slot)
            if index is None:
                self._queue.append(job)
            else:
                self._slots[index] = self._last_job[index] = job
                job.launched_at = time.monotonic()

    def _idle_slot(self, wanted: int | None) -> int | None:
        pinned = wanted is not None and 0 <= wanted < len(self._slots)
        for index, job in enumerate(self._slots):
            if job is None and (not pinned or index == wanted):
                return index
        return None

    def _decode(self, batch: Sequence[Job]) -> None:
        now = time.monotonic()
        self._totals.decodes += 1
        self._totals.busy_slots += len(self._active())
        for job in _take_part(batch):
            if job.prompt_left:
                continue
            if not job.ids:
                job.first_token_at = now
                self._totals.prompt_tokens += job.request.prompt_tokens
                self._totals.prompt_s += now - job.launched_at
            token_id = choose(job.step, job.bias)
            job.step = advance(job.step, token_id)
            job.ids.append(token_id)
            if token_id == EOS_ID:
                self._end(job, Finish.STOP, now)
            elif len(job.ids) >= job.request.max_tokens:
                self._end(job, Finish.LENGTH, now)

    def _end(self, job: Job, finish: Finish, now: float) -> None:
        job.finish, job.ended_at = finish, now
        self._slots[self._slots.index(job)] = None
        held = job.request.prompt_tokens + len(job.ids) - 1
        self._totals.longest = max(self._totals.longest, held)
        self._totals.predicted_tokens += len(job.ids)
        self._totals.predicted_s += now - job.first_token_at
        self._changed.notify_all()


def _take_part(batch: Sequence[Job]) -> list[Job]:
    """Share out one decode's tokens: one for each decoding job, the rest to prompts in order."""
    budget = N_BATCH - sum(1 for job in batch if not job.prompt_left)
    members: list[Job] = []
    for job in batch:
        taken = min(job.prompt_left, budget)
        if job.prompt_left and not taken:
            continue
        budget -= taken
        job.prompt_left -= taken
        members.append(job)
    for job in members:
        job.peak_batch = max(job.peak_batch, len(members))
    return members
