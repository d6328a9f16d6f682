"""What a report takes from the records of a run: intervals, shares, answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.endpoint import Engine
from batch_invariance.invariance_diff.measure import measure
from batch_invariance.invariance_diff.model import Arm, Completion, Trial, TrialKey
from batch_invariance.invariance_diff.records import Header, PassEnd, PassStart, Record, Resumed
from batch_invariance.invariance_diff.report_evidence import RunCollector, RunView
from core_fixtures import Ideal, Records, in_arm, trial_of
from endpoint_ideal import IdealEndpoint

LENGTH = 24
WANTED = TrialKey(Arm.C, 1, 3)


def records() -> Records:
    return Ideal([LENGTH] * 20).records()


def collected(
    records: tuple[Record, ...], wanted: dict[TrialKey, str | None] | None = None
) -> RunView:
    collector = RunCollector(wanted or {})
    measure(records, collector)
    view = collector.view()
    assert view is not None
    return view


def test_every_trial_is_an_interval_on_its_lane() -> None:
    made = records()
    view = collected(made)
    spans = [span for one in view.passes for span in one.spans]
    trials = [r for r in made if isinstance(r, Trial)]
    assert [(s.item, s.lane, s.start_s, s.end_s) for s in spans] == [
        (t.key.item, t.lane, t.dispatch_ts, t.complete_ts) for t in trials
    ]
    assert not any(one.void for one in view.passes)


def test_shares_of_a_wave_are_those_of_the_certificate() -> None:
    loaded = [one for one in collected(records()).passes if one.arm is Arm.C]
    waves = [span for one in loaded if one.pass_index == 0 for span in one.spans]
    assert all(span.own == LENGTH and span.co_batched for span in waves)
    serial = [one for one in collected(records()).passes if one.arm is Arm.A]
    assert all(span.shared is None for one in serial for span in one.spans)


@pytest.mark.parametrize(("engine", "all_shared"), [(Engine.VLLM, True), (Engine.LLAMA_CPP, False)])
def test_shares_on_a_strangers_server_are_those_of_the_certificate(
    engine: Engine, all_shared: bool
) -> None:
    """Behind an interface that names no slots llama.cpp does not tell who shared with whom."""
    made = IdealEndpoint([LENGTH] * 8, passes=1).records()
    header = made[0]
    assert isinstance(header, Header)
    assert header.endpoint is not None
    endpoint = replace(header.endpoint, engine=engine)
    view = collected((replace(header, endpoint=endpoint), *made[1:]))
    waves = [span for one in view.passes if one.arm is Arm.C for span in one.spans]
    assert {span.co_batched for span in waves} == {all_shared}


def test_only_wanted_answers_are_kept() -> None:
    made = records()
    answer = trial_of(made, in_arm(Arm.C, 1, 3)).result
    view = collected(made, {WANTED: None})
    assert view.answers == {WANTED: answer}


def test_nothing_comes_of_nothing() -> None:
    assert RunCollector({}).view() is None


def interrupted(text: str) -> Records:
    """Pass C1 cut off after its first trial of item 3, resumed a thousand seconds later."""
    made = list(records())
    begin = next(
        i
        for i, r in enumerate(made)
        if isinstance(r, PassStart) and r.arm is Arm.C and r.pass_index
    )
    end = next(i for i, r in enumerate(made) if i > begin and isinstance(r, PassEnd))
    whole = made[begin:end]
    last = next(i for i, r in enumerate(whole) if isinstance(r, Trial) and r.key.item == 3)
    cut_off = whole[: last + 1]
    trial = cut_off[-1]
    assert isinstance(trial, Trial)
    assert isinstance(trial.result, Completion)
    cut_off[-1] = replace(trial, result=replace(trial.result, text=text))
    header = made[0]
    resumed = Resumed("2026-01-02T03:04:05Z", header.observer, 1e6)  # type: ignore[union-attr]
    shift = 1e6 - trial.complete_ts
    later = [
        replace(r, dispatch_ts=r.dispatch_ts + shift, complete_ts=r.complete_ts + shift)
        if isinstance(r, Trial)
        else r
        for r in made[begin:]
    ]
    return (*made[:begin], *cut_off, resumed, *later)


def test_an_interrupted_pass_is_void_and_its_pause_is_left_out() -> None:
    view = collected(interrupted("cut off"))
    first, again = [p for p in view.passes if (p.arm, p.pass_index) == (Arm.C, 1)]
    assert (first.void, again.void) == (True, False)
    spans = [span for one in view.passes for span in one.spans]
    assert max(span.end_s for span in spans) < 1e5


def test_of_two_answers_the_one_of_the_certificate_is_shown() -> None:
    made = interrupted("cut off")
    whole = trial_of(records(), in_arm(Arm.C, 1, 3)).result
    assert isinstance(whole, Completion)
    for text in ("cut off", whole.text):
        view = collected(made, {WANTED: sha256_hex(text.encode())})
        assert view.answers[WANTED].text == text
