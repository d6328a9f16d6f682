"""Evidence of a run that never took place: every record of a full plan, in any size, from a seed.

It is written with the package's own types, schedules and encoder, so it is what `run-live` would
leave behind; only the answers and the clock are made up. Two server lifetimes: warm-up, A and A2
on one slot; warm-up, B, C, confirm trials and positive control on N.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.diff import compare_trials
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    FailureKind,
    Item,
    Message,
    Scored,
    ScorerInfo,
    Source,
    Trial,
    TrialKey,
)
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids
from batch_invariance.invariance_diff.plan import (
    length_schedule,
    plan_passes,
    seeded_schedule,
    serial_schedule,
)
from batch_invariance.invariance_diff.records import (
    Cell,
    ControlPlan,
    Counters,
    Event,
    ExitInfo,
    Footer,
    Header,
    Identity,
    LifetimeEnd,
    LifetimeStart,
    ModelFacts,
    Observer,
    PassEnd,
    PassPlan,
    PassStart,
    Plan,
    Record,
    SlotSamples,
    Subject,
    WaveEnd,
    WorkSetRecord,
)
from batch_invariance.invariance_diff.request import Sampling, ban_token, build_body
from batch_invariance.invariance_diff.rules import EVIDENCE_SCHEMA, RULES_VERSION
from batch_invariance.invariance_diff.schedule import (
    DispatchKind,
    Entry,
    Ordering,
    PassSchedule,
    pinned_pass,
    wave_pass,
)
from batch_invariance.invariance_diff.workset import items_sha256

N = 8
"""Slots. With eight, 100,000 trials stay below the million decodes up to which the server's
counter is exact."""
C_PASSES = 8
TRIALS_PER_ITEM = 3 + C_PASSES
TOKENS = 48
TOP = 5
CTX = 4096
CONFIRM_LIMIT = 64
TOKEN_S = 0.01
SAMPLING = Sampling(seed=7, max_tokens=TOKENS, top_logprobs=TOP)
WORDS = (
    "the", "of", "answer", "and", "batch", "is", "to", "a", "in", "that", "slot", "for", "it",
    "was", "with", "token", "as", "on", "be", "model", "by", "this", "which", "prompt", "from",
    "or", "had", "has", "were", "context", "not", "but", "what", "all", "decode", "when", "we",
    "there", "can", "value", "lane", "server", "more", "if", "no", "out", "so", "up", "said",
    "its", "about", "than", "into", "them", "only", "other", "time", "new", "some",
)  # fmt: skip


@dataclass(frozen=True)
class Faults:
    """Shares of the trials of arm C: those that diverge, and those that are lost (each with an
    event of its own)."""

    divergent: float = 0.0
    lost: float = 0.0


class Variant(Enum):
    """What kind of run the evidence tells of."""

    CLEAN = Faults()
    DIVERGENT = Faults(divergent=0.3)
    HOSTILE = Faults(divergent=1.0, lost=0.1)

    @property
    def label(self) -> str:
        """How the results name it."""
        return self.name.lower()


def _item(index: int) -> Item:
    rng = random.Random(f"item/{index}")
    prompt = " ".join(rng.choices(WORDS, k=60))
    return Item(
        id=f"item-{index:06d}",
        messages=(Message("user", f"{index}: {prompt}"),),
        expected_answer=rng.choice(WORDS),
        family=f"family-{index % 7}",
        fill=(0.1, 0.5, 0.9)[index % 3],
    )


def _completion(index: int, parts_at: int | None = None, flavour: str = "") -> Completion:
    """The answer of an item: about 200 characters, 48 tokens, 5 alternatives each.

    With `parts_at` the tokens change from there on and every logprob moves a little, as `flavour`
    decides.
    """
    rng = random.Random(f"answer/{index}")
    ids = [rng.randrange(50_000) for _ in range(TOKENS)]
    tops = [-rng.random() * 8 for _ in range(TOKENS * TOP)]
    if parts_at is not None:
        rng = random.Random(f"answer/{index}/{flavour}")
        ids[parts_at:] = [50_000 + rng.randrange(9_000) for _ in ids[parts_at:]]
        tops = [value - rng.random() * 0.01 for value in tops]
    top_ids = [(token + k) for token in ids for k in range(TOP)]
    text = " ".join(WORDS[token % len(WORDS)] for token in ids)
    return Completion(
        text=text,
        finish_reason="length",
        token_ids=pack_ids(ids),
        logprobs=pack_floats(tops[::TOP]),
        top_ids=pack_ids(top_ids),
        top_logprobs=pack_floats(tops),
        prompt_tokens=70,
        completion_tokens=TOKENS,
        cache_n=0,
        draft_n=None,
        truncated=False,
    )


class SyntheticRun:
    """Yields the records of one run. `n_trials` is the size aimed at, met but for a few."""

    def __init__(self, n_trials: int, variant: Variant) -> None:
        n_items = max(2 * N, n_trials // TRIALS_PER_ITEM)
        self._faults = variant.value
        self._items = tuple(_item(i) for i in range(n_items))
        self._answers = [_completion(i) for i in range(n_items)]
        self._bodies = [build_body(item, SAMPLING).sha256 for item in self._items]
        self._passes = plan_passes(n_items, N, C_PASSES, seed=3)
        self._rng = random.Random(f"{n_trials}/{variant.label}")
        self._reference: dict[int, Trial] = {}
        self._divergent: dict[tuple[int, int], None] = {}
        self._clock = 0.0
        self._decodes = self._generated = 0
        self._n_trials = 0

    def records(self) -> Iterator[Record]:
        """Every record, header to footer."""
        yield self._header()
        for index, arms in enumerate(((Arm.A, Arm.A2), (Arm.B, Arm.C))):
            parallel = 1 if index == 0 else N
            identity = Identity(parallel, CTX, "synthetic.gguf", "b1", sha256_hex(b"template"))
            yield _start(index, parallel, identity)
            warm_up = wave_pass(list(range(parallel)), parallel)
            yield from self._pass(Arm.WARMUP, index, index, warm_up)
            for plan in self._passes:
                if plan.arm in arms:
                    yield from self._pass(plan.arm, plan.pass_index, index, self._schedule(plan))
            if index == 1:
                yield from self._after_c()
            yield LifetimeEnd(index, identity, ExitInfo(0, None, ""), self._clock)
        yield Footer("complete", self._n_trials, self._clock)

    def _after_c(self) -> Iterator[Record]:
        if self._divergent:
            first: dict[int, tuple[int, int]] = {}
            for pair in self._divergent:
                first.setdefault(pair[0], pair)
            chosen = list(first.values())
            chosen += [pair for pair in self._divergent if first[pair[0]] != pair]
            yield from self._pass(Arm.CONFIRM, 0, 1, pinned_pass(chosen[:CONFIRM_LIMIT], N))
        yield ControlPlan(0, 1, 0)
        yield from self._pass(Arm.P, 0, 1, wave_pass(list(range(N)), N))

    def _schedule(self, plan: PassPlan) -> PassSchedule:
        n_items = len(self._items)
        if plan.arm is not Arm.C:
            return serial_schedule(plan.arm, n_items, N)
        if plan.ordering is Ordering.BY_LENGTH:
            return length_schedule([TOKENS] * n_items, N, 3, plan.pass_index)
        return seeded_schedule(n_items, N, 3, plan.pass_index)

    def _pass(
        self, arm: Arm, index: int, lifetime: int, schedule: PassSchedule
    ) -> Iterator[Record]:
        yield PassStart(arm, index, lifetime, schedule, self._counters())
        if schedule.kind is DispatchKind.SATURATE:
            yield from self._saturated(arm, index, schedule)
        else:
            yield from self._in_turn(arm, index, schedule)
        samples = None if schedule.kind is DispatchKind.SERIAL else SlotSamples(9, schedule.lanes)
        yield PassEnd(arm, index, self._counters(), samples, "no log was read")

    def _in_turn(self, arm: Arm, index: int, schedule: PassSchedule) -> Iterator[Record]:
        entries = schedule.entries()
        for wave, group in enumerate(schedule.groups):
            self._decodes += TOKENS
            ended = self._clock + TOKENS * TOKEN_S
            for _ in group:
                entry = next(entries)
                lane = entry.lane if entry.lane is not None else 0
                yield from self._trial(arm, index, entry, lane, (self._clock, ended))
            self._clock = ended + TOKEN_S
            if schedule.kind is DispatchKind.WAVES:
                yield WaveEnd(arm, index, wave, self._counters())

    def _saturated(self, arm: Arm, index: int, schedule: PassSchedule) -> Iterator[Record]:
        """Lanes that start one after the other, each taking the next entry when it is free."""
        step = TOKENS * TOKEN_S / N
        for place, entry in enumerate(schedule.entries()):
            begun = self._clock + place * step
            yield from self._trial(arm, index, entry, place % N, (begun, begun + N * step * 0.999))
        self._clock += (schedule.n_requests + N) * step
        self._decodes += -(-schedule.n_requests * TOKENS // N)

    def _trial(
        self, arm: Arm, index: int, entry: Entry, lane: int, span: tuple[float, float]
    ) -> Iterator[Record]:
        item = self._items[entry.item]
        planted = arm is Arm.P and entry.item == 0
        body = self._bodies[entry.item]
        if planted:
            body = build_body(item, SAMPLING, ban_token(1)).sha256
        result = self._result(arm, index, entry, planted)
        scored = None
        if isinstance(result, Completion):
            answer = result.text.rsplit(" ", 1)[-1]
            scored = Scored(
                answer, item.expected_answer, "ok", float(answer == item.expected_answer), True
            )
        trial = Trial(
            TrialKey(arm, index, entry.item, entry.occurrence),
            item.id,
            lane,
            entry.wave,
            body,
            *span,
            result,
            scored,
            planted,
        )
        self._n_trials += 1
        if isinstance(result, Completion):
            self._generated += result.completion_tokens or 0
        yield trial
        if isinstance(result, Failure):
            yield Event("lost_trial", f"{item.id}: {result.detail}", arm, index)
        elif arm is Arm.A:
            self._reference[entry.item] = trial
        elif arm is Arm.C and result is not self._answers[entry.item]:
            diff = compare_trials(self._reference[entry.item], trial)
            if diff.score_divergent or diff.token_divergent:
                self._divergent.setdefault((entry.item, lane))

    def _result(self, arm: Arm, index: int, entry: Entry, planted: bool) -> Completion | Failure:
        if planted:
            return _completion(entry.item, 0, "planted")
        faults, rng = self._faults, self._rng
        if arm is Arm.C and faults.lost and rng.random() < faults.lost:
            return Failure(FailureKind.TIMEOUT, "no answer within 600 s")
        if arm is Arm.C and faults.divergent and rng.random() < faults.divergent:
            return _completion(entry.item, rng.randrange(TOKENS), f"{index}/{entry.occurrence}")
        return self._answers[entry.item]

    def _counters(self) -> Counters:
        return Counters(self._decodes, self._generated, None)

    def _header(self) -> Header:
        zeros = "0" * 64
        return Header(
            schema=EVIDENCE_SCHEMA,
            rules_version=RULES_VERSION,
            source=Source.MOCK,
            ts_utc="2026-01-01T00:00:00Z",
            cell=Cell("synthetic", CTX, N, "f16", "f16", False, 512, (), {}),
            plan=Plan(SAMPLING, self._passes, 3, CONFIRM_LIMIT, None),
            subject=Subject(
                "synthetic", zeros, "b1", ModelFacts("synthetic.gguf", 1, zeros, "computed")
            ),
            observer=Observer("bench", "3", "synthetic", "synthetic", None, None),
            workset=WorkSetRecord("synthetic.jsonl", items_sha256(self._items), self._items),
            scorer=ScorerInfo("last_word", zeros, {}),
        )


def _start(index: int, parallel: int, identity: Identity) -> LifetimeStart:
    return LifetimeStart(
        index=index,
        parallel=parallel,
        n_ctx=CTX,
        argv=("synthetic", "--parallel", str(parallel)),
        omitted_flags=(),
        identity=identity,
        key_enforced=True,
        socket_owned=True,
        system_info=None,
        executable_sha256=None,
        libraries={},
        ts=0.0,
    )
