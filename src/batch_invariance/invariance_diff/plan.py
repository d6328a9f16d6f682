"""The built-in plan: which passes a run makes, and what it can never prove.

Arm C alternates waves and saturation. Its first pass releases items of equal answer length
together, because only waves that finish together let a decode counter prove a batch of N.
"""

from __future__ import annotations

from collections.abc import Sequence

from batch_invariance.invariance_diff import rules
from batch_invariance.invariance_diff.model import Arm, Item
from batch_invariance.invariance_diff.records import Header, PassPlan
from batch_invariance.invariance_diff.request import Sampling, build_body, max_tokens_of
from batch_invariance.invariance_diff.schedule import (
    Ordering,
    PassSchedule,
    concurrent_kind,
    concurrent_pass,
    order_by_length,
    pass_order,
    serial_pass,
)


def serial_schedule(arm: Arm, n_items: int, n: int) -> PassSchedule:
    """The schedule of arms A and A2 (one lane), or B and A3 (every one of `n` lanes)."""
    return serial_pass(n_items, n if arm in (Arm.B, Arm.A3) else 1)


def seeded_schedule(n_items: int, n: int, seed: int, pass_index: int) -> PassSchedule:
    """A concurrent pass along its seeded order."""
    order = pass_order(n_items, seed, pass_index)
    return concurrent_pass(order, n, concurrent_kind(pass_index))


def length_schedule(lengths: Sequence[int], n: int, seed: int, pass_index: int) -> PassSchedule:
    """A concurrent pass along arm A's answer lengths, ties in the seeded order."""
    order = order_by_length(lengths, pass_order(len(lengths), seed, pass_index))
    return concurrent_pass(order, n, concurrent_kind(pass_index))


def planned_digest(plan: PassPlan, header: Header, lengths: Sequence[int]) -> str | None:
    """The digest a pass's schedule must have, given arm A's answer lengths."""
    if plan.ordering is not Ordering.BY_LENGTH:
        return plan.digest
    n, seed = header.cell.dispatch_n, header.plan.schedule_seed
    return length_schedule(lengths, n, seed, plan.pass_index).digest


OWN_ARMS = (Arm.A, Arm.A2, Arm.B)
"""The serial arms of a run on a server of our own."""
FOREIGN_ARMS = (Arm.A, Arm.A2, Arm.A3)
"""The serial arms on a server of someone else; the last one comes when all else is done."""


def plan_listed(
    n_items: int, n: int, listed: Sequence[PassSchedule], serial: Sequence[Arm] = OWN_ARMS
) -> tuple[PassPlan, ...]:
    """The serial arms and the given passes of C."""
    plans = _plan_serial(n_items, n, serial)
    for index, schedule in enumerate(listed):
        plans.append(_planned(Arm.C, index, Ordering.LISTED, schedule, schedule.digest))
    return tuple(plans)


def _plan_serial(n_items: int, n: int, serial: Sequence[Arm]) -> list[PassPlan]:
    plans = []
    for arm in serial:
        schedule = serial_schedule(arm, n_items, n)
        plans.append(_planned(arm, 0, Ordering.LISTED, schedule, schedule.digest))
    return plans


def plan_passes(
    n_items: int, n: int, passes: int, seed: int, serial: Sequence[Arm] = OWN_ARMS
) -> tuple[PassPlan, ...]:
    """The serial arms and `passes` passes of C, with the digest of every order that is known
    beforehand."""
    plans = _plan_serial(n_items, n, serial)
    for index in range(passes):
        schedule = seeded_schedule(n_items, n, seed, index)
        if index == 0:
            plans.append(_planned(Arm.C, index, Ordering.BY_LENGTH, schedule, None))
        else:
            plans.append(_planned(Arm.C, index, Ordering.SEEDED, schedule, schedule.digest))
    return tuple(plans)


def _planned(
    arm: Arm, index: int, ordering: Ordering, schedule: PassSchedule, digest: str | None
) -> PassPlan:
    return PassPlan(arm, index, schedule.kind, ordering, schedule.n_requests, digest)


def shortfalls(items: Sequence[Item], n: int, passes: int, sampling: Sampling) -> tuple[str, ...]:
    """Why such a run can never be GREEN, whatever the server does; empty where it can."""
    found = []
    bodies = len({build_body(item, sampling).sha256 for item in items})
    if bodies < rules.MIN_DISTINCT_BODIES:
        found.append(f"{bodies} distinct prompts, at least {rules.MIN_DISTINCT_BODIES} are needed")
    tokens = sum(max_tokens_of(item, sampling) for item in items)
    if tokens < rules.MIN_COBATCHED_TOKENS:
        found.append(
            f"at most {tokens} generated tokens to compare, at least "
            f"{rules.MIN_COBATCHED_TOKENS} are needed: raise --max-tokens or add items"
        )
    if passes < rules.MIN_DIFFERENT_PASSES:
        found.append(f"{passes} concurrent pass, at least {rules.MIN_DIFFERENT_PASSES} are needed")
    if len(items) <= n:
        found.append(
            f"{len(items)} items for {n} lanes: companions never change, use more than {n} items"
        )
    if n < 2:
        found.append("--parallel 1 has no batch to test")
    if tokens * (1 + passes) >= rules.EXACT_COUNTER_LIMIT:
        found.append(
            f"up to {tokens * (1 + passes)} tokens from one server, whose counters are exact "
            f"below {rules.EXACT_COUNTER_LIMIT}: use fewer passes, items or tokens"
        )
    return tuple(found)


def request_count(plans: Sequence[PassPlan], n: int) -> int:
    """Requests of the plan without confirm trials: all passes, two warm-ups, one control wave."""
    return sum(p.n_requests for p in plans) + (1 + n) + n
