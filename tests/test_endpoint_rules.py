"""Edges of what serves an endpoint's run: its gauge, its wants, the planted change, its rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.control import plan_ban, plan_exchange, planted_body
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.endpoint import (
    Capabilities,
    Endpoint,
    Engine,
    Offered,
    Sharing,
    TokenNames,
    sharing,
    wants,
)
from batch_invariance.invariance_diff.gauge import Interval, Poll, proves_company, read_gauge
from batch_invariance.invariance_diff.lifetime_rate import Lived, lifetime_rate
from batch_invariance.invariance_diff.model import Arm, Trial, TrialKey, Verdict
from batch_invariance.invariance_diff.records import ControlPlan, Footer
from batch_invariance.invariance_diff.request import ban_token, build_body
from batch_invariance.invariance_diff.stats import exact_zero_bound
from core_fixtures import (
    Ideal,
    a_completion,
    a_scored,
    a_trial,
    in_arm,
    lost,
    mutate,
    on_trials,
    recertify,
    with_result,
    with_scored,
)
from endpoint_ideal import DIALECT, ENDPOINT, IdealEndpoint

# The gauge.

TWO: list[Interval] = [(1.0, 3.0, 0, 0), (1.0, 3.0, 1, 0)]


@pytest.mark.parametrize(
    ("poll", "counts"),
    [
        # A poll that touches both ends of a trial is inside it.
        ((1.0, 3.0, 2, 0), (1, 1)),
        ((0.9, 3.0, 2, 0), (0, 0)),
        ((1.0, 3.1, 2, 0), (0, 0)),
        # Fewer running than in flight: some wait, which is not told.
        ((2.0, 2.0, 1, 1), (1, 0)),
        ((2.0, 2.0, 3, 0), (1, 0)),
    ],
)
def test_a_poll_is_inside_a_trial_that_spans_it(poll: Poll, counts: tuple[int, int]) -> None:
    reading = read_gauge([poll], TWO)
    assert reading.of_trial == {(0, 0): counts, (1, 0): counts}
    assert reading.n_polls == 1


def test_a_trial_is_in_flight_from_its_dispatch_to_its_completion() -> None:
    """Both ends belong to it; where only some are in flight, as many running are all of them."""
    apart: list[Interval] = [(1.0, 2.0, 0, 0), (2.0, 3.0, 1, 0), (4.0, 5.0, 2, 0)]
    assert read_gauge([(2.0, 2.0, 2, 0)], apart).peak == 2
    assert read_gauge([(2.1, 2.2, 1, 0)], apart).peak == 1
    assert read_gauge([(2.0, 2.1, 1, 0)], apart).peak == 0
    assert read_gauge([(1.8, 1.9, 2, 0)], apart).peak == 0
    assert read_gauge([(3.5, 3.6, 0, 0)], apart).peak == 0
    assert read_gauge([(2.0, 2.0, 2, 0), (4.1, 4.2, 1, 0)], apart).peak == 2


def test_one_alone_is_beside_no_other() -> None:
    alone: list[Interval] = [(1.0, 3.0, 7, 2)]
    assert read_gauge([(1.5, 1.6, 1, 0), (2.0, 2.1, 1, 0)], alone).of_trial == {(7, 2): (2, 0)}


def test_an_excess_counts_from_the_first_completion_on() -> None:
    trials: list[Interval] = [(0.0, 9.0, 0, 0), (0.0, 5.0, 1, 0)]
    for asked, n_over in ((4.9, 0), (5.0, 1), (6.0, 1)):
        assert read_gauge([(asked, asked, 3, 0)], trials).n_over == n_over
    assert read_gauge([(6.0, 6.0, 1, 0), (7.0, 7.0, 2, 0), (8.0, 8.0, 5, 0)], trials).n_over == 2


def test_polls_beside_no_trial_at_all_are_all_in_excess() -> None:
    reading = read_gauge([(0.0, 0.0, 1, 0), (-0.5, -0.5, 1, 0), (0.5, 0.5, 0, 0)], [])
    assert (reading.n_polls, reading.peak, reading.n_over) == (3, 0, 1)
    assert reading.of_trial == {}


def test_trials_are_told_apart_by_item_and_occurrence() -> None:
    again: list[Interval] = [(0.0, 1.0, 3, 0), (2.0, 3.0, 3, 1)]
    reading = read_gauge([(0.5, 0.6, 1, 0)], again)
    assert reading.of_trial == {(3, 0): (1, 0), (3, 1): (0, 0)}


def test_company_is_proved_by_two_polls_and_half() -> None:
    assert not proves_company(1, 1)
    assert proves_company(4, 2)
    assert not proves_company(5, 2)
    assert proves_company(6, 3)


# What a server would have to offer.


def _can(**changes: object) -> Endpoint:
    capabilities: Capabilities = replace(ENDPOINT.capabilities, **changes)
    return replace(ENDPOINT, capabilities=capabilities)


def _has(engine: Engine = Engine.VLLM, **changes: str | None) -> Endpoint:
    offered: Offered = replace(ENDPOINT.offered, **changes)
    return replace(ENDPOINT, engine=engine, offered=offered)


@pytest.mark.parametrize(
    ("endpoint", "wanted"),
    [
        (ENDPOINT, []),
        (_has(steps=None), []),
        (_has(running=None), []),
        (_has(steps=None, running=None), ["a witness of batches: "]),
        (_has(generated=None), ["a count of generated tokens, to show other traffic: "]),
        (_has(cached=None), []),
        (_can(reports_cache=False), []),
        (
            replace(_has(cached=None), capabilities=_can(reports_cache=False).capabilities),
            ["word of its prompt cache: start vLLM with --no-enable-prefix-caching"],
        ),
        (_can(tokens=TokenNames.SPELLING), []),
        (_can(tokens=TokenNames.NONE), ["logprobs in its answers, which name the tokens"]),
        (_can(usage=False), ["usage in its answers, which counts the tokens"]),
    ],
)
def test_what_a_server_would_have_to_offer(endpoint: Endpoint, wanted: list[str]) -> None:
    said = wants(endpoint)
    assert len(said) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(said, wanted, strict=True))


@pytest.mark.parametrize(
    ("engine", "counters", "cache"),
    [
        (Engine.LLAMA_CPP, "start llama-server with --metrics", "cache_prompt=false"),
        (Engine.VLLM, "start vLLM without --disable-log-stats", "--no-enable-prefix-caching"),
        (Engine.SGLANG, "start SGLang with --enable-metrics", "--disable-radix-cache"),
        (Engine.TGI, "let /metrics of TGI through", "usage.prompt_tokens_details"),
        (Engine.OTHER, "counters of the kind that llama.cpp", "usage.prompt_tokens_details"),
    ],
)
def test_each_engine_is_told_its_own_switch(engine: Engine, counters: str, cache: str) -> None:
    endpoint = _has(engine, generated=None, cached=None)
    endpoint = replace(endpoint, capabilities=_can(reports_cache=False).capabilities)
    counted, cached = wants(endpoint)
    assert f": {counters}" in counted
    assert cache in cached


# The planted change.


def _reference(item: int, text: str, ids: tuple[int, ...], mode: str = "ok") -> Trial:
    key = TrialKey(Arm.A, 0, item)
    return a_trial(a_completion(ids, text), a_scored(failure_mode=mode), key=key)


def test_the_ban_is_of_the_first_real_answer_that_has_a_token() -> None:
    empty, odd = _reference(0, "", ()), _reference(1, "?", (8, 9), "empty")
    odder, real = _reference(2, "?", (6, 9), "empty"), _reference(3, "x", (5, 9))
    gone = lost()(_reference(4, "y", (4,)))
    unscored = replace(_reference(5, "z", (3,)), scored=None)
    assert plan_ban({0: empty, 1: odd, 2: odder, 3: real}) == ControlPlan(3, 5, 0)
    assert plan_ban({0: empty, 1: odd, 2: odder}) == ControlPlan(1, 8, 0)
    assert plan_ban({0: empty, 4: gone, 5: unscored}) is None
    assert plan_ban({4: gone, 5: unscored, 3: real}) == ControlPlan(3, 5, 0)


def test_the_exchange_is_of_two_answered_items_that_differ() -> None:
    x, y = _reference(0, "x", (4,)), _reference(3, "y", (5,))
    gone, unscored = lost()(_reference(1, "", ())), replace(_reference(2, "q", (6,)), scored=None)
    assert plan_exchange({0: x, 1: gone, 2: unscored, 3: y}) == ControlPlan(0, None, 0, 3)
    assert plan_exchange({0: x, 1: gone, 2: unscored}) is None


def test_the_planted_request_carries_the_ban_or_the_other_prompt() -> None:
    run = IdealEndpoint([8] * 4)
    items, sampling = run.items(), run.sampling()
    banned = build_body(items[1], sampling, ban_token(7, sampling.dialect))
    assert planted_body(ControlPlan(1, 7, 0), items, sampling) == banned
    other = build_body(items[3], sampling)
    assert planted_body(ControlPlan(1, None, 0, 3), items, sampling) == other
    own = build_body(items[1], sampling)
    assert planted_body(ControlPlan(1, None, 0), items, sampling) == own


# Who is sure to share a matrix product.


@pytest.mark.parametrize("engine", list(Engine))
def test_only_llama_cpp_parts_a_pass_by_slots(engine: Engine) -> None:
    pinned, free = (replace(DIALECT, pins_slots=pins) for pins in (True, False))
    told = (sharing(engine, pinned), sharing(engine, free))
    if engine is Engine.LLAMA_CPP:
        assert told == (Sharing.NEIGHBOURS, Sharing.UNTOLD)
    else:
        assert told == (Sharing.ANY_LANE, Sharing.ANY_LANE)


# The rate over lifetimes.

RECORDS = IdealEndpoint([12] * 11, passes=2).records()
SAME = recertify(RECORDS)
IN_C = in_arm(Arm.C, 0, 3)
SCORE_MOVED = recertify(on_trials(IN_C, with_scored(score=0.5))(RECORDS))
TEXT_MOVED = recertify(on_trials(IN_C, with_result(text="other"))(RECORDS))
BROKEN_OFF = recertify(mutate(RECORDS, lambda r: None if isinstance(r, Footer) else r))
OTHER_A = recertify(
    on_trials(lambda t: t.key.item == 3 and t.key.arm is not Arm.WARMUP, with_result(text="new"))(
        RECORDS
    )
)


@pytest.mark.parametrize(
    ("certificate", "diverged"),
    [
        (SAME, False),
        (SCORE_MOVED, True),
        (TEXT_MOVED, True),
        (BROKEN_OFF, None),
    ],
)
def test_a_lifetime_diverged_or_did_not_or_proves_neither(
    certificate: Certificate, diverged: bool | None
) -> None:
    rate = lifetime_rate([Lived(certificate, "a.json", True)])
    (outcome,) = rate.lifetimes
    assert outcome.diverged is diverged
    assert outcome.verdict is certificate.verdict
    assert (outcome.certificate, outcome.restart_seen) == ("a.json", True)
    assert outcome.sha256 == sha256_hex(certificate.to_bytes())
    assert rate.n_judged == (diverged is not None)
    assert rate.n_diverged == bool(diverged)
    assert rate.rate == (None if diverged is None else float(diverged))


def test_a_red_without_a_difference_in_the_answers_is_no_divergence_unjudged() -> None:
    """Only UNVERIFIED leaves a lifetime unjudged."""
    assert SCORE_MOVED.verdict is not Verdict.GREEN
    amber = replace(SAME, verdict=Verdict.AMBER)
    red = replace(SAME, verdict=Verdict.RED)
    rate = lifetime_rate([Lived(amber, "a", None), Lived(red, "b", True)])
    assert [o.diverged for o in rate.lifetimes] == [False, False]


def test_the_rate_is_over_the_judged_lifetimes() -> None:
    lived = [SAME, SCORE_MOVED, BROKEN_OFF, SAME, SAME]
    rate = lifetime_rate([Lived(c, f"{i}.json", None) for i, c in enumerate(lived)])
    assert (rate.n, rate.n_judged, rate.n_diverged, rate.rate) == (5, 4, 1, 0.25)
    assert rate.rate_upper_bound_95 is None
    assert (rate.endpoint_model, rate.concurrency, rate.n_reference_changed) == (SAME.model, 4, 0)
    clean = lifetime_rate([Lived(SAME, "a", None), Lived(SAME, "b", True)])
    assert clean.rate_upper_bound_95 == exact_zero_bound(2, 0.95)


@pytest.mark.parametrize(
    ("seen", "every_one"),
    [
        ((None,), True),
        ((None, True), True),
        ((False, True, True), True),
        ((None, False), False),
        ((None, None), False),
        ((True, False, True), False),
        ((None, True, False), False),
    ],
)
def test_lifetimes_bound_the_rate_only_where_every_restart_between_them_was_seen(
    seen: tuple[bool | None, ...], every_one: bool
) -> None:
    rate = lifetime_rate([Lived(SAME, "a", one) for one in seen])
    assert rate.all_restarts_seen is every_one
    assert rate.rate_upper_bound_95 == (exact_zero_bound(len(seen), 0.95) if every_one else None)
    assert (rate.n_judged, rate.n_diverged, rate.rate) == (len(seen), 0, 0.0)


def test_an_item_whose_serial_answer_differs_between_lifetimes_is_counted() -> None:
    own = recertify(Ideal([8] * 8, n=2).records())
    rate = lifetime_rate([Lived(own, "own", None), *[Lived(c, "x", True) for c in (SAME, OTHER_A)]])
    assert (rate.endpoint_model, rate.concurrency) == (own.model, own.dispatch_n)
    pair = lifetime_rate([Lived(SAME, "a", None), Lived(OTHER_A, "b", True)])
    assert pair.n_reference_changed == 1
