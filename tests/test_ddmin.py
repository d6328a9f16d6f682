"""Delta debugging and its repeated probes, against oracles that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from batch_invariance.invariance_diff.attempts import (
    MOST_ATTEMPTS,
    RARE_SHARE,
    Rate,
    attempts_to_see,
    fewer_than,
    plan_attempts,
)
from batch_invariance.invariance_diff.case import CaseRequest, CaseShape, Seen
from batch_invariance.invariance_diff.ddmin import Indexes, ddmin, smallest
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.reduction import Reducer, Shown, pieces
from batch_invariance.invariance_diff.schedule import DispatchKind


def needs(*wanted: int) -> Callable[[Indexes], bool]:
    return lambda indexes: set(wanted) <= set(indexes)


@pytest.mark.parametrize("wanted", [(), (0,), (15,), (3, 4), (0, 15), (1, 6, 11, 12)])
def test_what_is_needed_is_found_exactly(wanted: tuple[int, ...]) -> None:
    assert ddmin(16, needs(*wanted)) == wanted


def test_no_single_index_can_go_where_several_sets_would_do() -> None:
    def shows(indexes: Indexes) -> bool:
        return len(indexes) >= 3 or {2, 7} <= set(indexes)

    found = ddmin(10, shows)
    assert shows(found)
    assert not any(shows(tuple(i for i in found if i != gone)) for gone in found)


def test_nothing_is_asked_twice_and_the_whole_never() -> None:
    asked: list[Indexes] = []

    def shows(indexes: Indexes) -> bool:
        asked.append(indexes)
        return {1, 8, 9} <= set(indexes)

    assert ddmin(12, shows) == (1, 8, 9)
    assert len(asked) == len(set(asked))
    assert tuple(range(12)) not in asked


def test_bounds_on_the_parts_and_on_what_is_left() -> None:
    assert len(ddmin(64, needs(0, 20, 40, 63), most_parts=4)) > 4
    assert len(ddmin(8, lambda indexes: True, least=1)) == 1
    assert ddmin(0, needs()) == ()
    assert ddmin(1, needs()) == ()


def test_the_smallest_number_is_found_by_bisection() -> None:
    asked: list[int] = []
    assert smallest(1, 1000, lambda n: asked.append(n) is None and n >= 37) == 37
    assert len(asked) <= 10
    assert smallest(5, 5, lambda n: False) == 5


@pytest.mark.parametrize("rate", [0.9, 0.5, 0.25])
def test_an_oracle_that_shows_it_now_and_then_loses_nothing_that_is_needed(rate: float) -> None:
    """Each probe follows the plan for the rate: what is needed always stays, and what is not
    mostly goes."""
    plan, chance = plan_attempts(rate), random.Random(f"oracle {rate}")

    def shows(indexes: Indexes) -> bool:
        there = {2, 9} <= set(indexes)
        return sum(there and chance.random() < rate for _ in range(plan.limit)) >= plan.needed

    found = [ddmin(12, shows) for _ in range(200)]
    assert all({2, 9} <= set(one) for one in found)
    assert sum(one == (2, 9) for one in found) >= 150


@pytest.mark.parametrize("rate", [0.99, 11 / 12, 0.7, 0.5, 0.3, 0.2])
def test_a_plan_keeps_to_its_confidence_on_both_sides(rate: float) -> None:
    plan = plan_attempts(rate)
    assert plan.missed == fewer_than(plan.needed, plan.limit, rate) <= 0.05
    assert plan.lucky == 1.0 - fewer_than(plan.needed, plan.limit, rate * RARE_SHARE) <= 0.05


def test_what_shows_too_rarely_for_any_plan_is_said_so() -> None:
    plan = plan_attempts(1 / 50)
    assert plan.limit == MOST_ATTEMPTS
    assert max(plan.missed, plan.lucky) > 0.05


def test_the_binomial_tail_is_the_textbooks() -> None:
    assert fewer_than(1, 3, 0.5) == pytest.approx(0.125)
    assert fewer_than(2, 4, 0.25) == pytest.approx(0.7383, abs=1e-4)
    assert fewer_than(5, 4, 0.3) == pytest.approx(1.0)
    assert attempts_to_see(0.5) == 5
    assert 1.0 - fewer_than(1, attempts_to_see(0.2), 0.2) >= 0.95
    assert (Rate(10, 0).cautious, Rate(10, 10).cautious) == (1 / 12, 11 / 12)


# The whole search, against a made-up server.


def request(name: str, text: str, lane: int | None, wave: int = 0) -> CaseRequest:
    item = Item(name, (Message("system", "be brief"), Message("user", text)), max_tokens=32)
    return CaseRequest(item, wave, lane)


def crowd(kind: DispatchKind = DispatchKind.WAVES, n: int = 4) -> CaseShape:
    lanes = [None if kind is DispatchKind.SATURATE else i for i in range(n)]
    texts = [f"prompt {i} has some words in it" for i in range(n)]
    requests = tuple(request(f"q{i}", texts[i], lanes[i]) for i in range(n))
    return CaseShape(kind, n, requests, 1)


class MadeUp:
    """A server that mixes up the target with a companion whose prompt has the number 3, once the
    target has said `first` tokens and its prompt still has the word `has`."""

    def __init__(self, first: int = 5) -> None:
        self.first = first
        self.n_asked = 0
        self.stages: list[str] = []

    def stage(self, name: str, n_left: int) -> None:
        assert n_left >= 0
        self.stages.append(name)

    def shows(self, shape: CaseShape) -> Shown:
        self.n_asked += 1
        texts = ["".join(m.content for m in item.messages) for item in shape.items]
        target = shape.subject.item
        near = any("3" in texts[i] for i in shape.companions)
        kept = near and "has" in texts[shape.target] and (target.max_tokens or 0) > self.first
        return Shown(kept, (Seen(self.first, 1, 2, 0.1, ("text",)),) if kept else ())


@pytest.mark.parametrize("kind", [DispatchKind.WAVES, DispatchKind.SATURATE])
def test_a_crowd_is_reduced_to_the_two_that_matter(kind: DispatchKind) -> None:
    server = MadeUp()
    start = Seen(5, 1, 2, 0.1, ("text",))
    reducer = Reducer(crowd(kind), (start,), server, serial=False)
    best = reducer.run()
    assert (len(best.requests), best.lanes, best.kind) == (2, 2, DispatchKind.WAVES)
    assert best.subject.item.id == "q1"
    assert best.subject.item.max_tokens == 6
    (companion,) = best.companions
    assert best.requests[companion].item.max_tokens == 1
    assert all(len(item.messages) == 1 for item in best.items)
    assert len(best.subject.item.messages[0].content) < len("prompt 1 has some words in it")
    assert sorted(r.lane or 0 for r in best.requests) == [0, 1]
    assert server.n_asked < 60
    assert server.stages[:3] == ["companions", "schedule", "slots"]
    assert server.shows(best).kept


def test_slots_alone_come_down_to_one_request_after_the_other() -> None:
    class Slots(MadeUp):
        def shows(self, shape: CaseShape) -> Shown:
            return Shown((shape.subject.lane or 0) > 0)

    start = crowd()
    reducer = Reducer(start, (), Slots(), serial=True)
    best = reducer.run()
    assert (best.kind, best.companions, best.lanes) == (DispatchKind.SERIAL, (), 2)


def test_the_best_so_far_stands_when_the_search_is_cut_short() -> None:
    class Spent(Exception):
        pass

    class Short(MadeUp):
        def shows(self, shape: CaseShape) -> Shown:
            if self.n_asked == 4:
                raise Spent
            return super().shows(shape)

    reducer = Reducer(crowd(), (), Short(), serial=False)
    with pytest.raises(Spent):
        reducer.run()
    assert len(reducer.best.requests) < 4
    assert MadeUp().shows(reducer.best).kept


def test_any_selection_of_pieces_is_a_text() -> None:
    for text in ("one", "one two", " a  b\nc ", "日本語", ""):
        assert "".join(pieces(text)) == text
    assert pieces("one two three") == ["one", " two", " three"]
