"""The shipped scorer `last_number`."""

from __future__ import annotations

import math

from batch_invariance import answer_values
from batch_invariance.answer_values import last_number, within
from batch_invariance.errors import ScorerError
from batch_invariance.invariance_diff.model import Completion, Item
from batch_invariance.scorer_base import Score
from batch_invariance.scorer_reading import (
    FailureMode,
    Reading,
    ReadingScorer,
    answered,
    read_reply,
)


class LastNumber(ReadingScorer):
    """The last number of the reply equals the last number of the expected answer.

    The answer is that number in canonical form (`answer_values.canonical_number`): `$1,024.50`
    and `1024.5` are one answer. With `tolerance` above zero the two may differ by as much. An
    item whose expected answer has no number is not scored.
    """

    name = "last_number"
    rests_on = (answer_values,)

    def __init__(self, tolerance: float = 0.0) -> None:
        if not (math.isfinite(tolerance) and tolerance >= 0):
            raise ScorerError(f"tolerance must be zero or more, is {tolerance}")
        self.params = {"tolerance": tolerance}
        self._tolerance = tolerance

    def read(self, completion: Completion, item: Item) -> Reading:
        """Read the last number; `wrong_format` without one."""
        reply = read_reply(completion)
        if isinstance(reply, Reading):
            return reply
        number = last_number(reply.text)
        if number is None:
            return reply.without_answer(FailureMode.WRONG_FORMAT)
        return answered(number)

    def score(self, answer: str | None, item: Item) -> Score:
        """1.0 when the numbers are equal, or within the tolerance."""
        expected = last_number(item.expected_answer or "")
        if expected is None:
            return Score(None, None)
        passed = answer is not None and within(answer, expected, self._tolerance)
        return Score(float(passed), passed)
