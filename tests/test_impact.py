"""Score impact, closeness to a flip, and throughput, as the certificate states them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.model import Arm, Completion, Trial
from batch_invariance.invariance_diff.packed import pack_floats, pack_ids
from batch_invariance.invariance_diff.records import Header, Record
from batch_invariance.invariance_diff.workset import items_sha256
from core_fixtures import Ideal, Records, mutate, recertify

LENGTHS = (12, 20, 9, 16, 14, 11, 18, 10, 15, 13)
PASSES = 4


@pytest.fixture(scope="module")
def ideal() -> Records:
    return Ideal(LENGTHS, passes=PASSES).records()


def scored(records: Records, score_of: Callable[[Trial], float | None]) -> Certificate:
    def fn(record: Record) -> Record:
        if isinstance(record, Trial) and record.scored is not None:
            value = score_of(record)
            passed = None if value is None else value == 1.0
            return replace(record, scored=replace(record.scored, score=value, passed=passed))
        return record

    return recertify(mutate(records, fn))


def test_no_change_of_score(ideal: Records) -> None:
    impact = scored(ideal, lambda t: 1.0 if t.key.item % 2 else 0.5).score_impact
    assert (impact.n_scored, impact.n_changed, impact.n_better, impact.n_worse) == (10, 0, 0, 0)
    assert impact.mean_a == impact.mean_c == 0.75
    assert impact.difference == 0.0


def test_an_item_that_is_worse_in_one_pass(ideal: Records) -> None:
    def score(trial: Trial) -> float:
        worse = trial.key.arm is Arm.C and trial.key.item == 3 and trial.key.pass_index == 1
        return 0.0 if worse else 1.0

    impact = scored(ideal, score).score_impact
    assert (impact.n_changed, impact.n_better, impact.n_worse) == (1, 0, 1)
    assert impact.mean_a == 1.0
    n_trials = PASSES  # at least one a pass; a filled-up wave may send the item twice
    assert 1.0 - 1 / 10 / n_trials <= (impact.mean_c or 0.0) < 1.0
    assert impact.difference == (impact.mean_c or 0.0) - 1.0


def test_better_and_worse_are_told_apart(ideal: Records) -> None:
    def score(trial: Trial) -> float:
        in_c = trial.key.arm is Arm.C
        if trial.key.item == 0:
            return 1.0 if in_c else 0.0
        return 0.0 if in_c and trial.key.item == 1 else 0.5

    impact = scored(ideal, score).score_impact
    assert (impact.n_changed, impact.n_better, impact.n_worse) == (2, 1, 1)
    assert impact.mean_a == 0.45
    assert impact.mean_c == 0.5


def test_items_without_a_score_are_no_part_of_it(ideal: Records) -> None:
    impact = scored(ideal, lambda t: None if t.key.item < 4 else 1.0).score_impact
    assert impact.n_scored == 6
    assert impact.mean_a == 1.0
    none = scored(ideal, lambda t: None).score_impact
    assert (none.n_scored, none.mean_a, none.mean_c, none.difference) == (0, None, None, None)


def test_each_family_has_its_own_figures(ideal: Records) -> None:
    def families(record: Record) -> Record:
        if isinstance(record, Header):
            items = tuple(
                replace(item, family="even" if i % 2 == 0 else None)
                for i, item in enumerate(record.workset.items)
            )
            return replace(
                record, workset=replace(record.workset, items=items, sha256=items_sha256(items))
            )
        return record

    grouped = mutate(ideal, families)
    cert = scored(grouped, lambda t: 0.0 if t.key.arm is Arm.C and t.key.item == 2 else 1.0)
    by_family = cert.score_impact.by_family
    assert by_family is not None
    assert sorted(by_family) == ["(none)", "even"]
    assert (by_family["even"].n_scored, by_family["even"].n_changed) == (5, 1)
    assert by_family["even"].mean_c == 0.8
    assert by_family["(none)"].n_changed == 0
    assert by_family["even"].by_family is None


def with_margins(records: Records, shift: float) -> Certificate:
    """Every position has a margin of 0.5 nats, one of them 0.125; C's logprobs move by `shift`."""

    def fn(record: Record) -> Record:
        if not isinstance(record, Trial) or not isinstance(record.result, Completion):
            return record
        n = record.result.completion_tokens or 0
        move = shift if record.key.arm is Arm.C else 0.0
        chosen = [-0.25 - 0.0625 * i - move for i in range(n)]
        tops = [v for i, c in enumerate(chosen) for v in (c, c - (0.125 if i == 4 else 0.5))]
        result = replace(
            record.result,
            logprobs=pack_floats(chosen),
            top_ids=pack_ids([k for i in range(n) for k in (i, i + 1)]),
            top_logprobs=pack_floats(tops),
        )
        return replace(record, result=result)

    return recertify(mutate(records, fn))


def test_the_smallest_margin_against_the_largest_drift(ideal: Records) -> None:
    cert = with_margins(ideal, 0.0625)
    close = cert.closeness
    assert close.n_positions == sum(LENGTHS)
    assert close.smallest_margin == 0.125
    assert close.largest_drift == 0.0625
    assert close.margin_over_drift == 2.0
    # A value stands for the upper edge of its quarter octave.
    assert close.quantiles["0.5"] == 0.625
    assert sum(close.margins.values()) == sum(LENGTHS)
    assert close.margins[repr(0.15625)] == len(LENGTHS)
    drift = cert.divergence_report["AC"].logit_drift
    assert drift.quantiles == {"0.5": 0.078125, "0.9": 0.078125, "0.99": 0.078125}
    assert sum(drift.moves.values()) == drift.n_moved


def test_without_drift_there_is_no_ratio(ideal: Records) -> None:
    close = with_margins(ideal, 0.0).closeness
    assert close.smallest_margin == 0.125
    assert close.margin_over_drift is None
    assert recertify(ideal).closeness.largest_drift == 0.0


def test_throughput_counts_prompts_too(ideal: Records) -> None:
    speed = recertify(ideal).throughput
    assert speed.serial_tokens_per_s is not None
    assert speed.serial_prompt_tokens_per_s is not None
    ratio = speed.serial_prompt_tokens_per_s / speed.serial_tokens_per_s
    assert ratio == pytest.approx(40 * len(LENGTHS) / sum(LENGTHS))
    assert speed.speedup == (speed.concurrent_tokens_per_s or 0.0) / speed.serial_tokens_per_s
