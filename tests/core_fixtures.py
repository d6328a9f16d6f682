"""Evidence for the tests of the pure core: changed, re-chained, and made up without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.certificate import Certificate, certify
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.evidence import EvidenceEncoder, EvidenceReader
from batch_invariance.invariance_diff.facts import Facts
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import (
    Arm,
    Completion,
    Failure,
    FailureKind,
    Item,
    Message,
    Outcome,
    Scored,
    ScorerInfo,
    Source,
    Trial,
    TrialKey,
    Verdict,
)
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids
from batch_invariance.invariance_diff.plan import plan_passes, serial_schedule
from batch_invariance.invariance_diff.records import (
    Cell,
    ControlPlan,
    Counters,
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
from batch_invariance.invariance_diff.schedule import (
    DispatchKind,
    Entry,
    Ordering,
    PassSchedule,
    concurrent_pass,
    order_by_length,
    pass_order,
    pinned_pass,
    wave_pass,
)
from batch_invariance.invariance_diff.workset import items_sha256

EVIDENCE_NAME = "toy__ctx512__N4.evidence.jsonl"
SEED = 7
NO_LOG = "no log was read"

Records = tuple[Record, ...]
Change = Callable[[Records], Records]

SUBJECT = Subject(
    "llama-server",
    "a" * 64,
    "version: 10068 (abcdef0)",
    ModelFacts("mock-model.gguf", 1234, "b" * 64, "computed", "llama", expert_count=0),
)
SCORER = ScorerInfo("exact_match", "c" * 64, {})


def encode(records: Iterable[Record]) -> list[bytes]:
    """The lines of an evidence file that holds these records, its chain right."""
    encoder = EvidenceEncoder()
    return [encoder.encode(record) for record in records]


def decode(lines: Iterable[bytes]) -> Records:
    return tuple(EvidenceReader(lines))


def recertify(records: Iterable[Record]) -> Certificate:
    return certify(encode(records), EVIDENCE_NAME)


def remeasure(records: Iterable[Record]) -> Facts:
    return measure(decode(encode(records)))


def mutate(records: Records, fn: Callable[[Record], Record | None]) -> Records:
    """Every record through `fn`, None drops it. Fails where nothing changed."""
    out = tuple(new for old in records if (new := fn(old)) is not None)
    # Compared as text, because 0 == 0.0 here and not in the evidence.
    assert repr(out) != repr(records), "the change changed nothing"
    return out


def recount(records: Records) -> Records:
    """The footer's count of trials set right again after trials were added or dropped."""
    n = sum(isinstance(r, Trial) for r in records)
    return tuple(replace(r, n_trials=n) if isinstance(r, Footer) else r for r in records)


def outcomes(certificate: Certificate) -> dict[str, Outcome]:
    return {row.gate: row.outcome for row in certificate.gates}


def departures(certificate: Certificate) -> dict[str, Outcome]:
    """The gates that neither pass nor are without application."""
    fine = (Outcome.PASS, Outcome.NOT_APPLICABLE)
    return {gate: o for gate, o in outcomes(certificate).items() if o not in fine}


def reason(certificate: Certificate, gate: str) -> str | None:
    return next(row.reason for row in certificate.gates if row.gate == gate)


def measured(certificate: Certificate, gate: str) -> str:
    return next(row.measured for row in certificate.gates if row.gate == gate)


# Choosing trials and changing them.


def in_arm(arm: Arm, pass_index: int | None = None, item: int | None = None) -> Any:
    """A predicate over trials."""

    def chosen(trial: Trial) -> bool:
        key = trial.key
        return (
            key.arm is arm
            and pass_index in (None, key.pass_index)
            and item in (None, key.item)
            and (item is None or key.occurrence == 0)
        )

    return chosen


def on_trials(where: Callable[[Trial], bool], fn: Callable[[Trial], Trial | None]) -> Change:
    """Changes (or, with None, drops) the trials that `where` chooses."""
    return lambda records: mutate(
        records, lambda r: fn(r) if isinstance(r, Trial) and where(r) else r
    )


def with_result(**changes: object) -> Callable[[Trial], Trial]:
    def changed(trial: Trial) -> Trial:
        assert isinstance(trial.result, Completion)
        return replace(trial, result=replace(trial.result, **changes))  # type: ignore[arg-type]

    return changed


def with_scored(**changes: object) -> Callable[[Trial], Trial]:
    def changed(trial: Trial) -> Trial:
        assert trial.scored is not None
        return replace(trial, scored=replace(trial.scored, **changes))  # type: ignore[arg-type]

    return changed


def lost(kind: FailureKind = FailureKind.TIMEOUT, status: int | None = None) -> Any:
    return lambda trial: replace(trial, result=Failure(kind, "made up", status), scored=None)


def on_header(fn: Callable[[Header], Header]) -> Change:
    return lambda records: mutate(records, lambda r: fn(r) if isinstance(r, Header) else r)


def on_cell(**changes: object) -> Change:
    return on_header(lambda h: replace(h, cell=replace(h.cell, **changes)))  # type: ignore[arg-type]


def on_plan(**changes: object) -> Change:
    return on_header(lambda h: replace(h, plan=replace(h.plan, **changes)))  # type: ignore[arg-type]


def on_kind(cls: type, fn: Callable[[Any], Record | None]) -> Change:
    """Changes every record of one kind."""
    return lambda records: mutate(records, lambda r: fn(r) if isinstance(r, cls) else r)


def then(*changes: Change) -> Change:
    """One change after the other."""

    def all_of(records: Records) -> Records:
        for change in changes:
            records = change(records)
        return records

    return all_of


def first(records: Records, cls: type, **wanted: object) -> int:
    """Position of the first record of a kind with these attributes."""
    for position, record in enumerate(records):
        if isinstance(record, cls) and all(getattr(record, k) == v for k, v in wanted.items()):
            return position
    raise AssertionError(f"no {cls.__name__} with {wanted}")


def pass_span(records: Records, arm: Arm, pass_index: int = 0) -> tuple[int, int]:
    """Positions of a pass's start and of what follows its end."""
    start = first(records, PassStart, arm=arm, pass_index=pass_index)
    return start, first(records, PassEnd, arm=arm, pass_index=pass_index) + 1


def without_pass(arm: Arm, *pass_indexes: int, planned: bool = False) -> Change:
    """Takes passes out of the evidence, and out of the plan unless `planned`."""

    def cut(records: Records) -> Records:
        for index in pass_indexes or (0,):
            start, stop = pass_span(records, arm, index)
            records = records[:start] + records[stop:]
        if planned:
            return recount(records)
        header = records[0]
        assert isinstance(header, Header)
        gone = {(arm, index) for index in pass_indexes or (0,)}
        passes = tuple(p for p in header.plan.passes if (p.arm, p.pass_index) not in gone)
        header = replace(header, plan=replace(header.plan, passes=passes))
        return recount((header, *records[1:]))

    return cut


def shift_decodes(extra: Callable[[Record], int]) -> Change:
    """Has the server count `extra(record)` more forward passes just before that record, and so in
    every later reading of the same launch."""

    def shifted(records: Records) -> Records:
        total, out = 0, []
        for record in records:
            if isinstance(record, LifetimeStart):
                total = 0
            if isinstance(record, (PassStart, WaveEnd, PassEnd)):
                total += extra(record)
                counters = record.counters
                assert counters.decode_total is not None
                counters = replace(counters, decode_total=counters.decode_total + total)
                record = replace(record, counters=counters)
            out.append(record)
        assert tuple(out) != records
        return tuple(out)

    return shifted


def at_end_of(arm: Arm, pass_index: int, extra: int) -> Callable[[Record], int]:
    """For `shift_decodes`: so many more forward passes in one pass."""
    return lambda r: (
        extra if isinstance(r, PassEnd) and (r.arm, r.pass_index) == (arm, pass_index) else 0
    )


def count_tokens(records: Records) -> Records:
    """Has the server's counters of tokens say what the trials say, launch by launch."""
    generated = prompts = 0
    out: list[Record] = []
    for record in records:
        if isinstance(record, LifetimeStart):
            generated = prompts = 0
        elif isinstance(record, Trial) and isinstance(record.result, Completion):
            generated += record.result.completion_tokens or 0
            prompts += record.result.prompt_tokens or 0
        elif isinstance(record, (PassStart, WaveEnd, PassEnd)):
            counters = replace(record.counters, predicted_total=generated, prompt_total=prompts)
            record = replace(record, counters=counters)
        out.append(record)
    return tuple(out)


def confirmed(*pairs: tuple[int, int], change: Callable[[Trial], Trial] | None = None) -> Change:
    """Adds the confirm pass of these (item, lane): the answers of arm B, or of A2 on a server of
    someone else, once more, alone."""

    def added(records: Records) -> Records:
        header = records[0]
        assert isinstance(header, Header)
        place = first(records, ControlPlan)
        before = max(i for i in range(place) if isinstance(records[i], PassEnd))
        end = records[before]
        assert isinstance(end, PassEnd)
        schedule = pinned_pass(pairs, header.cell.dispatch_n)
        lives = [r.index for r in records if isinstance(r, LifetimeStart)]
        out: list[Record] = [PassStart(Arm.CONFIRM, 0, lives[-1], schedule, end.counters)]
        tokens = 0
        alone = Arm.B if header.endpoint is None else Arm.A2
        for entry in schedule.entries():
            model = records[first_trial(records, in_arm(alone, 0, entry.item))]
            assert isinstance(model, Trial)
            assert entry.lane is not None
            key = TrialKey(Arm.CONFIRM, 0, entry.item, entry.occurrence)
            trial = replace(model, key=key, lane=entry.lane)
            assert isinstance(model.result, Completion)
            tokens += model.result.completion_tokens or 0
            out.append(trial if change is None else change(trial))
        out.append(PassEnd(Arm.CONFIRM, 0, end.counters, None, NO_LOG))
        joined = recount(records[:place] + tuple(out) + records[place:])
        if end.counters.decode_total is not None:
            joined = shift_decodes(at_end_of(Arm.CONFIRM, 0, tokens))(joined)
        return count_tokens(joined)

    return added


def first_trial(records: Records, where: Callable[[Trial], bool]) -> int:
    return next(i for i, r in enumerate(records) if isinstance(r, Trial) and where(r))


def trial_of(records: Records, where: Callable[[Trial], bool]) -> Trial:
    record = records[first_trial(records, where)]
    assert isinstance(record, Trial)
    return record


# Evidence without a server: an ideal run, worked out.


def a_completion(ids: Sequence[int], text: str | None = None, **changes: Any) -> Completion:
    """A complete answer of these tokens with made-up logprobs that repeat."""
    logprobs = [-0.125 * (1 + (token + i) % 7) for i, token in enumerate(ids)]
    tops = [v for p in logprobs for v in (p, p - 1.0)]
    values: dict[str, Any] = {
        "text": " ".join(map(str, ids)) if text is None else text,
        "finish_reason": "length",
        "token_ids": pack_ids(ids),
        "logprobs": pack_floats(logprobs),
        "top_ids": pack_ids([t for token in ids for t in (token, token + 1)]),
        "top_logprobs": pack_floats(tops),
        "prompt_tokens": 40,
        "completion_tokens": len(ids),
        "cache_n": 0,
        "truncated": False,
    }
    return Completion(**{**values, **changes})


def a_scored(**changes: Any) -> Scored:
    values: dict[str, Any] = {
        "extracted_answer": "x",
        "expected_answer": "x",
        "failure_mode": "ok",
        "score": 1.0,
        "passed": True,
    }
    return Scored(**{**values, **changes})


def a_trial(
    result: Completion | Failure,
    scored: Scored | None = None,
    key: TrialKey | None = None,
    **changes: Any,
) -> Trial:
    key = key or TrialKey(Arm.A, 0, 0)
    values: dict[str, Any] = {
        "item_id": f"i{key.item}",
        "lane": 0,
        "wave": None,
        "request_sha256": "d" * 64,
        "dispatch_ts": 1.0,
        "complete_ts": 2.0,
    }
    if isinstance(result, Completion):
        scored = scored or a_scored()
    return Trial(key=key, result=result, scored=scored, **{**values, **changes})


@dataclass
class Ideal:
    """An ideal run: all of a wave starts in one forward pass and every one yields a token.

    `lengths`: tokens per item. `wave_decodes` says how many forward passes a wave of these
    lengths takes, `chunks` how many further ones each prompt does. `bodies`: distinct prompts.
    """

    lengths: Sequence[int]
    n: int = 4
    passes: int = 4
    bodies: int | None = None
    chunks: int = 0
    wave_decodes: Callable[[Sequence[int]], int] = max
    slots: SlotSamples | None = None
    prompt_tokens: int = 40
    _decodes: int = field(default=0, init=False)
    _clock: float = field(default=0.0, init=False)

    def records(self) -> Records:
        header = self._header()
        out: list[Record] = [header]
        for lifetime, arms in enumerate(((Arm.A, Arm.A2), (Arm.B, Arm.C))):
            parallel = 1 if lifetime == 0 else self.n
            self._decodes = 0
            out.append(a_start(lifetime, parallel))
            self._warm_up(out, lifetime, parallel)
            for plan in header.plan.passes:
                if plan.arm in arms:
                    self._pass(out, plan.arm, plan.pass_index, lifetime, self._schedule(plan))
            if lifetime == 1:
                self._control(out)
            out.append(LifetimeEnd(lifetime, _identity(parallel), ExitInfo(0, None, ""), 1.0))
        out.append(Footer("complete", sum(isinstance(r, Trial) for r in out), self._clock))
        return count_tokens(tuple(out))

    def items(self) -> tuple[Item, ...]:
        n_bodies = self.bodies or len(self.lengths)
        return tuple(
            Item(f"i{i}", (Message("user", f"prompt {i % n_bodies}"),), "x")
            for i in range(len(self.lengths))
        )

    def sampling(self) -> Sampling:
        return Sampling(0, max(self.lengths), 2)

    def _header(self) -> Header:
        items = self.items()
        plan = Plan(
            sampling=self.sampling(),
            passes=plan_passes(len(items), self.n, self.passes, SEED),
            schedule_seed=SEED,
            confirm_limit=rules.DEFAULT_CONFIRM_LIMIT,
            logit_drift=None,
        )
        return Header(
            schema=rules.EVIDENCE_SCHEMA,
            rules_version=rules.RULES_VERSION,
            source=Source.LIVE,
            ts_utc="2026-01-02T03:04:05Z",
            cell=Cell("toy", 512, self.n, "f16", "f16", False, 512, (), {}),
            plan=plan,
            subject=SUBJECT,
            observer=Observer("tool", "3.11", "Linux", "x86_64", None, 2),
            workset=WorkSetRecord("made-up.json", items_sha256(items), items),
            scorer=SCORER,
        )

    def _schedule(self, plan: PassPlan) -> PassSchedule:
        if plan.arm is not Arm.C:
            return serial_schedule(plan.arm, len(self.lengths), self.n)
        order = pass_order(len(self.lengths), SEED, plan.pass_index)
        if plan.ordering is Ordering.BY_LENGTH:
            order = order_by_length(self.lengths, order)
        return concurrent_pass(order, self.n, plan.kind)

    def _counters(self) -> Counters:
        return Counters(self._decodes, None, None)

    def _ids(self, item: int) -> list[int]:
        return [(item * 31 + place * 7) % 900 + 3 for place in range(self.lengths[item])]

    def _trial(self, arm: Arm, index: int, entry: Entry, lane: int, span: float) -> Trial:
        item = self.items()[entry.item]
        body = build_body(item, self.sampling())
        return Trial(
            key=TrialKey(arm, index, entry.item, entry.occurrence),
            item_id=item.id,
            lane=lane,
            wave=entry.wave,
            request_sha256=body.sha256,
            dispatch_ts=self._clock,
            complete_ts=self._clock + span,
            result=a_completion(self._ids(entry.item), prompt_tokens=self.prompt_tokens),
            scored=a_scored(),
        )

    def _pass(
        self, out: list[Record], arm: Arm, index: int, lifetime: int, schedule: PassSchedule
    ) -> None:
        out.append(PassStart(arm, index, lifetime, schedule, self._counters()))
        if schedule.kind is DispatchKind.SATURATE:
            self._saturated(out, arm, index, schedule)
        else:
            self._grouped(out, arm, index, schedule)
        slots = self.slots if arm is Arm.C else None
        out.append(PassEnd(arm, index, self._counters(), slots, NO_LOG))

    def _grouped(self, out: list[Record], arm: Arm, index: int, schedule: PassSchedule) -> None:
        groups: dict[int, list[Entry]] = {}
        for place, entry in enumerate(schedule.entries()):
            groups.setdefault(place if entry.wave is None else entry.wave, []).append(entry)
        for number, group in groups.items():
            lengths = [self.lengths[e.item] for e in group]
            decodes = lengths[0] if len(group) == 1 else self.wave_decodes(lengths)
            for entry, own in zip(group, lengths, strict=True):
                assert entry.lane is not None
                out.append(self._trial(arm, index, entry, entry.lane, own / 1000))
            self._decodes += decodes + self.chunks * len(group)
            self._clock += decodes / 1000
            if schedule.kind is DispatchKind.WAVES:
                out.append(WaveEnd(arm, index, number, self._counters()))

    def _saturated(self, out: list[Record], arm: Arm, index: int, schedule: PassSchedule) -> None:
        """Lane by lane in turn, each request as long as the longest: a plain staircase."""
        longest = max(self.lengths) / 1000
        for place, entry in enumerate(schedule.entries()):
            out.append(self._trial(arm, index, entry, place % self.n, 0.999 * longest))
            self._clock += longest / self.n
        total = sum(self.lengths) + self.chunks * len(self.lengths)
        self._decodes += max(max(self.lengths), -(-total // self.n))
        self._clock += longest

    def _warm_up(self, out: list[Record], lifetime: int, parallel: int) -> None:
        schedule = wave_pass([lane % len(self.lengths) for lane in range(parallel)], parallel)
        out.append(PassStart(Arm.WARMUP, lifetime, lifetime, schedule, self._counters()))
        for entry in schedule.entries():
            assert entry.lane is not None
            trial = self._trial(Arm.WARMUP, lifetime, entry, entry.lane, 0.008)
            out.append(replace(trial, result=a_completion(range(8))))
        self._decodes += 8
        out.append(WaveEnd(Arm.WARMUP, lifetime, 0, self._counters()))
        out.append(PassEnd(Arm.WARMUP, lifetime, self._counters(), None, NO_LOG))
        self._clock += 0.008

    def _control(self, out: list[Record], lifetime: int = 1) -> None:
        banned = self._ids(0)[0]
        out.append(ControlPlan(0, banned, 0))
        schedule = wave_pass([i % len(self.lengths) for i in range(self.n)], self.n)
        start = len(out)
        self._pass(out, Arm.P, 0, lifetime, schedule)
        place = next(i for i in range(start, len(out)) if isinstance(out[i], Trial))
        planted = out[place]
        assert isinstance(planted, Trial)
        assert planted.key.item == 0
        sampling = self.sampling()
        body = build_body(self.items()[0], sampling, ban_token(banned, sampling.dialect))
        ids = [token + 1 for token in self._ids(0)]
        out[place] = replace(
            planted,
            request_sha256=body.sha256,
            perturbed=True,
            result=a_completion(ids, prompt_tokens=self.prompt_tokens),
        )


def _identity(parallel: int) -> Identity:
    return Identity(parallel, 512, "/models/mock-model.gguf", "b10068", sha256_hex(b"template"))


def a_start(index: int, parallel: int) -> LifetimeStart:
    return LifetimeStart(
        index=index,
        parallel=parallel,
        n_ctx=512,
        argv=("llama-server", "--parallel", str(parallel)),
        omitted_flags=(),
        identity=_identity(parallel),
        key_enforced=True,
        socket_owned=True,
        system_info=None,
        executable_sha256="f" * 64,
        libraries={"libggml.so": "1" * 64},
        ts=0.0,
    )


COLOURS = {
    "F0_score": Verdict.RED,
    "completeness": Verdict.UNVERIFIED,
    "lost": Verdict.UNVERIFIED,
    "F1_overlap": Verdict.UNVERIFIED,
    "F2_completion_floor": Verdict.UNVERIFIED,
    "F3_coverage": Verdict.UNVERIFIED,
    "F4_logit_drift": Verdict.AMBER,
    "F5_provenance": None,
    "isolation": Verdict.UNVERIFIED,
    "identity": Verdict.UNVERIFIED,
    "control_b": Verdict.AMBER,
    "reference": Verdict.AMBER,
    "tokens": Verdict.AMBER,
    "positive_control": Verdict.UNVERIFIED,
    "sample": Verdict.UNVERIFIED,
}
"""What the design's table says a FAIL of each gate costs."""
