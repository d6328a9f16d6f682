"""Sections of the certificate that are worked out rather than copied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.facts import Facts
from batch_invariance.invariance_diff.gates import Examined, GateResult
from batch_invariance.invariance_diff.model import Arm, Outcome, Verdict
from batch_invariance.invariance_diff.proof import covered
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.stats import exact_zero_bound, median, rule_of_three
from batch_invariance.invariance_diff.tracker import PassFacts

OWN_CELL = (
    "One cell: this model file, context, N, server build, flags, work-set and schedule, "
    "on this machine, in these server lifetimes. It says nothing about any other."
)
ENDPOINT_CELL = (
    "One endpoint as it was found: this server under this address, model name, N, work-set and "
    "schedule, at this time. Its flags, weights and machine are not known. It says nothing about "
    "any other, or about this one after a restart."
)
CLOCK_STEP_S = 1e-6
"""No rate is given over less time than this."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How large a divergence rate the run could have missed; None where a divergence was seen.

    `n_hot_trials` are scored C trials proved co-batched. `prompt_rate_upper_bound_95` is over
    distinct prompts and is the bound to quote: repeats of a prompt are not independent. All hold
    for this fixed set, horizon and server lifetime.
    """

    n_hot_trials: int
    n_hot_prompts: int
    n_ac_divergent: int
    rate_upper_bound_95: float | None
    rate_upper_bound_95_exact: float | None
    prompt_rate_upper_bound_95: float | None


@dataclass(frozen=True, slots=True)
class ValidFor:
    """The conditions the verdict is tied to."""

    model: str
    ctx: int
    dispatch_n: int
    temperature: float
    kv_type_k: str
    kv_type_v: str
    kv_unified: bool | None
    server_flags: tuple[str, ...]
    environment: Mapping[str, str]
    cache_prompt: bool | None
    slots: str
    schedule: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromotionScope:
    """Where the verdict holds. It generalises to nothing else."""

    valid_for: ValidFor
    generalizes: bool
    note: str
    tested_model_looks_moe: bool | None


@dataclass(frozen=True, slots=True)
class Claims:
    """What may be said: true, false, or None where nothing proves it either way."""

    score: bool | None
    token: bool | None
    logprob_bits: bool | None


@dataclass(frozen=True, slots=True)
class Horizon:
    """Token positions compared in co-batched trials: over how many ids, in all, and per id."""

    n_ids: int
    total: int
    shortest: int
    median: float | None
    longest: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second of wall time, serial (A and A2) and concurrent (C): generated ones, and
    prompt tokens over the same time. `speedup` is of the generated ones: to stay serial makes the
    work take that many times as long."""

    serial_tokens_per_s: float | None
    concurrent_tokens_per_s: float | None
    speedup: float | None
    serial_prompt_tokens_per_s: float | None
    concurrent_prompt_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Controls:
    """The positive control, and the confirm trials: wanted, done, and diverging."""

    planted_id: str | None
    banned_token: int | None
    token_sensitive: bool | None
    score_sensitive: bool | None
    confirm_wanted: int
    confirm_done: int
    confirm_divergent: int


@dataclass(frozen=True, slots=True)
class Row:
    """One item of the work-set. `proved_shared_decodes` of `own_decodes` is the best proof among
    its C trials, by `witness` (None where nothing is proved); `content_sha` digests A's answer,
    `score` is A's, `mean_score_c` the mean over its scored C trials."""

    id: str
    family: str | None
    fill: float | None
    content_sha: str | None
    score: float | None
    mean_score_c: float | None
    n_score_changed: int
    n_c_compared: int
    n_c_divergent: int
    n_c_co_batched: int
    proved_shared_decodes: int
    own_decodes: int
    witness: str | None
    covered: bool


def sensitivity_of(examined: Examined) -> Sensitivity:
    """The bounds after zero divergences; see `stats` for their sources."""
    facts, coverage = examined.facts, examined.coverage
    ac = facts.pairs["AC"]
    clean = ac.passed and not ac.per_id
    trials, prompts = coverage.n_hot_trials, coverage.n_bodies
    return Sensitivity(
        n_hot_trials=trials,
        n_hot_prompts=prompts,
        n_ac_divergent=facts.n_c_divergent,
        rate_upper_bound_95=rule_of_three(trials) if clean else None,
        rate_upper_bound_95_exact=exact_zero_bound(trials, rules.CONFIDENCE) if clean else None,
        prompt_rate_upper_bound_95=exact_zero_bound(prompts, rules.CONFIDENCE) if clean else None,
    )


def scope_of(header: Header) -> PromotionScope:
    """What the verdict is tied to; mixture-of-experts comes from the model's own header."""
    cell, dialect = header.cell, header.plan.sampling.dialect
    experts = header.subject.model.expert_count
    return PromotionScope(
        valid_for=ValidFor(
            model=cell.model,
            ctx=cell.ctx,
            dispatch_n=cell.dispatch_n,
            temperature=0.0,
            kv_type_k=cell.kv_type_k,
            kv_type_v=cell.kv_type_v,
            kv_unified=cell.kv_unified,
            server_flags=cell.server_flags,
            environment=cell.environment,
            cache_prompt=False if dialect is None or "cache_prompt" in dialect.stated else None,
            slots="pinned" if dialect is None or dialect.pins_slots else "as the server assigns",
            schedule=tuple(sorted({p.kind.value for p in header.plan.passes if p.arm is Arm.C})),
        ),
        generalizes=False,
        note=OWN_CELL if dialect is None else ENDPOINT_CELL,
        tested_model_looks_moe=None if experts is None else experts > 0,
    )


def claims_of(examined: Examined, results: tuple[GateResult, ...], verdict: Verdict) -> Claims:
    """The three claims, each from its own gate; drift is judged armed or not.

    An UNVERIFIED run has proved no equality, so nothing is claimed true of it.
    """
    outcome = {r.gate: r.outcome for r in results}
    drift = examined.facts.pairs["AC"].logit_drift
    bits: bool | None = None
    if drift.n_moved:
        bits = False
    elif drift.n_trials and not drift.n_unknown and outcome["tokens"] is Outcome.PASS:
        bits = True
    proved = verdict is not Verdict.UNVERIFIED

    def claim(value: bool | None) -> bool | None:
        return value if proved or value is False else None

    said = {Outcome.PASS: True, Outcome.FAIL: False}
    score, token = said.get(outcome["F0_score"]), said.get(outcome["tokens"])
    return Claims(claim(score), claim(token), claim(bits))


def horizon_of(examined: Examined) -> Horizon:
    """How many token positions were compared, over the covered ids."""
    spans = [item.horizon for item in examined.facts.items if covered(item)]
    return Horizon(
        len(spans), sum(spans), min(spans, default=0), median(spans), max(spans, default=0)
    )


def throughput_of(facts: Facts) -> Throughput:
    """Tokens over the time from a pass's first dispatch to its last completion."""

    def rate(arms: tuple[Arm, ...], tokens: Callable[[PassFacts], int]) -> float | None:
        chosen = [p for p in facts.passes if p.arm in arms]
        # `sum` of floats rounds differently from Python 3.12 on.
        seconds = math.fsum(p.seconds for p in chosen)
        return sum(map(tokens, chosen)) / seconds if seconds >= CLOCK_STEP_S else None

    def generated(p: PassFacts) -> int:
        return p.tokens

    def read(p: PassFacts) -> int:
        return p.prompt_tokens

    one_slot = (Arm.A, Arm.A2)
    serial, concurrent = rate(one_slot, generated), rate((Arm.C,), generated)
    speedup = concurrent / serial if serial and concurrent else None
    return Throughput(serial, concurrent, speedup, rate(one_slot, read), rate((Arm.C,), read))


def controls_of(facts: Facts) -> Controls:
    """What the controls of the run showed."""
    plan = facts.control.plan
    return Controls(
        planted_id=None if plan is None else facts.header.workset.items[plan.item].id,
        banned_token=None if plan is None else plan.banned_token,
        token_sensitive=facts.control.token_seen,
        score_sensitive=facts.control.score_seen,
        confirm_wanted=facts.confirm_wanted,
        confirm_done=facts.confirm_done,
        confirm_divergent=facts.confirm_divergent,
    )


def rows_of(examined: Examined) -> tuple[Row, ...]:
    """One row per item, in work-set order."""
    facts = examined.facts
    rows = []
    for i, (item, seen) in enumerate(zip(facts.header.workset.items, facts.items, strict=True)):
        rows.append(
            Row(
                id=item.id,
                family=item.family,
                fill=item.fill,
                content_sha=facts.content_a[i],
                score=facts.score_a[i],
                mean_score_c=seen.score_sum / seen.n_scored if seen.n_scored else None,
                n_score_changed=seen.n_score_changed,
                n_c_compared=seen.n_compared,
                n_c_divergent=seen.n_divergent,
                n_c_co_batched=seen.n_co_batched,
                proved_shared_decodes=seen.shared,
                own_decodes=seen.own,
                witness=seen.witness,
                covered=covered(seen),
            )
        )
    return tuple(rows)
