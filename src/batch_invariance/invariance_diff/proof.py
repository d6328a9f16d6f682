"""What the run proves of overlap (gate F1) and of coverage (gates F3 and sample)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.facts import Facts, ItemFacts
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.request import build_body
from batch_invariance.invariance_diff.schedule import DispatchKind

DECODE_LOG = "decode_log"
DECODE_COUNT = "decode_count"
SCHEDULER_GAUGE = "scheduler_gauge"
SLOT_SAMPLES = "slot_samples"
CLIENT_INTERVALS = "client_intervals"


@dataclass(frozen=True, slots=True)
class Overlap:
    """`server_peak_busy_slots` is the most that the server shows co-resident, by slot samples or
    the log or decode counts, None without any. `tested_n` is the largest batch that is proved.
    `log_fault` says why the server's log of forward passes is not the witness of every pass."""

    client_max_overlap_depth: int
    server_peak_busy_slots: int | None
    overlap_ok: bool
    witness: str
    tested_n: int
    warmup_peak: int | None
    n_different_passes: int
    log_fault: str | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which ids have a scored C trial that is proved co-batched, and how much that compares.

    `n_bodies` and `n_tokens` count distinct request bodies and distinct (item, position) pairs of
    the covered ids. `n_missing_interval` counts ids without any answered C trial.
    """

    coverage_checked: bool
    cobatch_coverage_ok: bool
    coverage_fraction: float
    n_ids: int
    n_co_batched: int
    n_missing_interval: int
    attribution_certain: bool
    required_co_batched: int
    min_coverage_fraction: float
    uncovered_ids: tuple[str, ...]
    n_hot_trials: int
    n_bodies: int
    n_tokens: int


def overlap_of(facts: Facts) -> Overlap:
    """Works out gate F1's figures from the passes."""
    concurrent = [p for p in facts.passes if p.arm is Arm.C]
    n = facts.header.cell.dispatch_n
    depth = max((p.client_depth for p in concurrent), default=0)
    slots = max((p.slot_peak for p in concurrent if p.slot_peak is not None), default=None)
    decode = max((p.decode_peak for p in concurrent if p.decode_peak is not None), default=None)
    warmup = max(
        (
            p.decode_peak
            for p in facts.passes
            if p.arm is Arm.WARMUP and p.kind is DispatchKind.WAVES and p.decode_peak is not None
        ),
        default=None,
    )
    tested = decode or 0
    polled = [p.gauge.peak for p in concurrent if p.gauge is not None and p.predicted == p.tokens]
    seen = max([*polled, *([] if slots is None else [slots])], default=None)
    if warmup is not None and seen is not None and decode is not None and decode >= 2:
        tested = max(tested, min(warmup, seen))
    logged = [p.log_peak for p in concurrent if p.log_peak is not None]
    gauges = [p.gauge.peak for p in concurrent if p.gauge is not None and p.gauge_fault is None]
    tested = max([tested, *logged, *gauges])
    known = (slots, decode, *logged, *gauges)
    resident = max((v for v in known if v is not None), default=None)
    log_fault = _log_fault(facts)
    witness = CLIENT_INTERVALS
    if log_fault is None:
        witness = DECODE_LOG
    elif decode is not None:
        witness = DECODE_COUNT
    elif gauges:
        witness = SCHEDULER_GAUGE
    elif slots is not None:
        witness = SLOT_SAMPLES
    companions = {p.companions for p in concurrent if p.companions is not None}
    return Overlap(
        client_max_overlap_depth=depth,
        server_peak_busy_slots=resident,
        overlap_ok=depth >= 2 and resident is not None and resident >= 2 and tested >= n,
        witness=witness,
        tested_n=min(tested, n),
        warmup_peak=warmup,
        n_different_passes=len(companions),
        log_fault=log_fault,
    )


def _log_fault(facts: Facts) -> str | None:
    """Why some pass of arm C is not witnessed by the log; None where all are."""
    concurrent = [p for p in facts.passes if p.arm is Arm.C]
    for p in concurrent:
        if p.log_fault is not None:
            return f"arm C pass {p.pass_index}: {p.log_fault}"
    return None if concurrent else "arm C did not run"


def covered(item: ItemFacts) -> bool:
    """Whether an id counts for F3: a scored C trial with enough proved shared passes."""
    return item.n_co_batched > 0


def coverage_of(facts: Facts, overlap: Overlap) -> Coverage:
    """Works out gate F3's figures from the items."""
    workset = facts.header.workset.items
    n = len(workset)
    hot = [i for i, item in enumerate(facts.items) if covered(item)]
    fraction = len(hot) / n if n else 0.0
    certain = overlap.witness in (DECODE_LOG, DECODE_COUNT, SCHEDULER_GAUGE)
    required = max(rules.MIN_COVERED_IDS, math.ceil(n * rules.MIN_COVERAGE_FRACTION))
    enough = len(hot) >= rules.MIN_COVERED_IDS and fraction >= rules.MIN_COVERAGE_FRACTION
    chosen = set(hot)
    sampling = facts.header.plan.sampling
    return Coverage(
        coverage_checked=any(p.arm is Arm.C for p in facts.passes),
        cobatch_coverage_ok=certain and enough,
        coverage_fraction=fraction,
        n_ids=n,
        n_co_batched=len(hot),
        n_missing_interval=sum(item.n_compared == 0 for item in facts.items),
        attribution_certain=certain,
        required_co_batched=required,
        min_coverage_fraction=rules.MIN_COVERAGE_FRACTION,
        uncovered_ids=tuple(item.id for i, item in enumerate(workset) if i not in chosen),
        n_hot_trials=sum(facts.items[i].n_co_batched for i in hot),
        n_bodies=len({build_body(workset[i], sampling).sha256 for i in hot}),
        n_tokens=sum(facts.items[i].horizon for i in hot),
    )
