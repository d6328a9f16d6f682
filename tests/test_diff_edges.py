"""The edges of the comparison of trials and arms: ids that tell less than all, margins, drift of
odd alternatives, and comparisons that are shared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batch_invariance.invariance_diff.comparisons import Comparisons
from batch_invariance.invariance_diff.diff import (
    TOKEN_FIELDS,
    Drift,
    compare_trials,
    margin_at,
    margins,
    repeats,
)
from batch_invariance.invariance_diff.model import Arm, Item, Message, Trial, TrialKey
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids
from batch_invariance.invariance_diff.pairs import GroupReport, PairAccumulator
from core_fixtures import a_completion, a_scored, a_trial

IDS = [11, 12, 13, 14, 15, 16]
ITEMS = tuple(Item(f"i{n}", (Message("user", f"prompt {n}"),), "x", f"f{n % 2}") for n in range(4))


def trial(arm: Arm, item: int = 0, index: int = 0, score: float = 1.0, **changes: Any) -> Trial:
    key = TrialKey(arm, index, item)
    return a_trial(a_completion(IDS, **changes), a_scored(score=score), key)


def test_fields_that_differ_are_named_in_their_order() -> None:
    other = a_completion(
        [1],
        text="other",
        finish_reason="other",
        reasoning="other",
        tool_calls="[]",
        completion_tokens=1,
    )
    diff = compare_trials(a_trial(a_completion(IDS)), a_trial(other))
    assert diff.token_fields == TOKEN_FIELDS
    assert TOKEN_FIELDS == (
        "token_ids",
        "text",
        "finish_reason",
        "reasoning",
        "tool_calls",
        "completion_tokens",
    )


def test_an_answer_repeats_only_what_is_equal() -> None:
    x = a_trial(a_completion(IDS))
    assert repeats(x, a_trial(a_completion(IDS)))
    assert repeats(x, replace(x, lane=3, dispatch_ts=9.0))
    assert not repeats(x, a_trial(a_completion(IDS, text="other")))
    assert not repeats(x, a_trial(a_completion(IDS, cache_n=1)))
    assert not repeats(x, a_trial(a_completion(IDS), a_scored(passed=None)))


@pytest.mark.parametrize(
    ("n_tokens", "changes", "known"),
    [
        (6, {}, True),
        (7, {}, True),
        (9, {}, True),
        (5, {}, False),
        (0, {}, False),
        (7, {"text": "half a character \ufffd"}, False),
        (6, {"text": "a whole one \ufffd"}, True),
        (7, {"text": "\ufffd inside"}, True),
        (7, {"reasoning": "thought \ufffd"}, False),
        (7, {"reasoning": "thought"}, True),
        (6, {"reasoning": "thought \ufffd"}, True),
        (1, {"token_ids": pack_ids([])}, False),
        (0, {"token_ids": pack_ids([])}, True),
        (2, {"token_ids": pack_ids([5])}, True),
        (1, {"token_ids": pack_ids([5])}, True),
        (None, {}, False),
        (6, {"token_ids": None}, False),
    ],
)
def test_ids_account_for_the_tokens_or_the_tokens_are_unknown(
    n_tokens: int | None, changes: dict[str, Any], known: bool
) -> None:
    """A token inside a character has no id of its own until the character is whole."""
    x = a_trial(a_completion(IDS, **{"completion_tokens": n_tokens, **changes}))
    whole = a_trial(a_completion(IDS))
    assert compare_trials(x, x).tokens_known is known
    assert compare_trials(x, whole).tokens_known is known
    assert compare_trials(whole, x).tokens_known is known


def _tops(*rows: tuple[float, ...]) -> dict[str, Any]:
    ids = [100 * n + k for n, row in enumerate(rows) for k in range(len(row))]
    return {
        "token_ids": pack_ids(list(range(1, len(rows) + 1))),
        "top_ids": pack_ids(ids),
        "top_logprobs": pack_floats([value for row in rows for value in row]),
    }


def test_margins_of_the_first_positions() -> None:
    tops = _tops((-0.5, -1.0), (-3.0, -0.25), (-1.0, -1.0))
    completion = a_completion(IDS, **tops)
    assert margins(completion, 9) == [0.5, 2.75, 0.0]
    assert margins(completion, 3) == [0.5, 2.75, 0.0]
    assert margins(completion, 2) == [0.5, 2.75]
    assert margins(completion, 0) == []
    assert [margin_at(completion, i) for i in (-1, 0, 1, 2, 3)] == [None, 0.5, 2.75, 0.0, None]


def test_margins_are_between_the_two_best_of_many() -> None:
    completion = a_completion(IDS, **_tops((-4.0, -0.5, -1.5), (-0.25, -2.0, -9.0)))
    assert margins(completion, 2) == [1.0, 1.75]
    assert margin_at(completion, 0) == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": None},
        {"top_logprobs": None},
        {"token_ids": None, "top_logprobs": None},
        {"token_ids": pack_ids([])},
        _tops((-1.0,), (-1.0,)),
        _tops((-1.0, float("-inf")), (-1.0, -2.0)),
        _tops((float("nan"), -1.0), (-1.0, -2.0)),
    ],
)
def test_margins_without_two_finite_alternatives_are_none(changes: dict[str, Any]) -> None:
    completion = a_completion(IDS, **changes)
    assert margins(completion, 2) == []
    assert margin_at(completion, 0) is None


def test_drift_sees_that_alternatives_are_others() -> None:
    """Their logprobs are the same, and none is listed on both sides: nothing measurable moved."""
    x = a_completion(IDS)
    others = replace(x, top_ids=pack_ids([900 + n for n in range(12)]))
    diff = compare_trials(a_trial(x), a_trial(others))
    assert diff.drift is not None
    assert (diff.drift.n_moved, diff.drift.first_index, diff.drift.max_abs) == (6, 0, 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_logprobs": pack_floats([float("-inf")] * 12)},
        {"top_ids": pack_ids([1, 2, 3])},
    ],
)
def test_drift_of_the_same_bits_is_none_whatever_the_alternatives_are(
    changes: dict[str, Any],
) -> None:
    x = a_trial(a_completion(IDS, **changes))
    assert compare_trials(x, x).drift == Drift(6, 0, None, 0.0)


def test_drift_of_alternatives_is_by_place_where_the_ids_are_the_same() -> None:
    """A list that names one token twice is compared place by place."""
    twice = pack_ids([7, 7])
    base = {"token_ids": pack_ids([7]), "top_ids": twice, "logprobs": pack_floats([-1.0])}
    x = a_trial(a_completion([7], **base, top_logprobs=pack_floats([-1.0, -2.0])))
    y = a_trial(a_completion([7], **base, top_logprobs=pack_floats([-1.0, -2.5])))
    drift = compare_trials(x, y).drift
    assert drift is not None
    assert drift.max_abs == 0.5


def test_a_pair_without_comparisons_has_no_drift() -> None:
    drift = PairAccumulator("AC", ITEMS).report().logit_drift
    assert (drift.n_trials, drift.n_moved, drift.first_index, drift.max_abs) == (0, 0, None, 0.0)


def test_groups_count_an_item_once_by_its_worst_difference() -> None:
    pair = PairAccumulator("AC", ITEMS)
    pair.add(trial(Arm.A, 0), trial(Arm.C, 0))
    pair.add(trial(Arm.A, 1), trial(Arm.C, 1, text="other"))
    pair.add(trial(Arm.A, 2), trial(Arm.C, 2, score=0.5, text="other"))
    pair.add(trial(Arm.A, 3), trial(Arm.C, 3, score=0.5))
    report = pair.report()
    assert report.by_family == {"f0": GroupReport(2, 1, 0), "f1": GroupReport(2, 1, 1)}


# Comparisons: what is shared between trials that repeat arm A.


def test_a_trial_of_a_that_runs_again_is_compared_as_a_repeat() -> None:
    compared = Comparisons(ITEMS)
    compared.add_a(trial(Arm.A))
    compared.add_a(trial(Arm.A, text="other"))
    compared.add_a(trial(Arm.A, 1))
    report = compared.reports()["AA"]
    assert (report.n_compared, report.token_divergence_ids) == (1, ("i0",))
    kept = compared.of_a(0)
    assert kept == trial(Arm.A)


def test_b_that_differs_is_what_c_is_compared_with() -> None:
    compared = Comparisons(ITEMS)
    for item in range(3):
        compared.add_a(trial(Arm.A, item))
        compared.add_repeat("AA", trial(Arm.A2, item))
    compared.add_repeat("AB", trial(Arm.B, 0))
    compared.add_repeat("AB", trial(Arm.B, 1, text="b"))
    compared.add_repeat("AB", trial(Arm.B, 2, text="b"))
    for index in range(2):
        assert compared.add_c(trial(Arm.C, 0, index))[1] == ()
        compared.add_c(trial(Arm.C, 1, index))
        compared.add_c(trial(Arm.C, 2, index, text="b"))
    reports = compared.reports()
    assert reports["AB"].token_divergence_ids == ("i1", "i2")
    assert reports["AC"].token_divergence_ids == ("i2",)
    assert reports["BC"].token_divergence_ids == ("i1",)
    assert reports["BC"].per_id[0].n_token_divergent == 2
    assert (reports["AC"].n_compared, reports["BC"].n_compared) == (6, 6)


def test_c_that_differs_in_two_ways_is_compared_twice() -> None:
    compared = Comparisons(ITEMS)
    compared.add_a(trial(Arm.A))
    compared.add_repeat("AB", trial(Arm.B))
    for index, changes in enumerate(({"text": "one"}, {"finish_reason": "two"}, {})):
        diff, _ = compared.add_c(trial(Arm.C, 0, index, **changes))  # type: ignore[arg-type]
        assert diff is not None
        assert diff.token_fields == tuple(changes)
    for name in ("AC", "BC"):
        (entry,) = compared.reports()[name].per_id
        assert (entry.n_compared, entry.n_token_divergent) == (3, 2)
        assert entry.token_fields == ("finish_reason", "text")
