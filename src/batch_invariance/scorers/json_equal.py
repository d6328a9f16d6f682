"""The shipped scorer `json_equal`."""

from __future__ import annotations

from batch_invariance import answer_values
from batch_invariance.answer_text import without_fence_marks
from batch_invariance.answer_values import (
    find_json,
    json_regions,
    json_text,
    same_json,
    strict_json,
)
from batch_invariance.invariance_diff.model import Completion, Item
from batch_invariance.scorer_base import Score
from batch_invariance.scorer_reading import (
    FailureMode,
    Reading,
    ReadingScorer,
    Reply,
    answered,
    read_reply,
)


class JsonEqual(ReadingScorer):
    """The JSON value in the reply equals the expected answer's, by type and value.

    The order of keys and white space do not count; 1, 1.0, "1" and true are four values, as they
    are to a typed reader. The answer is the value in canonical JSON: the whole visible text where
    that is JSON, else the first complete object in it, or list where a list is expected. With
    `partial`, when both are objects, the score is the share of all keys of both whose values are
    equal; passed is still only for equality.
    """

    name = "json_equal"
    rests_on = (answer_values,)

    def __init__(self, partial: bool = False) -> None:
        self.params = {"partial": partial}
        self._partial = partial

    def read(self, completion: Completion, item: Item) -> Reading:
        """Read the JSON value; `no_valid_json` without one."""
        reply = read_reply(completion)
        if isinstance(reply, Reading):
            return reply
        return read_json(reply, "[" if (item.expected_answer or "").lstrip()[:1] == "[" else "{")

    def score(self, answer: str | None, item: Item) -> Score:
        """Compare with the expected JSON. Raises ValueError where that is none."""
        if item.expected_answer is None:
            return Score(None, None)
        try:
            expected = strict_json(item.expected_answer)
        except ValueError as error:
            raise ValueError(f"the expected answer is no strict JSON: {error}") from None
        given = None if answer is None else strict_json(answer)
        passed = answer is not None and same_json(given, expected)
        if self._partial and isinstance(given, dict) and isinstance(expected, dict):
            return Score(shared_keys(given, expected), passed)
        return Score(float(passed), passed)


def read_json(reply: Reply, opening: str) -> Reading:
    """Read the JSON value of a reply: its whole text, or the first that stands in it.

    `opening` is the bracket that a value inside other text has to begin with.
    """
    for text in (reply.text, without_fence_marks(reply.text)):
        for find in (strict_json, lambda inner: find_json(inner, opening)):
            try:
                return answered(json_text(find(text)))
            except ValueError:
                continue
    unfinished = opening in reply.text and not json_regions(reply.text, opening)
    return reply.without_answer(FailureMode.NO_VALID_JSON, unfinished=unfinished)


def shared_keys(given: dict[str, object], expected: dict[str, object]) -> float:
    """Return the share of all keys of two objects whose values are equal; 1.0 for two empty."""
    keys = given.keys() | expected.keys()
    equal = [key for key in given.keys() & expected.keys() if same_json(given[key], expected[key])]
    return len(equal) / len(keys) if keys else 1.0
