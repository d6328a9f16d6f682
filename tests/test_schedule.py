"""Schedules and the built-in plan: orders, waves and their fillers, lanes, what cannot be."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from batch_invariance.errors import ScheduleError
from batch_invariance.invariance_diff.model import Arm, Item, Message
from batch_invariance.invariance_diff.plan import (
    length_schedule,
    plan_passes,
    request_count,
    seeded_schedule,
    serial_schedule,
    shortfalls,
)
from batch_invariance.invariance_diff.request import Sampling
from batch_invariance.invariance_diff.schedule import (
    DispatchKind,
    Ordering,
    PassSchedule,
    check_schedule,
    concurrent_kind,
    concurrent_pass,
    order_by_length,
    pass_order,
    pinned_pass,
    saturated_pass,
    serial_pass,
    wave_pass,
)

SIZES = [(1, 1), (1, 4), (3, 4), (4, 4), (5, 4), (7, 2), (16, 4), (17, 4), (20, 8)]


@pytest.mark.parametrize(("n_items", "lanes"), SIZES)
def test_waves_are_full_and_filled_from_the_beginning(n_items: int, lanes: int) -> None:
    order = pass_order(n_items, 3, 0)
    schedule = wave_pass(order, lanes)
    assert all(len(group) == lanes for group in schedule.groups)
    sent = [item for group in schedule.groups for item in group]
    assert sent[:n_items] == order
    fillers = sent[n_items:]
    assert len(fillers) == -n_items % lanes
    assert fillers == [order[i % n_items] for i in range(len(fillers))]
    assert schedule.n_requests == len(sent)
    check_schedule(schedule, n_items, "waves")


@pytest.mark.parametrize(("n_items", "lanes"), SIZES)
def test_every_entry_has_a_key_of_its_own(n_items: int, lanes: int) -> None:
    order = pass_order(n_items, 3, 1)
    for schedule in (
        wave_pass(order, lanes),
        saturated_pass(order, lanes),
        serial_pass(n_items, lanes),
    ):
        keys = [(e.item, e.occurrence) for e in schedule.entries()]
        assert len(set(keys)) == len(keys) == schedule.n_requests
        counts = Counter(item for item, _ in keys)
        assert set(counts) == set(range(n_items))
        for item, times in counts.items():
            assert [o for i, o in keys if i == item] == list(range(times))


def test_lanes_and_waves_of_the_entries() -> None:
    waves = list(wave_pass([2, 0, 1], 2).entries())
    assert [(e.item, e.occurrence, e.lane, e.wave) for e in waves] == [
        (2, 0, 0, 0),
        (0, 0, 1, 0),
        (1, 0, 0, 1),
        (2, 1, 1, 1),
    ]
    saturated = list(saturated_pass([2, 0, 1], 2).entries())
    assert [(e.item, e.lane, e.wave) for e in saturated] == [
        (2, None, None),
        (0, None, None),
        (1, None, None),
    ]
    serial = list(serial_pass(3, 2).entries())
    assert [(e.item, e.lane, e.wave) for e in serial] == [(0, 0, None), (1, 1, None), (2, 0, None)]
    pinned = list(pinned_pass([(5, 3), (5, 1), (0, 0)], 4).entries())
    assert [(e.item, e.occurrence, e.lane) for e in pinned] == [(5, 0, 3), (5, 1, 1), (0, 0, 0)]


def test_a_serial_pass_uses_every_lane_even_with_few_items() -> None:
    schedule = serial_pass(3, 5)
    assert [e.item for e in schedule.entries()] == [0, 1, 2, 0, 1]
    assert {e.lane for e in schedule.entries()} == set(range(5))
    assert serial_pass(5, 1).n_requests == 5


def test_orders_are_permutations_that_the_seed_decides() -> None:
    orders = {tuple(pass_order(12, seed, index)) for seed in range(5) for index in range(5)}
    assert len(orders) == 25
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert pass_order(12, 1, 1) == pass_order(12, 1, 1)
    assert pass_order(0, 1, 1) == []


def test_orders_do_not_change_between_versions() -> None:
    assert pass_order(8, 7, 0) == [3, 7, 1, 4, 5, 6, 2, 0]
    assert pass_order(3, 0, 1) == [2, 0, 1]


def test_order_by_length_is_stable_in_the_tie_break() -> None:
    rng = random.Random(4)
    for _ in range(50):
        n = rng.randint(1, 20)
        lengths = [rng.randint(1, 4) for _ in range(n)]
        ties = rng.sample(range(n), n)
        order = order_by_length(lengths, ties)
        assert sorted(order) == list(range(n))
        for left, right in pairwise(order):
            assert lengths[left] <= lengths[right]
            if lengths[left] == lengths[right]:
                assert ties.index(left) < ties.index(right)


def test_kinds_alternate_beginning_with_waves() -> None:
    kinds = [concurrent_kind(i) for i in range(4)]
    assert kinds == [DispatchKind.WAVES, DispatchKind.SATURATE] * 2
    with pytest.raises(ScheduleError):
        concurrent_pass([0, 1], 2, DispatchKind.SERIAL)


def test_the_digest_covers_all_of_a_schedule() -> None:
    schedules = [
        wave_pass([0, 1, 2, 3], 2),
        wave_pass([1, 0, 2, 3], 2),
        wave_pass([0, 1, 2, 3], 4),
        saturated_pass([0, 1, 2, 3], 2),
        saturated_pass([0, 1, 2, 3], 4),
        serial_pass(4, 2),
        pinned_pass([(i, i % 2) for i in range(4)], 2),
        pinned_pass([(i, 0) for i in range(4)], 2),
    ]
    assert len({s.digest for s in schedules}) == len(schedules)
    assert wave_pass([0, 1], 2).digest == wave_pass([0, 1], 2).digest


WAVES, SATURATE, SERIAL = DispatchKind.WAVES, DispatchKind.SATURATE, DispatchKind.SERIAL


@pytest.mark.parametrize(
    ("schedule", "fault"),
    [
        (PassSchedule(WAVES, 0, ()), "0 lanes, not 1 to 256"),
        (PassSchedule(WAVES, 257, ()), "257 lanes, not 1 to 256"),
        (PassSchedule(WAVES, 2, ((0, 3),)), "item 3 is not in the work-set"),
        (PassSchedule(WAVES, 2, ((0, -1),)), "item -1 is not in the work-set"),
        (PassSchedule(WAVES, 2, ((),)), "a group is empty"),
        (PassSchedule(WAVES, 2, ((0, 1, 2),)), "a wave of 3 does not fit 2 lanes"),
        (PassSchedule(SERIAL, 2, ((0, 1),)), "a serial group holds one item"),
        (PassSchedule(SERIAL, 2, ((0,), (1,)), (0,)), "1 pinned lanes for 2 requests"),
        (PassSchedule(WAVES, 2, ((0, 1),), (0,)), "1 pinned lanes for 2 requests"),
        (PassSchedule(WAVES, 2, ((0, 1),), (1, 1)), "a lane is pinned twice in one wave"),
        (PassSchedule(SATURATE, 2, ((0, 1),), (1, 0)), "a saturated pass has no pinned lanes"),
        (PassSchedule(WAVES, 2, ((0, 1),), None, (1,)), "1 delays for 2 requests"),
        (PassSchedule(WAVES, 2, ((0, 1),), None, (1, -1)), "a delay of -1 ms"),
        (PassSchedule(SERIAL, 2, ((0,),), (2,)), "lane 2 does not exist"),
        (PassSchedule(SERIAL, 2, ((0,),), (-1,)), "lane -1 does not exist"),
    ],
)
def test_what_does_not_fit_is_named(schedule: PassSchedule, fault: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        check_schedule(schedule, 3, "arm C pass 0")
    assert any(issue.startswith(fault) for issue in caught.value.issues)
    assert "arm C pass 0" in str(caught.value)


def test_what_fits_is_let_through() -> None:
    check_schedule(PassSchedule(WAVES, 2, ((0, 2), (1,))), 3, "x")
    check_schedule(PassSchedule(SATURATE, 2, ((0, 1, 2, 0),)), 3, "x")
    check_schedule(PassSchedule(SERIAL, 2, ((0,), (1,)), (1, 0)), 3, "x")
    check_schedule(PassSchedule(SERIAL, 1, ()), 0, "x")


# The built-in plan.


def test_the_plan_of_a_run() -> None:
    plans = plan_passes(10, 4, 3, 7)
    shape = [(p.arm, p.pass_index, p.kind, p.ordering) for p in plans]
    assert shape == [
        (Arm.A, 0, SERIAL, Ordering.LISTED),
        (Arm.A2, 0, SERIAL, Ordering.LISTED),
        (Arm.B, 0, SERIAL, Ordering.LISTED),
        (Arm.C, 0, WAVES, Ordering.BY_LENGTH),
        (Arm.C, 1, SATURATE, Ordering.SEEDED),
        (Arm.C, 2, WAVES, Ordering.SEEDED),
    ]
    assert [p.n_requests for p in plans] == [10, 10, 10, 12, 10, 12]
    assert plans[0].digest == serial_schedule(Arm.A, 10, 4).digest
    assert plans[2].digest == serial_schedule(Arm.B, 10, 4).digest
    assert plans[0].digest != plans[2].digest
    assert plans[3].digest is None
    assert plans[4].digest == seeded_schedule(10, 4, 7, 1).digest
    assert request_count(plans, 4) == 64 + 5 + 4


def test_serial_arms_use_one_lane_and_b_all() -> None:
    assert serial_schedule(Arm.A, 5, 4).lanes == 1
    assert serial_schedule(Arm.A2, 5, 4).lanes == 1
    assert serial_schedule(Arm.B, 5, 4).lanes == 4


def test_the_first_pass_of_c_groups_equal_lengths() -> None:
    lengths = [5, 24, 5, 24, 24, 5, 24, 5]
    first, second = length_schedule(lengths, 4, 7, 0).groups
    assert set(first) == {0, 2, 5, 7}
    assert set(second) == {1, 3, 4, 6}
    assert length_schedule(lengths, 4, 7, 0).digest != length_schedule(lengths, 4, 8, 0).digest


def _items(n: int, distinct: int | None = None) -> list[Item]:
    return [Item(f"i{i}", (Message("user", f"p{i % (distinct or n)}"),)) for i in range(n)]


@pytest.mark.parametrize(
    ("n_items", "distinct", "n", "passes", "max_tokens", "fault"),
    [
        (8, 8, 4, 2, 8, None),
        (9, 7, 4, 2, 8, "7 distinct prompts, at least 8 are needed"),
        (8, 8, 4, 2, 7, "at most 56 generated tokens to compare, at least 64 are needed"),
        (8, 8, 4, 1, 8, "1 concurrent pass, at least 2 are needed"),
        (8, 8, 8, 2, 8, "8 items for 8 lanes"),
        (9, 9, 8, 2, 8, None),
        (8, 8, 1, 2, 8, "--parallel 1 has no batch to test"),
        (8, 8, 2, 2, 8, None),
    ],
)
def test_what_can_never_be_green_is_said(
    n_items: int, distinct: int, n: int, passes: int, max_tokens: int, fault: str | None
) -> None:
    found = shortfalls(_items(n_items, distinct), n, passes, Sampling(0, max_tokens, 1))
    if fault is None:
        assert found == ()
    else:
        assert len(found) == 1
        assert found[0].startswith(fault)


def test_all_shortfalls_are_said_at_once() -> None:
    assert len(shortfalls(_items(1), 1, 1, Sampling(0, 1, 1))) == 5
