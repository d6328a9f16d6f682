"""What the server's own log of forward passes proves about the trials of one pass.

The log names tasks and slots. Every lane of the dispatcher pins its slot and sends one request at
a time, so the n-th task of a slot is the n-th trial of its lane. The match counts only where all of
it agrees: every trial with its task, every task's passes with its tokens, all passes with the
server's counter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from batch_invariance.invariance_diff.ubatch import Layout, Part, ubatches

UNKNOWN_SIZE = -1
FIELDS = 3
"""Numbers per participant of a run: lane, task, prompt tokens."""

Run = tuple[int, ...]
"""One of `records.DecodeRuns.runs`: passes, then (lane, task, prompt tokens) per member."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a pass keeps of a trial: who it is, where and when it went out, its generated tokens
    (None: lost, or not counted) and its prompt's."""

    item: int
    occurrence: int
    lane: int
    dispatch_ts: float
    tokens: int | None
    prompt_tokens: int | None

    @property
    def key(self) -> tuple[int, int]:
        """(item, occurrence), which names the trial within its pass."""
        return self.item, self.occurrence


@dataclass(slots=True)
class TaskTally:
    """One task in figures: the forward passes it was in, those of its prompt, the prompt's tokens
    (None: a size is unknown), the passes shared with another lane's matrix product, generating
    passes by size of their micro-batch, the other tasks of its passes, and what its prompt and its
    generation met."""

    lane: int
    task: int
    steps: int = 0
    prompt_steps: int = 0
    prompt_tokens: int | None = 0
    shared: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    companions: set[int] = field(default_factory=set)
    prompt_met_decode: bool = False
    prompt_met_prompt: bool = False
    decode_met_prompt: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is the same for all passes with these parts: per lane whether it shares a product and
    in which company, and whether a prompt and a generating lane are in it."""

    shares: dict[int, int]
    n_prompts: int
    n_decodes: int


class DecodeTally:
    """Adds up the forward passes of one pass of the plan. Memory is linear in its tasks."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._shapes: dict[tuple[int, ...], _Shape] = {}
        self._tasks: dict[tuple[int, int], TaskTally] = {}
        self.n_steps = 0
        self.n_crowded = 0
        """Passes with more than one participant."""
        self.peak = 0
        """The most lanes in one micro-batch, not counting pieces of prompts."""
        self.most_rows = 0
        """The most tokens in one pass, as far as sizes are known."""

    def add(self, runs: Iterable[Run]) -> None:
        """Takes runs of equal passes. Raises ValueError for one that cannot be."""
        for run in runs:
            members = run[1:]
            if not members or run[0] < 1 or len(members) % FIELDS:
                raise ValueError("a run of no passes or of nobody")
            self._add(run[0], members)

    def _add(self, n: int, members: Sequence[int]) -> None:
        lanes, sizes = members[0::FIELDS], members[2::FIELDS]
        if len(set(lanes)) != len(lanes) or min(lanes) < 0 or min(sizes) < UNKNOWN_SIZE:
            raise ValueError("a slot that cannot be, or twice in one pass")
        shape = self._shape(lanes, sizes)
        self.n_steps += n
        self.n_crowded += n * (len(lanes) > 1)
        tasks = list(zip(lanes, members[1::FIELDS], sizes, strict=True))
        for lane, task, size in tasks:
            tally = self._tasks.get((lane, task))
            if tally is None:
                tally = self._tasks[(lane, task)] = TaskTally(lane, task)
            tally.steps += n
            tally.shared += n * (shape.shares[lane] > 1)
            tally.companions.update(t for other, t, _ in tasks if other != lane)
            if size:
                tally.prompt_steps += n
                known = tally.prompt_tokens is not None and size != UNKNOWN_SIZE
                tally.prompt_tokens = (tally.prompt_tokens or 0) + n * size if known else None
                tally.prompt_met_decode |= shape.n_decodes > 0
                tally.prompt_met_prompt |= shape.n_prompts > 1
            else:
                company = shape.shares[lane]
                tally.sizes[company] = tally.sizes.get(company, 0) + n
                tally.decode_met_prompt |= shape.n_prompts > 0

    def _shape(self, lanes: Sequence[int], sizes: Sequence[int]) -> _Shape:
        key = (*lanes, *sizes)
        shape = self._shapes.get(key)
        if shape is not None:
            return shape
        parts: list[Part] = [(lane, size or 1) for lane, size in zip(lanes, sizes, strict=True)]
        shares = dict.fromkeys(lanes, 1)
        if UNKNOWN_SIZE not in sizes:
            cut = ubatches(parts, self._layout)
            self.most_rows = max(self.most_rows, sum(tokens for _, tokens in parts))
            decoding = {lane for lane, size in zip(lanes, sizes, strict=True) if not size}
            for group in cut:
                # A prompt that is cut over several products shares none of them for certain.
                whole = len(cut) == 1
                certain = [lane for lane in group if whole or lane in decoding]
                for lane in certain:
                    shares[lane] = len(group)
                self.peak = max(self.peak, len(certain))
        n_prompts = sum(size != 0 for size in sizes)
        shape = _Shape(shares, n_prompts, len(lanes) - n_prompts)
        if len(self._shapes) < MAX_SHAPES:
            self._shapes[key] = shape
        return shape

    def match(
        self, trials: Sequence[Sent], decodes: int | None
    ) -> dict[tuple[int, int], TaskTally] | str:
        """Each trial's tally by (item, occurrence), or why the log is no witness.

        `trials` are all of the pass; `decodes` the forward passes by the server's counter.
        """
        if decodes is None:
            return "the server's counter of forward passes is unknown"
        if decodes != self.n_steps:
            return f"the log shows {self.n_steps} forward passes, the counter {decodes}"
        by_lane: dict[int, list[Sent]] = {}
        for trial in sorted(trials, key=lambda t: t.dispatch_ts):
            by_lane.setdefault(trial.lane, []).append(trial)
        tasks: dict[int, list[TaskTally]] = {}
        for tally in self._tasks.values():
            tasks.setdefault(tally.lane, []).append(tally)
        matched = {}
        for lane in sorted(by_lane.keys() | tasks.keys()):
            sent, seen = by_lane.get(lane, []), tasks.get(lane, [])
            if len(sent) != len(seen):
                return f"slot {lane} worked on {len(seen)} tasks, not on {len(sent)} requests"
            for trial, tally in zip(sent, seen, strict=True):
                fault = _disagreement(trial, tally)
                if fault is not None:
                    return f"slot {lane}, task {tally.task}: {fault}"
                matched[trial.key] = tally
        return matched


MAX_SHAPES = 4096
"""Different passes remembered; prompts of many lengths make many that never come again."""


def _disagreement(trial: Sent, tally: TaskTally) -> str | None:
    """Why a task cannot be this trial's; None where it can.

    The prompt's last pass yields the first token, every further token takes one pass.
    """
    if trial.tokens is None:
        return "its trial was lost or does not count its tokens"
    if tally.prompt_steps < 1 or tally.steps - tally.prompt_steps != trial.tokens - 1:
        return (
            f"{tally.steps} passes, {tally.prompt_steps} of them with its prompt, "
            f"for {trial.tokens} tokens"
        )
    if None not in (tally.prompt_tokens, trial.prompt_tokens) and (
        tally.prompt_tokens != trial.prompt_tokens
    ):
        return f"{tally.prompt_tokens} prompt tokens, the response counts {trial.prompt_tokens}"
    return None
