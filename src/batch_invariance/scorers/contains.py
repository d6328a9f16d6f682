"""The shipped scorer `contains`."""

from __future__ import annotations

from batch_invariance.invariance_diff.model import Completion, Item
from batch_invariance.scorer_base import Score
from batch_invariance.scorer_reading import Reading, ReadingScorer, answered, read_reply


class Contains(ReadingScorer):
    """The expected answer occurs in the reply.

    The answer is then the expected answer, stripped, so that other words around it are no other
    answer; where it does not occur, the whole visible text. With `ignore_case` upper and lower
    case are one. An item that expects an empty text is not scored.
    """

    name = "contains"

    def __init__(self, ignore_case: bool = False) -> None:
        self.params = {"ignore_case": ignore_case}
        self._ignore_case = ignore_case

    def read(self, completion: Completion, item: Item) -> Reading:
        """Look for the expected answer in the visible text."""
        reply = read_reply(completion)
        if isinstance(reply, Reading):
            return reply
        expected = _expected(item)
        if expected and self._folded(expected) in self._folded(reply.text):
            return answered(expected)
        return answered(reply.text)

    def score(self, answer: str | None, item: Item) -> Score:
        """1.0 when it was found."""
        expected = _expected(item)
        if not expected:
            return Score(None, None)
        # Of a text that does not contain the expected one no part can equal it.
        passed = answer is not None and self._folded(expected) == self._folded(answer)
        return Score(float(passed), passed)

    def _folded(self, text: str) -> str:
        return text.casefold() if self._ignore_case else text


def _expected(item: Item) -> str:
    return (item.expected_answer or "").strip()
