"""Arms A and B as they are kept, and every pair of arms that is compared with them."""

from __future__ import annotations

from typing import Any

import pytest

from batch_invariance.invariance_diff.comparisons import OF_ENDPOINT, PAIRS, Comparisons
from batch_invariance.invariance_diff.model import Arm, Item, Message, Trial, TrialKey
from core_fixtures import a_completion, a_scored, a_trial, lost

IDS = [11, 12, 13, 14, 15, 16]
ITEMS = tuple(Item(f"i{n}", (Message("user", f"prompt {n}"),), "x") for n in range(3))
REPEATS = {"AA": Arm.A2, "AB": Arm.B, "AA3": Arm.A3}
"""Each serial pair with the arm of its y side."""


def trial(arm: Arm, item: int = 0, index: int = 0, ids: list[int] = IDS, **changes: Any) -> Trial:
    return a_trial(a_completion(ids, **changes), a_scored(), TrialKey(arm, index, item))


def lost_trial(arm: Arm, item: int = 0) -> Trial:
    gone: Trial = lost()(trial(arm, item))
    return gone


def compared(*pairs: str, items: int = 3) -> Comparisons:
    """Arm A has answered these items; then the y sides of these serial pairs, all the same."""
    found = Comparisons(ITEMS, OF_ENDPOINT if "AA3" in pairs else PAIRS)
    for item in range(items):
        found.add_a(trial(Arm.A, item))
        for pair in pairs:
            found.add_repeat(pair, trial(REPEATS[pair], item))
    return found


def n_compared(found: Comparisons) -> dict[str, int]:
    return {name: report.n_compared for name, report in found.reports().items()}


def test_every_pair_of_a_run_has_a_report_even_without_trials() -> None:
    assert n_compared(Comparisons(ITEMS)) == {"AC": 0, "AB": 0, "BC": 0, "AA": 0}
    foreign = Comparisons(ITEMS, OF_ENDPOINT)
    assert n_compared(foreign) == {"AC": 0, "AB": 0, "BC": 0, "AA": 0, "AA3": 0}
    assert [report.pair for report in foreign.reports().values()] == [*PAIRS, "AA3"]


def test_each_trial_counts_in_the_pairs_of_its_arm() -> None:
    own = compared("AA", "AB")
    own.add_c(trial(Arm.C, 1))
    assert n_compared(own) == {"AC": 1, "AB": 3, "BC": 1, "AA": 3}
    foreign = compared("AA", "AA3")
    foreign.add_c(trial(Arm.C, 1))
    assert n_compared(foreign) == {"AC": 1, "AB": 0, "BC": 0, "AA": 3, "AA3": 3}
    assert all(report.token_identical for report in own.reports().values())


@pytest.mark.parametrize("pair", sorted(REPEATS))
def test_a_repeat_that_differs_from_arm_a_is_seen_in_its_pair_alone(pair: str) -> None:
    found = compared(*(["AA3"] if pair == "AA3" else []), items=1)
    found.add_repeat(pair, trial(REPEATS[pair], text="other"))
    differing = [n for n, r in found.reports().items() if r.token_divergence_ids]
    assert differing == [pair]
    assert found.of_a(0) == trial(Arm.A)


def test_arm_a_has_one_trial_per_item_or_none() -> None:
    found = compared(items=2)
    found.add_repeat("AA", trial(Arm.A2, 2))
    assert [found.of_a(item) for item in range(3)] == [trial(Arm.A, 0), trial(Arm.A, 1), None]


def test_what_repeats_arm_a_shares_one_comparison() -> None:
    found = compared("AB")
    first, second = (found.add_c(trial(Arm.C, 0, index))[0] for index in range(2))
    assert first is not None
    assert first is second
    assert found.add_c(trial(Arm.C, 1))[0] is not first


def test_a_trial_that_repeats_b_is_no_repeat_of_a() -> None:
    """B's answer is shorter: what C repeats of it has four tokens, what it repeats of A six."""
    found = compared()
    found.add_repeat("AB", trial(Arm.B, ids=IDS[:4]))
    of_b, _ = found.add_c(trial(Arm.C, 0, 0, IDS[:4]))
    of_a, _ = found.add_c(trial(Arm.C, 0, 1))
    assert of_b is not None
    assert of_a is not None
    assert (of_b.token_divergent, of_a.token_divergent) == (True, False)
    assert of_a.n_tokens == 6
    (entry,) = found.reports()["BC"].per_id
    assert (entry.n_compared, entry.n_token_divergent) == (2, 1)
    assert entry.first_divergence.pass_index == 1


def test_where_c_is_the_first_to_differ() -> None:
    found = compared("AB", items=2)
    found.add_repeat("AB", trial(Arm.B, 2, text="b"))
    assert found.add_c(trial(Arm.C, 0))[1] == ()
    assert found.add_c(trial(Arm.C, 0, 1, text="other"))[1] == ("AC", "BC")
    assert found.add_c(trial(Arm.C, 0, 2, text="other"))[1] == ()
    assert found.add_c(trial(Arm.C, 1, 0, text="other"))[1] == ("AC", "BC")
    found.add_a(trial(Arm.A, 2))
    assert found.add_c(trial(Arm.C, 2, 0, text="b"))[1] == ("AC",)
    assert found.add_c(trial(Arm.C, 2, 1))[1] == ("BC",)


def test_companions_are_named_in_the_pair_they_are_set_for() -> None:
    found = compared("AB")
    found.add_c(trial(Arm.C, text="other"))
    found.set_companions("BC", 0, ("i1", "i2"))
    reports = found.reports()
    assert reports["BC"].per_id[0].first_divergence.companions == ("i1", "i2")
    assert reports["AC"].per_id[0].first_divergence.companions == ()


# Lost trials, and items that one arm alone has.


def test_a_lost_trial_is_compared_with_nothing() -> None:
    found = Comparisons(ITEMS)
    found.add_a(lost_trial(Arm.A, 0))
    for item in (1, 2):
        found.add_a(trial(Arm.A, item))
    for pair, arm in (("AA", Arm.A2), ("AB", Arm.B)):
        found.add_repeat(pair, trial(arm, 0))
        found.add_repeat(pair, lost_trial(arm, 1))
    assert found.add_c(trial(Arm.C, 0)) == (None, ())
    assert found.add_c(lost_trial(Arm.C, 2)) == (None, ())
    diff, first = found.add_c(trial(Arm.C, 1, text="other"))
    assert diff is not None
    assert first == ("AC",)
    # C's item 0 has B's answer beside it, and none of A's; its item 1 the other way round.
    assert n_compared(found) == {"AC": 1, "AB": 0, "BC": 1, "AA": 0}
    found.close_sides()
    reports = found.reports()
    assert [reports[n].only_x for n in PAIRS] == [(), ("i2",), (), ("i2",)]
    assert [reports[n].only_y for n in PAIRS] == [(), (), ("i2",), ()]


def test_an_item_that_only_one_side_has_differs_by_itself() -> None:
    found = compared(items=1)
    found.add_repeat("AB", trial(Arm.B, 1))
    assert found.add_c(trial(Arm.C, 2)) == (None, ())
    assert found.add_c(trial(Arm.C, 1)) == (None, ())
    found.close_sides()
    reports = found.reports()
    sides = {name: (report.only_x, report.only_y) for name, report in reports.items()}
    assert sides == {
        "AC": (("i0",), ("i1", "i2")),
        "AB": (("i0",), ("i1",)),
        "BC": ((), ("i2",)),
        "AA": (("i0",), ()),
    }
    assert reports["BC"].n_compared == 1


def test_sides_are_closed_over_the_pairs_of_the_run_alone() -> None:
    found = Comparisons(ITEMS, OF_ENDPOINT)
    found.add_a(trial(Arm.A))
    found.close_sides()
    named = [name for name, report in found.reports().items() if report.only_x]
    assert sorted(named) == sorted(OF_ENDPOINT)


def test_against_a_is_counted_in_no_pair() -> None:
    found = compared(items=1)
    found.add_a(lost_trial(Arm.A, 1))
    same, other = found.against_a(trial(Arm.P)), found.against_a(trial(Arm.P, text="other"))
    assert same is not None
    assert other is not None
    assert (same.token_divergent, other.token_divergent) == (False, True)
    assert found.against_a(lost_trial(Arm.P, 0)) is None
    assert found.against_a(trial(Arm.P, 1)) is None
    assert found.against_a(trial(Arm.P, 2)) is None
    assert set(n_compared(found).values()) == {0}
