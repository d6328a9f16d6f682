"""Comparing trials and arms: exact by type, tokens apart from scores, drift to the last bit."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.diff import (
    Drift,
    FirstDivergence,
    compare_trials,
    degenerate,
    margin_at,
    repeats,
)
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import Arm, Completion, Item, Message, Trial, TrialKey
from batch_invariance.invariance_diff.packed import (
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from batch_invariance.invariance_diff.pairs import diff_arms
from batch_invariance.invariance_diff.stats import bin_of
from core_fixtures import a_completion, a_scored, a_trial, lost

IDS = [11, 12, 13, 14, 15, 16]


def _scores(u: object, v: object) -> tuple[str, ...]:
    x = a_trial(a_completion(IDS), a_scored(score=u))
    y = a_trial(a_completion(IDS), a_scored(score=v))
    return compare_trials(x, y).score_fields


def _ulp_up(value: float) -> float:
    (bits,) = struct.unpack("<i", struct.pack("<f", value))
    (moved,) = struct.unpack("<f", struct.pack("<i", bits + 1))
    return float(moved)


@pytest.mark.parametrize(
    ("u", "v", "equal"),
    [
        (1.0, 1.0, True),
        (1, 1, True),
        (True, True, True),
        (None, None, True),
        (1, 1.0, False),
        (1, True, False),
        (1.0, True, False),
        (0, False, False),
        (0.0, None, False),
        ("1", 1, False),
        (0.1 + 0.2, 0.3, False),
        (math.nan, math.nan, False),
        (0.0, -0.0, True),
    ],
)
def test_equal_exactly_and_by_type(u: object, v: object, equal: bool) -> None:
    assert _scores(u, v) == (() if equal else ("score",))
    assert _scores(v, u) == _scores(u, v)


def test_the_same_nan_is_not_equal_to_itself() -> None:
    x = a_trial(a_completion(IDS), a_scored(score=math.nan))
    assert compare_trials(x, x).score_divergent
    assert not repeats(x, x)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("score", 0.5),
        ("passed", False),
        ("passed", None),
        ("extracted_answer", None),
        ("extracted_answer", "X"),
        ("expected_answer", None),
        ("failure_mode", "empty"),
    ],
)
def test_each_invariant_field_is_a_score_difference(field: str, value: object) -> None:
    x, y = a_trial(a_completion(IDS)), a_trial(a_completion(IDS), a_scored(**{field: value}))
    diff = compare_trials(x, y)
    assert (diff.score_fields, diff.token_fields) == ((field,), ())
    assert diff.score_divergent
    assert not diff.token_divergent
    assert not repeats(x, y)


@pytest.mark.parametrize("count", [None, 41, 40.0])
def test_the_prompt_count_is_an_invariant_field(count: object) -> None:
    diff = compare_trials(
        a_trial(a_completion(IDS)), a_trial(a_completion(IDS, prompt_tokens=count))
    )
    assert diff.score_fields == ("prompt_tokens_measured",)


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "other"},
        {"finish_reason": "stop"},
        {"finish_reason": None},
        {"reasoning": ""},
        {"tool_calls": "[]"},
        {"token_ids": pack_ids([11, 12, 13, 14, 15, 17])},
        {"completion_tokens": 5},
        {"completion_tokens": None},
    ],
)
def test_each_token_field_is_a_token_difference(changes: dict[str, Any]) -> None:
    x, y = a_trial(a_completion(IDS)), a_trial(a_completion(IDS, **changes))
    for one, other in ((x, y), (y, x)):
        diff = compare_trials(one, other)
        assert diff.token_fields == tuple(changes)
        assert diff.token_divergent
        assert not diff.score_divergent


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_n": 3},
        {"draft_n": 3},
        {"truncated": True},
        {"logprobs": None},
        {"top_ids": None, "top_logprobs": None},
    ],
)
def test_what_belongs_to_other_gates_is_no_difference(changes: dict[str, Any]) -> None:
    x, y = a_trial(a_completion(IDS)), a_trial(a_completion(IDS, **changes))
    diff = compare_trials(x, y)
    assert (diff.score_fields, diff.token_fields) == ((), ())


def test_a_lost_trial_is_not_compared() -> None:
    x = a_trial(a_completion(IDS))
    gone = lost()(x)
    for one, other in ((x, gone), (gone, x), (gone, gone)):
        with pytest.raises(ValueError, match="lost"):
            compare_trials(one, other)


def test_an_unscored_answer_is_not_compared() -> None:
    x = a_trial(a_completion(IDS))
    with pytest.raises(ValueError, match="no invariant fields"):
        compare_trials(x, replace(x, scored=None))


# Where tokens part.


@pytest.mark.parametrize(
    ("other", "n", "first"),
    [
        (IDS, 6, None),
        ([9, 12, 13, 14, 15, 16], 0, (0, 11, 9)),
        ([11, 12, 13, 9, 15, 16], 3, (3, 14, 9)),
        ([11, 12, 13, 14, 15, 9], 5, (5, 16, 9)),
        ([11, 12, 13], 3, (3, 14, None)),
        ([*IDS, 7], 6, (6, None, 7)),
        ([], 0, (0, 11, None)),
    ],
)
def test_first_divergence(
    other: list[int], n: int, first: tuple[int, int | None, int | None] | None
) -> None:
    diff = compare_trials(a_trial(a_completion(IDS)), a_trial(a_completion(other)))
    assert diff.n_tokens == n
    assert diff.tokens_known
    found = diff.first
    assert (None if found is None else (found.token_index, found.token_x, found.token_y)) == first


@pytest.mark.parametrize(("x_ids", "y_ids"), [(None, None), (None, IDS), (IDS, None)])
def test_unknown_tokens_are_said_to_be_unknown(
    x_ids: list[int] | None, y_ids: list[int] | None
) -> None:
    def known(ids: list[int] | None) -> Trial:
        return a_trial(a_completion(IDS, token_ids=None if ids is None else pack_ids(ids)))

    diff = compare_trials(known(x_ids), known(y_ids))
    assert not diff.tokens_known
    assert (diff.n_tokens, diff.first, diff.drift) == (0, None, None)


@pytest.mark.parametrize("n", range(12))
def test_token_counts_without_decoding(n: int) -> None:
    x = a_trial(a_completion(list(range(n))))
    assert compare_trials(x, x).n_tokens == n


def _topped(tops: Sequence[Sequence[float]], n: int | None = None) -> Completion:
    flat = [v for row in tops for v in row]
    ids = list(range(len(tops) if n is None else n))
    return a_completion(ids, top_logprobs=pack_floats(flat), top_ids=pack_ids(range(len(flat))))


def test_the_margin_is_best_minus_second() -> None:
    completion = _topped([[-0.5, -2.0, -3.0], [-4.0, -0.25, -1.25]])
    assert margin_at(completion, 0) == 1.5
    assert margin_at(completion, 1) == 1.0
    assert margin_at(completion, 2) is None
    assert margin_at(completion, -1) is None
    assert margin_at(_topped([[-0.5], [-0.5]]), 0) is None
    assert margin_at(_topped([[-0.5, -1.0]]), 0) == 0.5
    assert margin_at(a_completion(IDS, top_logprobs=None), 0) is None
    assert margin_at(a_completion(IDS, token_ids=None), 0) is None
    assert margin_at(_topped([[-0.5, -math.inf]]), 0) is None
    assert margin_at(a_completion([], top_logprobs=""), 0) is None


def test_the_margin_of_a_divergence_is_that_of_x() -> None:
    x, y = a_completion(IDS), a_completion([11, 12, 9, 14, 15, 16])
    diff = compare_trials(a_trial(x), a_trial(y))
    assert diff.first == FirstDivergence(2, 13, 9, 1.0)


# Drift.


def _drift(x: Completion, y: Completion) -> Drift | None:
    return compare_trials(a_trial(x), a_trial(y)).drift


def _logprobs(values: Sequence[float], ids: Sequence[int] = IDS, **changes: Any) -> Completion:
    return a_completion(
        ids, logprobs=pack_floats(values), top_ids=None, top_logprobs=None, **changes
    )


BASE = [-0.5, -0.25, -1.5, -0.75, -2.5, -0.125]


def test_no_drift() -> None:
    assert _drift(_logprobs(BASE), _logprobs(BASE)) == Drift(6, 0, None, 0.0)
    assert _drift(a_completion(IDS), a_completion(IDS)) == Drift(6, 0, None, 0.0)


@pytest.mark.parametrize("place", [0, 3, 5])
def test_one_bit_is_drift(place: int) -> None:
    moved = list(BASE)
    moved[place] = _ulp_up(moved[place])
    size = abs(moved[place] - BASE[place])
    assert size > 0
    for x, y in ((BASE, moved), (moved, BASE)):
        assert _drift(_logprobs(x), _logprobs(y)) == Drift(6, 1, place, size, (bin_of(size),))


def test_drift_counts_positions_and_keeps_the_largest() -> None:
    moved = [-0.5, -0.5, -1.5, -1.75, -2.5, -0.25]
    assert _drift(_logprobs(BASE), _logprobs(moved)) == Drift(
        6, 3, 1, 1.0, (bin_of(0.25), bin_of(1.0), bin_of(0.125))
    )


def test_drift_is_measured_on_the_common_prefix_alone() -> None:
    moved = [-0.5, -0.5, -9.5, -9.5, -9.5, -9.5]
    other = [11, 12, 9, 14, 15, 16]
    assert _drift(_logprobs(BASE), _logprobs(moved, other)) == Drift(2, 1, 1, 0.25, (bin_of(0.25),))
    assert _drift(_logprobs(BASE), _logprobs(moved, [9, *IDS[1:]])) is None


def test_drift_of_the_alternatives() -> None:
    def topped(rows: list[list[tuple[int, float]]]) -> Completion:
        flat = [cell for row in rows for cell in row]
        return a_completion(
            [1, 2],
            logprobs=pack_floats([-0.5, -0.25]),
            top_ids=pack_ids([i for i, _ in flat]),
            top_logprobs=pack_floats([v for _, v in flat]),
        )

    base = [[(1, -0.5), (7, -1.0)], [(2, -0.25), (8, -2.0)]]
    moved = [[(1, -0.5), (7, -1.0)], [(2, -0.25), (8, -2.5)]]
    swapped = [[(1, -0.5), (7, -1.0)], [(8, -2.5), (2, -0.25)]]
    stranger = [[(1, -0.5), (7, -1.0)], [(2, -0.25), (9, -9.0)]]
    assert _drift(topped(base), topped(moved)) == Drift(2, 1, 1, 0.5, (bin_of(0.5),))
    assert _drift(topped(base), topped(swapped)) == Drift(2, 1, 1, 0.5, (bin_of(0.5),))
    # An alternative that one side does not list has moved, by an unknown amount.
    assert _drift(topped(base), topped(stranger)) == Drift(2, 1, 1, 0.0, (bin_of(0.0),))


@pytest.mark.parametrize(
    ("values", "is_degenerate"),
    [
        (None, True),
        ([], True),
        ([0.0], True),
        ([-0.5], False),
        ([-0.5, -0.5], True),
        ([0.0, 0.0, 0.0], True),
        ([-0.5, -0.5, -0.25], False),
        ([-0.5, math.nan], True),
        ([-0.5, math.inf], True),
        ([-0.5, -math.inf, -0.25], True),
        ([math.inf, -math.inf], True),
    ],
)
def test_degenerate_logprobs_are_no_evidence(
    values: list[float] | None, is_degenerate: bool
) -> None:
    packed = None if values is None else pack_floats(values)
    assert degenerate(packed) is is_degenerate
    if values is not None:
        ids = list(range(len(values)))
        good = [-0.5 - i for i in ids]
        for x, y in ((values, values), (values, good), (good, values)):
            drift = _drift(_logprobs(x, ids), _logprobs(y, ids))
            assert (drift is None) is is_degenerate


def test_drift_is_unknown_without_usable_logprobs() -> None:
    good = a_completion(IDS)
    for bad in (
        a_completion(IDS, logprobs=None),
        a_completion(IDS, logprobs=pack_floats(BASE[:3])),
        a_completion(IDS, logprobs=pack_floats(BASE), top_ids=pack_ids([1])),
        a_completion(
            IDS, logprobs=pack_floats(BASE), top_ids=pack_ids([1]), top_logprobs=pack_floats([-1.0])
        ),
        a_completion(IDS, top_logprobs=pack_floats([math.nan, *[-1.0] * 11])),
        a_completion(IDS, top_logprobs=pack_floats([-math.inf, *[-1.0] * 11])),
    ):
        assert _drift(good, bad) is None
        assert _drift(bad, good) is None


def test_a_longer_answer_drifts_on_what_both_have() -> None:
    longer = [*IDS, 17]
    drift = _drift(_logprobs(BASE), _logprobs([*BASE, -3.0], longer))
    assert drift == Drift(6, 0, None, 0.0)


# Packed values.


def test_packing_keeps_every_bit() -> None:
    rng = random.Random(5)
    ids = [rng.randint(-(2**31), 2**31 - 1) for _ in range(100)]
    assert list(unpack_ids(pack_ids(ids))) == ids
    bits = [struct.unpack("<f", struct.pack("<I", rng.getrandbits(30)))[0] for _ in range(100)]
    assert list(unpack_floats(pack_floats(bits))) == bits
    assert unpack_ids("") == ()


@pytest.mark.parametrize("text", ["AAA", "AAAA", "A", "????", "AAAAA===", "é", "AAAAAA==\n"])
def test_what_is_not_packed_data_is_refused(text: str) -> None:
    for unpack in (unpack_ids, unpack_floats):
        with pytest.raises(EvidenceError):
            unpack(text)


# Arms.


def _items(n: int) -> tuple[Item, ...]:
    return tuple(
        Item(
            f"i{i}",
            (Message("user", str(i)),),
            family=("even", "odd")[i % 2],
            fill=0.5 if i else None,
        )
        for i in range(n)
    )


def _arm(arm: Arm, answers: dict[int, list[int]], **scored: object) -> dict[int, Trial]:
    return {
        i: a_trial(a_completion(ids), a_scored(**scored), TrialKey(arm, 0, i))
        for i, ids in answers.items()
    }


def test_two_equal_arms() -> None:
    answers = {i: [i, i + 1, i + 2] for i in range(5)}
    report = diff_arms(_items(5), "AB", _arm(Arm.A, answers), _arm(Arm.B, answers))
    assert (report.pair, report.n_compared, report.n_ids_compared) == ("AB", 5, 5)
    assert (report.n_divergent, report.n_token_only, report.divergence_rate) == (0, 0, 0.0)
    assert report.per_id == ()
    assert report.passed
    assert report.token_identical
    assert {
        k: (g.n_compared, g.n_divergent, g.n_token_only) for k, g in report.by_family.items()
    } == {
        "even": (3, 0, 0),
        "odd": (2, 0, 0),
    }
    assert {k: g.n_compared for k, g in report.by_fill.items()} == {"(none)": 1, "0.5": 4}


def test_nothing_compared_is_not_passed() -> None:
    report = diff_arms(_items(2), "AB", {}, {})
    assert (report.n_compared, report.divergence_rate) == (0, None)
    assert not report.passed
    assert not report.token_identical


def test_a_score_difference_and_a_token_difference_are_kept_apart() -> None:
    answers = {i: [i, i + 1, i + 2] for i in range(4)}
    x, y = _arm(Arm.A, answers), _arm(Arm.B, answers)
    y[1] = a_trial(a_completion([1, 9, 3]), a_scored(), TrialKey(Arm.B, 0, 1), lane=3)
    y[2] = a_trial(a_completion([2, 3, 4]), a_scored(score=0.0), TrialKey(Arm.B, 0, 2))
    y[3] = a_trial(a_completion([9, 4, 5]), a_scored(passed=False), TrialKey(Arm.B, 0, 3))
    report = diff_arms(_items(4), "AB", x, y)
    assert report.divergent_ids == ("i2", "i3")
    assert (report.n_divergent, report.divergence_rate) == (2, 0.5)
    assert report.token_divergence_ids == ("i1", "i3")
    assert report.n_token_only == 1
    assert not report.passed
    assert not report.token_identical
    by_id = {entry.id: entry for entry in report.per_id}
    assert list(by_id) == ["i1", "i2", "i3"]
    assert by_id["i1"].score_fields == ()
    assert by_id["i1"].token_fields == ("text", "token_ids")
    assert (by_id["i1"].n_score_divergent, by_id["i1"].n_token_divergent) == (0, 1)
    assert by_id["i2"].score_fields == ("score",)
    assert (by_id["i2"].n_score_divergent, by_id["i2"].n_token_divergent) == (1, 0)
    divergence = by_id["i1"].first_divergence
    assert (divergence.token_index, divergence.token_x, divergence.token_y) == (1, 2, 9)
    assert (divergence.lane, divergence.wave, divergence.margin_x) == (3, None, 1.0)
    assert divergence.content_sha_x == sha256_hex(b"1 2 3")
    assert divergence.content_sha_y == sha256_hex(b"1 9 3")
    assert by_id["i2"].first_divergence.token_index is None
    groups = {k: (g.n_compared, g.n_divergent, g.n_token_only) for k, g in report.by_family.items()}
    assert groups == {"even": (2, 1, 0), "odd": (2, 1, 1)}


def test_token_only_still_passes_but_is_not_identical() -> None:
    x, y = _arm(Arm.A, {0: [1, 2]}), _arm(Arm.B, {0: [1, 3]})
    report = diff_arms(_items(1), "AB", x, y)
    assert report.passed
    assert not report.token_identical
    assert report.n_token_only == 1


def test_an_item_on_one_side_is_a_divergence_and_the_sides_mirror() -> None:
    x = _arm(Arm.A, {0: [1], 1: [2], 2: [3]})
    y = _arm(Arm.B, {1: [2], 3: [4]})
    report = diff_arms(_items(4), "AB", x, y)
    mirror = diff_arms(_items(4), "AB", y, x)
    assert (report.only_x, report.only_y) == (("i0", "i2"), ("i3",))
    assert (mirror.only_x, mirror.only_y) == (("i3",), ("i0", "i2"))
    assert report.divergent_ids == mirror.divergent_ids == ("i0", "i2", "i3")
    assert (report.n_divergent, report.n_compared) == (3, 1)
    assert report.divergence_rate == 0.0
    assert not report.passed


def test_a_lost_trial_is_neither_equal_nor_a_divergence() -> None:
    x, y = _arm(Arm.A, {0: [1], 1: [2]}), _arm(Arm.B, {0: [9], 1: [2]})
    for one, other in (({**x, 0: lost()(x[0])}, y), (x, {**y, 0: lost()(y[0])})):
        report = diff_arms(_items(2), "AB", one, other)
        assert (report.n_compared, report.n_divergent, report.only_x, report.only_y) == (
            1,
            0,
            (),
            (),
        )
        assert report.passed


def test_drift_over_an_arm() -> None:
    answers = dict.fromkeys(range(4), IDS)
    x = {i: a_trial(_logprobs(BASE), None, TrialKey(Arm.A, 0, i)) for i in answers}
    late = [*BASE[:5], -0.375]
    early = [*BASE[:2], -1.75, *BASE[3:]]
    y = {
        0: a_trial(_logprobs(BASE), None, TrialKey(Arm.B, 0, 0)),
        1: a_trial(_logprobs(late), None, TrialKey(Arm.B, 0, 1)),
        2: a_trial(_logprobs(early), None, TrialKey(Arm.B, 0, 2)),
        3: a_trial(a_completion(IDS, logprobs=None), None, TrialKey(Arm.B, 0, 3)),
    }
    drift = diff_arms(_items(4), "AB", x, y).logit_drift
    assert (drift.n_trials, drift.n_trials_moved) == (3, 2)
    assert (drift.n_positions, drift.n_moved) == (18, 2)
    assert (drift.first_index, drift.max_abs, drift.n_unknown) == (2, 0.25, 1)


def test_unknown_tokens_over_an_arm() -> None:
    x = {0: a_trial(a_completion(IDS, token_ids=None))}
    report = diff_arms(_items(1), "AB", x, x)
    assert report.n_tokens_unknown == 1
    assert report.passed
    assert not report.token_identical
