"""Records to JSON and back: strict, exact by type, and nothing is guessed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from enum import Enum

import pytest

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.codec import from_json, shown, to_json
from batch_invariance.invariance_diff.digest import canonical_json, digest_of, seeded_order
from batch_invariance.invariance_diff.model import ScorerInfo
from batch_invariance.invariance_diff.records import Counters, Footer, Header, PassStart
from core_fixtures import Ideal, decode, encode


class _Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class _Point:
    x: float
    name: str
    tags: tuple[str, ...]
    pair: tuple[int, str]
    colour: _Colour
    count: int | None = None
    extra: bool = False


POINT = _Point(0.5, "p", ("a", "b"), (1, "z"), _Colour.RED)
JSON = {
    "x": 0.5,
    "name": "p",
    "tags": ["a", "b"],
    "pair": [1, "z"],
    "colour": "red",
    "count": None,
    "extra": False,
}


def test_there_and_back() -> None:
    assert to_json(POINT) == JSON
    assert from_json(_Point, JSON, "point") == POINT


def test_a_default_may_be_left_out() -> None:
    short = {k: v for k, v in JSON.items() if k not in ("count", "extra")}
    assert from_json(_Point, short, "point") == POINT


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": "1"}, "point.x is of the wrong type"),
        ({"x": True}, "point.x is of the wrong type"),
        ({"x": None}, "point.x is of the wrong type"),
        ({"x": math.nan}, "point.x is of the wrong type"),
        ({"x": math.inf}, "point.x is of the wrong type"),
        ({"name": 1}, "point.name is of the wrong type"),
        ({"tags": "ab"}, "point.tags is not a list"),
        ({"tags": {"a": 1}}, "point.tags is not a list"),
        ({"tags": ["a", 1]}, "point.tags[1] is of the wrong type"),
        ({"pair": [1]}, "point.pair has 1 entries, not 2"),
        ({"pair": [1, "z", 2]}, "point.pair has 3 entries, not 2"),
        ({"pair": ["z", 1]}, "point.pair[0] is of the wrong type"),
        ({"colour": "blue"}, "point.colour has no meaning: 'blue'"),
        ({"colour": []}, "point.colour has no meaning"),
        ({"count": 1.0}, "point.count is of the wrong type"),
        ({"count": True}, "point.count is of the wrong type"),
        ({"extra": 0}, "point.extra is of the wrong type"),
        ({"extra": None}, "point.extra is of the wrong type"),
        ({"unknown": 1}, "point has an unknown field 'unknown'"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], says: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        from_json(_Point, {**JSON, **change}, "point")
    assert says in str(caught.value)


def test_a_missing_field_is_named() -> None:
    for name in ("x", "name", "tags", "pair", "colour"):
        with pytest.raises(EvidenceError, match=f"point lacks '{name}'"):
            from_json(_Point, {k: v for k, v in JSON.items() if k != name}, "point")


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_what_is_not_an_object(value: object) -> None:
    with pytest.raises(EvidenceError, match="point is not an object"):
        from_json(_Point, value, "point")


def test_whole_numbers_are_times_too() -> None:
    footer = from_json(Footer, {"ended": "complete", "n_trials": 1, "ts": 3}, "footer")
    assert type(footer.ts) is float


def test_a_scorer_keeps_the_types_of_its_parameters() -> None:
    params: dict[str, str | int | float | bool | None] = {
        "a": "x",
        "b": 1,
        "c": 1.0,
        "d": True,
        "e": None,
    }
    scorer = ScorerInfo("s", "0" * 64, params)
    again = from_json(ScorerInfo, json.loads(json.dumps(to_json(scorer))), "scorer")
    assert {k: (type(v), v) for k, v in again.params.items()} == {
        k: (type(v), v) for k, v in params.items()
    }
    with pytest.raises(EvidenceError, match=r"scorer.params.f is of the wrong type"):
        from_json(ScorerInfo, to_json(replace(scorer, params={"f": []})), "scorer")  # type: ignore[dict-item]


def test_every_record_comes_back_as_it_went() -> None:
    records = Ideal([8, 9, 7], n=2, passes=2).records()
    assert decode(encode(records)) == records
    kinds = {type(r) for r in records}
    assert {Header, PassStart, Footer} <= kinds


def test_counters_may_be_unknown() -> None:
    assert from_json(Counters, to_json(Counters(None, 0, 5)), "c") == Counters(None, 0, 5)


def test_shown_is_short_and_never_walks_nested_lists() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "not a word"
    assert shown("x" * 1000) == "'" + "x" * 59
    assert shown(None) == "not a word"
    assert shown(3) == "3"


def test_canonical_json_has_one_form() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == b'{"a":"\\u00e9","b":1}'
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of(1) != digest_of(1.0)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"range|compliant"):
            canonical_json(value)


def test_a_seeded_order_is_a_permutation() -> None:
    for n in range(12):
        assert sorted(seeded_order(n, "label")) == list(range(n))
    assert seeded_order(30, "a") != seeded_order(30, "b")
