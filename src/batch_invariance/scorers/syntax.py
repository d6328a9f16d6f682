"""The shipped scorer `python_syntax`."""

from __future__ import annotations

from batch_invariance import answer_code, python_lexing, python_syntax
from batch_invariance.answer_code import defines_something, reply_syntax
from batch_invariance.answer_text import fences
from batch_invariance.invariance_diff.model import Completion, Item
from batch_invariance.python_syntax import normalised_syntax
from batch_invariance.scorer_base import Score
from batch_invariance.scorer_reading import (
    FailureMode,
    Reading,
    ReadingScorer,
    Reply,
    answered,
    read_reply,
)


class PythonSyntax(ReadingScorer):
    """The Python source in the reply has the same syntax tree as the expected answer.

    The answer is the normalised tree (`python_syntax.normalised_syntax`) of the last fenced block
    that is Python, or without fences of the text or the lines of code in it. Where the expected
    answer defines a function or a class, only source that does counts.
    """

    name = "python_syntax"
    rests_on = (answer_code, python_syntax, python_lexing)

    def read(self, completion: Completion, item: Item) -> Reading:
        """Read the source; `parse_fail` where none can be parsed."""
        reply = read_reply(completion)
        if isinstance(reply, Reading):
            return reply
        expected = expected_syntax(item.expected_answer or "")
        return read_source(reply, definition=defines_something(expected))

    def score(self, answer: str | None, item: Item) -> Score:
        """Compare the trees. Raises ValueError where the expected answer cannot be parsed."""
        if item.expected_answer is None:
            return Score(None, None)
        passed = answer == expected_syntax(item.expected_answer)
        return Score(float(passed), passed)


def read_source(reply: Reply, *, definition: bool) -> Reading:
    """Read the normalised syntax of a reply's source."""
    syntax = reply_syntax(reply.text, definition=definition, cut_off=reply.cut_off)
    if syntax is not None:
        return answered(syntax)
    unfinished = any(not block.closed for block in fences(reply.text))
    return reply.without_answer(FailureMode.PARSE_FAIL, unfinished=unfinished)


def expected_syntax(source: str) -> str:
    """Return the normalised syntax of a reference. Raises ValueError for what cannot be parsed."""
    syntax = normalised_syntax(source)
    if syntax is None:
        raise ValueError("the expected answer is no Python 3.10 source")
    return syntax
