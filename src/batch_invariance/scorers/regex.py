"""The shipped scorer `regex`."""

from __future__ import annotations

import re
import warnings
from collections import deque

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


class Regex(ReadingScorer):
    """A regular expression (Python's `re`) picks the answer out of the reply, or is expected.

    With `pattern` the answer is what its `group` matched, stripped (by number or name; by default
    the first group, or the whole match where there is none), and is right when it equals the
    expected answer, stripped. Without `pattern` the item's expected answer is the pattern, the
    answer is the whole visible text, and it is right when the pattern matches in it.

    The first match in the visible text counts; with `last` the last one, with `full` the pattern
    has to match all of the text. Flags stand in the pattern: `(?i)`, `(?m)`, `(?s)`. Nothing
    limits the time of a match: a pattern such as `(a+)+b` can take for ever on an unlucky reply.
    """

    name = "regex"

    def __init__(
        self,
        pattern: str | None = None,
        group: str | None = None,
        full: bool = False,
        last: bool = False,
    ) -> None:
        if group is not None and pattern is None:
            raise ScorerError("group needs a pattern")
        if full and last:
            raise ScorerError("full and last exclude each other")
        self.params = {"pattern": pattern, "group": group, "full": full, "last": last}
        self._full, self._last = full, last
        self._compiled = None if pattern is None else compiled(pattern)
        self._group = 0 if self._compiled is None else _group_of(self._compiled, group)

    def read(self, completion: Completion, item: Item) -> Reading:
        """Match the pattern; `wrong_format` where a given pattern does not match."""
        reply = read_reply(completion)
        if isinstance(reply, Reading):
            return reply
        if self._compiled is not None:
            found = self._match(self._compiled, reply.text)
            picked = None if found is None else found[self._group]
            if picked is None:
                return reply.without_answer(FailureMode.WRONG_FORMAT)
            return answered(picked.strip())
        return answered(reply.text)

    def score(self, answer: str | None, item: Item) -> Score:
        """Compare with the expected answer, or match it."""
        if item.expected_answer is None:
            return Score(None, None)
        if self._compiled is not None:
            passed = answer == item.expected_answer.strip()
        else:
            passed = answer is not None and (
                self._match(compiled(item.expected_answer), answer) is not None
            )
        return Score(float(passed), passed)

    def _match(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        if self._full:
            return pattern.fullmatch(text)
        if not self._last:
            return pattern.search(text)
        matches = deque(pattern.finditer(text), maxlen=1)
        return matches[0] if matches else None


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Raises `ScorerError` saying what is wrong with it, and where."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ScorerError(f"pattern {pattern[:80]!r} cannot be compiled: {error}") from None


def _group_of(pattern: re.Pattern[str], group: str | None) -> int | str:
    if group is None:
        return min(pattern.groups, 1)
    if group.isascii() and group.isdigit() and len(group) < 4 and int(group) <= pattern.groups:
        return int(group)
    if group in pattern.groupindex:
        return group
    named = ", ".join(pattern.groupindex) or "none of them named"
    raise ScorerError(
        f"pattern has no group {group!r}; it has {pattern.groups} of them ({named}), and 0"
    )
