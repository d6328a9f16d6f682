"""The gates: one named condition each, evaluated over `Facts`, in one table.

A gate says what was measured and what is required. FAIL gives the gate's colour, UNKNOWN gives
UNVERIFIED, and NOT_APPLICABLE stands only where the gate's own condition says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.endpoint import TokenNames
from batch_invariance.invariance_diff.facts import Facts
from batch_invariance.invariance_diff.gates_server import (
    check_completeness,
    check_identity,
    check_isolation,
    check_lost,
)
from batch_invariance.invariance_diff.model import Arm, Outcome, Source, Verdict
from batch_invariance.invariance_diff.pairs import PairReport
from batch_invariance.invariance_diff.proof import (
    CLIENT_INTERVALS,
    Coverage,
    Overlap,
    coverage_of,
    overlap_of,
)
from batch_invariance.invariance_diff.reading import (
    Reading,
    failed,
    not_applicable,
    passed,
    unknown,
)

OK_MODE = "ok"


@dataclass(frozen=True, slots=True)
class GateResult:
    """One row of the certificate's gate table."""

    gate: str
    outcome: Outcome
    measured: str
    required: str
    colour_on_fail: Verdict | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Examined:
    """The facts together with what was proved of overlap and coverage."""

    facts: Facts
    overlap: Overlap
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class Gate:
    """A row of the table: its name, what it requires, the colour of a FAIL (None: it only bars
    promotion), and the check."""

    name: str
    required: str
    colour: Verdict | None
    check: Callable[[Examined], Reading]


def _score(e: Examined) -> Reading:
    ac = e.facts.pairs["AC"]
    if ac.n_divergent:
        return failed(f"{ac.n_divergent} ids differ: {_some(ac.divergent_ids)}", "score_divergence")
    if ac.n_compared == 0:
        return unknown("no trial of C could be compared with A", "nothing_compared")
    if e.facts.isolation.prompt_count_unknown:
        n = e.facts.isolation.prompt_count_unknown
        return unknown(f"{n} responses do not count their prompt", "prompt_tokens_unknown")
    return passed(f"{ac.n_compared} trials of {ac.n_ids_compared} ids equal")


def _overlap(e: Examined) -> Reading:
    o = e.overlap
    n = e.facts.header.cell.dispatch_n
    text = (
        f"client depth {o.client_max_overlap_depth}, server co-residency "
        f"{_or_unknown(o.server_peak_busy_slots)}, proved batch {o.tested_n} of {n} by {o.witness}"
        f"{_gauge_faults(e)}"
    )
    if o.client_max_overlap_depth < 2 or o.server_peak_busy_slots in (0, 1):
        return failed(text, "no_overlap")
    if o.server_peak_busy_slots is None:
        return unknown(text, "no_server_witness")
    if o.tested_n < n:
        return failed(text, "batch_of_n_not_proved")
    return passed(text)


def _gauge_faults(e: Examined) -> str:
    """Why polls of a gauge do not count, where nothing better does."""
    if e.overlap.witness != CLIENT_INTERVALS:
        return ""
    for p in e.facts.passes:
        if p.arm is Arm.C and p.gauge is not None and p.gauge_fault is not None:
            return f"; its gauge does not count in pass {p.pass_index}: {p.gauge_fault}"
    return ""


def _completion_floor(e: Examined) -> Reading:
    parts, worst = [], 1.0
    for arm in ("A", "C"):
        modes = e.facts.failure_modes.get(arm, {})
        total = sum(modes.values())
        if not total:
            return unknown(f"no scored trial in {arm}", "nothing_scored")
        share = modes.get(OK_MODE, 0) / total
        worst = min(worst, share)
        parts.append(f"{arm} {modes.get(OK_MODE, 0)}/{total} ok")
    text = ", ".join(parts)
    if worst < rules.MIN_OK_FRACTION:
        return failed(text, "completion_floor")
    return passed(text)


def _coverage(e: Examined) -> Reading:
    c = e.coverage
    text = f"{c.n_co_batched} of {c.n_ids} ids proved co-batched by {e.overlap.witness}"
    if c.cobatch_coverage_ok:
        return passed(text)
    if not c.attribution_certain:
        return unknown(text, "weak_witness")
    return failed(text, "coverage")


def _logit_drift(e: Examined) -> Reading:
    armed = e.facts.header.plan.logit_drift
    drift = e.facts.pairs["AC"].logit_drift
    if armed is None:
        return not_applicable("not armed")
    if drift.n_trials == 0 or drift.n_unknown:
        return unknown(f"{drift.n_unknown} trials without usable logprobs", "logprobs_unknown")
    text = f"{drift.n_trials_moved} of {drift.n_trials} trials moved, at most {drift.max_abs:.3g}"
    limit = 0.0 if armed == "bits" else float(armed)
    moved = drift.n_moved > 0 if armed == "bits" else drift.max_abs > limit
    if not moved:
        return passed(text)
    token_only = e.facts.pairs["AC"].n_token_only > 0
    return failed(text, "token_and_logit_drift" if token_only else "logit_drift")


def _provenance(e: Examined) -> Reading:
    source = e.facts.header.source
    if source is Source.LIVE:
        return passed("source live")
    return failed(f"source {source.value}", f"source_{source.value}")


def _control_b(e: Examined) -> Reading:
    if e.facts.header.source is Source.ENDPOINT:
        return not_applicable("the server is not ours")
    ab, bc, ac = (e.facts.pairs[name] for name in ("AB", "BC", "AC"))
    if ab.n_compared == 0 or bc.n_compared == 0:
        return unknown("arm B was not compared", "arm_b_missing")
    text = f"AB {_counts(ab)}, BC {_counts(bc)}"
    b_differs = not ab.passed or bool(ab.token_divergence_ids)
    unexplained = set(bc.divergent_ids + bc.token_divergence_ids) - set(
        ac.divergent_ids + ac.token_divergence_ids
    )
    if b_differs or unexplained:
        agree = ac.passed and not ac.token_divergence_ids
        return failed(text, "AC_agree_B_disagrees" if agree else "B_disagrees")
    return passed(text)


def _reference(e: Examined) -> Reading:
    aa = e.facts.pairs["AA"]
    if aa.n_compared == 0:
        return unknown("A was not repeated", "reference_missing")
    text = f"A against A2: {_counts(aa)} over {aa.n_compared} ids"
    if not aa.passed or aa.per_id:
        return failed(text, "reference_unstable")
    if aa.n_tokens_unknown:
        return unknown(text, "tokens_unknown")
    return passed(text)


def _tokens(e: Examined) -> Reading:
    ac = e.facts.pairs["AC"]
    if ac.n_compared == 0:
        return unknown("no trial of C could be compared with A", "nothing_compared")
    if ac.token_divergence_ids:
        n = len(ac.token_divergence_ids)
        reason = "token_divergence" if ac.n_divergent else "token_only"
        return failed(f"{n} ids differ: {_some(ac.token_divergence_ids)}", reason)
    if ac.n_tokens_unknown:
        return unknown(f"{ac.n_tokens_unknown} comparisons without token ids", "tokens_unknown")
    spelt = ", compared by their spelling" if _spelt(e) else ""
    return passed(f"{ac.n_compared} trials token-identical{spelt}")


def _spelt(e: Examined) -> bool:
    dialect = e.facts.header.plan.sampling.dialect
    return dialect is not None and dialect.tokens is TokenNames.SPELLING


def _control_p(e: Examined) -> Reading:
    control = e.facts.control
    if control.token_seen is None:
        return unknown("the planted change was not run", "control_missing")
    if not control.token_seen:
        return failed("the diff did not see the planted change", "control_not_seen")
    ac = e.facts.pairs["AC"]
    if control.companions_divergent and ac.passed and not ac.per_id:
        n = control.companions_divergent
        return failed(f"{n} unperturbed companions differ from A", "companions_diverged")
    scored = "seen" if control.score_seen else "not seen"
    what = "planted ban seen at token 0"
    if control.plan is not None and control.plan.banned_token is None:
        what = "another item's prompt seen by its answer"
    return passed(f"{what}; by the score: {scored}")


def _sample(e: Examined) -> Reading:
    c, passes = e.coverage, e.overlap.n_different_passes
    text = (
        f"{c.n_bodies} bodies, {c.n_tokens} co-batched tokens, "
        f"{passes} passes with different companions"
    )
    enough = (
        c.n_bodies >= rules.MIN_DISTINCT_BODIES
        and c.n_tokens >= rules.MIN_COBATCHED_TOKENS
        and passes >= rules.MIN_DIFFERENT_PASSES
    )
    return passed(text) if enough else failed(text, "sample_too_small")


def _counts(pair: PairReport) -> str:
    return f"{pair.n_divergent} score / {pair.n_token_only} token-only"


def _some(ids: tuple[str, ...], limit: int = 5) -> str:
    shown = ", ".join(ids[:limit])
    return shown + (f" and {len(ids) - limit} more" if len(ids) > limit else "")


def _or_unknown(value: int | None) -> str:
    return "unknown" if value is None else str(value)


GATES: tuple[Gate, ...] = (
    Gate("F0_score", "every invariant field equal, A against every C pass", Verdict.RED, _score),
    Gate(
        "completeness",
        "every planned trial present exactly once, footer there",
        Verdict.UNVERIFIED,
        lambda e: check_completeness(e.facts),
    ),
    Gate("lost", "no lost trial in any arm", Verdict.UNVERIFIED, lambda e: check_lost(e.facts)),
    Gate(
        "F1_overlap",
        "client depth >= 2, server co-residency >= 2, a proved batch of N",
        Verdict.UNVERIFIED,
        _overlap,
    ),
    Gate(
        "F2_completion_floor",
        f"at least {rules.MIN_OK_FRACTION:.0%} of compared trials ok in A and in C",
        Verdict.UNVERIFIED,
        _completion_floor,
    ),
    Gate(
        "F3_coverage",
        f"at least {rules.MIN_COVERAGE_FRACTION:.0%} of ids, and {rules.MIN_COVERED_IDS}, "
        "with a scored C trial proved co-batched",
        Verdict.UNVERIFIED,
        _coverage,
    ),
    Gate("F4_logit_drift", "logprobs unmoved on the common prefix", Verdict.AMBER, _logit_drift),
    Gate("F5_provenance", "source live", None, _provenance),
    Gate(
        "isolation",
        "no cache, no truncation, no speculation, serial arms shared no decode, no foreign traffic",
        Verdict.UNVERIFIED,
        lambda e: check_isolation(e.facts),
    ),
    Gate(
        "identity",
        "slots, context, model and build as asked, at start and end of each launch",
        Verdict.UNVERIFIED,
        lambda e: check_identity(e.facts),
    ),
    Gate("control_b", "AB and BC agree with AC", Verdict.AMBER, _control_b),
    Gate("reference", "A and A2 token-identical", Verdict.AMBER, _reference),
    Gate("tokens", "tokens, finish reason, reasoning, tool calls equal", Verdict.AMBER, _tokens),
    Gate("positive_control", "the diff saw the planted ban", Verdict.UNVERIFIED, _control_p),
    Gate(
        "sample",
        f"{rules.MIN_DISTINCT_BODIES} distinct bodies, {rules.MIN_COBATCHED_TOKENS} co-batched "
        f"tokens, {rules.MIN_DIFFERENT_PASSES} passes with different companions",
        Verdict.UNVERIFIED,
        _sample,
    ),
)


def examine(facts: Facts) -> Examined:
    """The facts with overlap and coverage worked out."""
    overlap = overlap_of(facts)
    return Examined(facts, overlap, coverage_of(facts, overlap))


def evaluate(examined: Examined, table: tuple[Gate, ...] = GATES) -> tuple[GateResult, ...]:
    """Every gate of the table, in its order."""
    results = []
    for gate in table:
        reading = gate.check(examined)
        results.append(
            GateResult(
                gate.name,
                reading.outcome,
                reading.measured,
                gate.required,
                gate.colour,
                reading.reason,
            )
        )
    return tuple(results)
