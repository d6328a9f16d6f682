"""The gates that ask something else of a server that someone else runs.

What cannot be proved there is UNKNOWN, and the row names what the server would have to offer. Where
a row asks for less than on a server of our own, its `required` says so.
"""

from __future__ import annotations

from dataclasses import replace

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.endpoint import (
    COUNTERS_OF,
    NO_CACHE_OF,
    SPECULATION,
    Endpoint,
)
from batch_invariance.invariance_diff.facts import SERIAL_ARMS, Facts
from batch_invariance.invariance_diff.gates import GATES, Examined, Gate
from batch_invariance.invariance_diff.gates_server import chunk_allowance
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.pairs import PairReport
from batch_invariance.invariance_diff.reading import Reading, failed, passed, unknown
from batch_invariance.invariance_diff.tracker import PassFacts

REPEATS = {"A2": "AA", "A3": "AA3"}
ANSWERED_BEFORE = "answered_before"
"""The event of an answer that bears the id of an earlier one."""


def check_reference(e: Examined) -> Reading:
    """Arm A, its repeat, and the serial arm that closes the run are token-identical."""
    facts = e.facts
    pairs = {arm: facts.pairs.get(pair) for arm, pair in REPEATS.items()}
    missing = [arm for arm, pair in pairs.items() if pair is None or pair.n_compared == 0]
    if missing:
        return unknown(f"A was not compared with {', '.join(missing)}", "reference_missing")
    found = [(arm, pair) for arm, pair in pairs.items() if pair is not None]
    text = "; ".join(f"A against {arm}: {_counts(pair)}" for arm, pair in found)
    if any(not pair.passed or pair.per_id for _, pair in found):
        return failed(text, "reference_unstable")
    if any(pair.n_tokens_unknown for _, pair in found):
        return unknown(text, "tokens_unknown")
    return passed(text)


def _counts(pair: PairReport) -> str:
    return f"{pair.n_divergent} score / {pair.n_token_only} token-only of {pair.n_ids_compared} ids"


def check_isolation(e: Examined) -> Reading:
    """Nothing but the batch can have differed; other traffic beside arm C is one more companion."""
    facts, endpoint = e.facts, e.facts.header.endpoint
    if endpoint is None:
        return unknown("the server is not described", "isolation_unknown")
    i = facts.isolation
    faults, missing = _cache(facts, endpoint)
    if i.truncated:
        faults.append(f"{i.truncated} responses ended at the context's end")
    if i.speculated:
        faults.append(f"{i.speculated} responses used speculation")
    faults += [
        f"it speculates by its {name}: {value}"
        for name, value in endpoint.said.items()
        if name.endswith(f" {SPECULATION}")
    ]
    if i.foreign_bodies:
        faults.append(f"{i.foreign_bodies} requests were not the item's one body")
    if i.truncation_unknown:
        missing.append(f"{i.truncation_unknown} responses do not say how they ended")
    more_faults, more_missing = _traffic(facts, endpoint)
    faults += more_faults
    missing += more_missing
    if faults:
        return failed("; ".join(faults), "not_isolated")
    if i.n_checked == 0:
        return unknown("no answered trial", "nothing_checked")
    if missing:
        return unknown("; ".join(missing), "isolation_unknown")
    beside = sum(tokens for _, tokens in foreign_traffic(facts))
    other = f"{beside} tokens of other traffic beside C" if beside else "no other traffic"
    return passed(f"{i.n_checked} responses, tokens add up in every pass, {other}")


def _cache(facts: Facts, endpoint: Endpoint) -> tuple[list[str], list[str]]:
    """(faults, unknowns) of prompts that came from a cache, by the answers and by the counter."""
    i = facts.isolation
    before = sum(event.what == ANSWERED_BEFORE for event in facts.events)
    if before:
        return [f"{before} answers bear the id of an earlier one, as from a cache of answers"], []
    if i.cache_used:
        return [f"{i.cache_used} responses reused a prompt cache"], []
    counted = [p.cached for p in facts.passes]
    hits = sum(n for n in counted if n is not None)
    if hits:
        return [f"{hits} prompt tokens came from a cache by the server's counter"], []
    if i.cache_unknown and (None in counted or not counted):
        hint = NO_CACHE_OF.get(endpoint.engine, "answer with usage.prompt_tokens_details")
        return [], [f"{i.cache_unknown} responses do not report their cache: {hint}"]
    return [], []


def _traffic(facts: Facts, endpoint: Endpoint) -> tuple[list[str], list[str]]:
    """(faults, unknowns): the server's counts of tokens and passes against our requests."""
    faults: list[str] = []
    uncounted: list[str] = []
    unwatched: list[str] = []
    a = next((p for p in facts.passes if p.arm is Arm.A), None)
    hint = COUNTERS_OF.get(endpoint.engine, "a counter of generated tokens at /metrics")
    for p in facts.passes:
        if p.arm is Arm.WARMUP or p.n_lost:
            continue
        name = f"arm {p.arm.value} pass {p.pass_index}"
        if p.predicted is None or not p.tokens_known:
            uncounted.append(name)
            continue
        if p.n_missing or p.n_unexpected:
            continue
        if p.predicted < p.tokens or p.impossible_waves:
            faults.append(f"{name}: the server's counters say what cannot be")
        elif p.arm in SERIAL_ARMS:
            faults += _serial_faults(p, a, name)
            if p.decodes is None and p.gauge is None:
                unwatched.append(name)
    unclear = []
    if uncounted:
        unclear.append(f"no count of generated tokens for {_names(uncounted)}: {hint}")
    if unwatched:
        unclear.append(f"nothing shows that {_names(unwatched)} ran alone: {hint}")
    return faults, unclear


def _names(passes: list[str], limit: int = 3) -> str:
    more = f" and {len(passes) - limit} more" if len(passes) > limit else ""
    return ", ".join(passes[:limit]) + more


def _serial_faults(p: PassFacts, a: PassFacts | None, name: str) -> list[str]:
    assert p.predicted is not None
    if p.predicted > p.tokens:
        more = p.predicted - p.tokens
        return [f"other traffic beside {name}: {more} tokens that no request of ours asked for"]
    faults = []
    if p.prompt_counted is not None and p.prompt_counted > p.prompt_tokens > 0:
        more = p.prompt_counted - p.prompt_tokens
        faults.append(f"other traffic beside {name}: {more} prompt tokens that are not ours")
    if p.gauge is not None and p.gauge.n_over:
        faults.append(f"{p.gauge.n_over} polls beside {name} show more than its one request")
    if p.decodes is None:
        return faults
    extra = p.decodes - p.tokens
    extra_a = None if a is None or a.decodes is None else a.decodes - a.tokens
    if extra < 0:
        faults.append(f"{name} shared {-extra} forward passes")
    elif extra > chunk_allowance(p, extra_a, max(1, a.n_planned if a is not None else 1)):
        faults.append(f"{name} took {extra} forward passes more than its requests explain")
    return faults


def foreign_traffic(facts: Facts) -> list[tuple[PassFacts, int]]:
    """Each pass beside which the server generated tokens for others, and how many."""
    return [
        (p, p.predicted - p.tokens)
        for p in facts.passes
        if p.arm is not Arm.WARMUP
        and p.predicted is not None
        and p.tokens_known
        and p.predicted > p.tokens
    ]


def changed_facts(facts: Facts) -> tuple[str, ...]:
    """What the server said of itself at one time and not, or otherwise, at another."""
    told = [record.facts for record in facts.said]
    names = sorted({name for said in told for name in said})
    return tuple(n for n in names if len({said.get(n) for said in told}) > 1)


def check_identity(e: Examined) -> Reading:
    """The server lists the model, names a version, and says the same at the end as at the start."""
    facts = e.facts
    if not facts.lifetimes:
        return unknown("no server lifetime recorded", "identity_unknown")
    faults, missing = [], []
    n = facts.header.cell.dispatch_n
    for life in facts.lifetimes:
        said = life.start.identity
        if said.total_slots is not None and said.total_slots < n:
            faults.append(f"the server has {said.total_slots} slots, N is {n}")
        if said.model is None:
            missing.append("it does not list the model (/v1/models)")
        if said.build is None:
            missing.append("it names no version (/version, /props, /info, system_fingerprint)")
        ended = {record.at_end for record in facts.said if record.lifetime == life.start.index}
        if ended != {False, True} or life.end is None or life.end.identity is None:
            missing.append("it was not asked again at the end")
        elif life.end.identity != said:
            faults.append("it changed what it says of itself while the run went on")
    if facts.ran_back:
        where = _names(facts.ran_back)
        faults.append(f"its counters ran backwards by {where}: another process or replica answers")
    if len({life.start.identity for life in facts.lifetimes}) > 1:
        faults.append("it says something else of itself in another lifetime")
    changed = changed_facts(facts)
    if changed:
        faults.append(f"it changed what it says of itself: {', '.join(changed[:4])}")
    if faults:
        return failed("; ".join(faults), "identity_mismatch")
    if missing:
        return unknown("; ".join(missing), "identity_unknown")
    build = facts.lifetimes[0].start.identity.build
    return passed(f"{build}, the same at start and end")


_REQUIRED = {
    "F1_overlap": (
        "client depth >= 2, server co-residency >= 2, a proved batch of N: by forward passes, or, "
        "where none are counted, by the scheduler's gauge, which on a server of our own would not "
        "do"
    ),
    "F3_coverage": (
        f"at least {rules.MIN_COVERAGE_FRACTION:.0%} of ids, and {rules.MIN_COVERED_IDS}, with a "
        "scored C trial proved co-batched: by forward passes, or, weaker, where none are counted, "
        f"by {rules.MIN_GAUGE_POLLS} polls of the scheduler's gauge and half of those inside it, "
        f"in a pass that took at most {rules.MAX_GAUGE_TIME:.0%} of its requests' time alone"
    ),
    "isolation": (
        "no cache, no truncation, no speculation, no other traffic beside a serial arm; beside C "
        "it counts as companions, while on a server of our own there may be none"
    ),
    "identity": (
        "the model listed and a version named, the same at the start and at the end; on a server "
        "of our own also slots, context, executable and libraries"
    ),
    "control_b": "not applicable: the server is not ours",
    "reference": "A, A2 and the closing A3 token-identical",
    "positive_control": (
        "the diff saw the planted ban, or, on a server that heeds none, another item's prompt"
    ),
}
_CHECKS = {
    "isolation": check_isolation,
    "identity": check_identity,
    "reference": check_reference,
}
ENDPOINT_GATES: tuple[Gate, ...] = tuple(
    replace(
        gate,
        required=_REQUIRED.get(gate.name, gate.required),
        check=_CHECKS.get(gate.name, gate.check),
    )
    for gate in GATES
)
"""The table for `Source.ENDPOINT`: the same rows, some of which ask something else."""


def table_of(facts: Facts) -> tuple[Gate, ...]:
    """The gates that judge a run."""
    return GATES if facts.header.endpoint is None else ENDPOINT_GATES
