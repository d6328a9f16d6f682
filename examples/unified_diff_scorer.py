"""A scorer built from nothing, for a task of one's own: which files does a patch touch?

The task: the model is asked for a unified diff, and the expected answer names the files that it
may touch, one a line. What the diff says inside the files is judged elsewhere; here a reply is
right when it touches exactly those files, and the score is the share of them that it gets right.

The page docs/scorers.md builds this file step by step. Run from the directory that holds
`examples`:

    batch-invariance run-mock --scorer examples.unified_diff_scorer:TouchedFiles
"""

from __future__ import annotations

import re

from batch_invariance import Completion, Item, Score, Scorer, answer_text
from batch_invariance.answer_text import without_fence_marks, without_reasoning

_HEADER = re.compile(r"^\+\+\+ (?:b/)?(\S+)", re.MULTILINE)
_HUNK = re.compile(r"^@@ ", re.MULTILINE)


def touched(diff: str) -> list[str]:
    """Return the files that a unified diff changes, sorted, each once."""
    return sorted({path for path in _HEADER.findall(diff) if path != "/dev/null"})


class TouchedFiles(Scorer):
    """Scores a patch by the files that it touches."""

    name = "touched_files"
    rests_on = (answer_text,)

    def __init__(self, ignore_tests: bool = False) -> None:
        # Parameters are part of the scorer's digest: with another value it is another scorer.
        self.params = {"ignore_tests": ignore_tests}
        self._ignore_tests = ignore_tests

    def extract_answer(self, completion: Completion, item: Item) -> str | None:
        """Return the touched files, one a line: the one form that this answer has."""
        reply = without_fence_marks(without_reasoning(completion.text).text)
        if not _HUNK.search(reply):
            return None
        return "\n".join(self._counted(touched(reply))) or None

    def classify_failure_mode(self, completion: Completion, answer: str | None, item: Item) -> str:
        """Only a reply with a diff in it is a real answer, right or wrong."""
        if answer is not None:
            return "ok"
        if completion.finish_reason == "length":
            return "truncated"
        return "no_diff" if completion.text.strip() else "empty"

    def score(self, answer: str | None, item: Item) -> Score:
        """Rate by the share of files, of both sides, that are on both; passed when all are."""
        if item.expected_answer is None:
            return Score(None, None)
        expected = set(self._counted(item.expected_answer.split()))
        given = set((answer or "").split("\n")) - {""}
        share = len(given & expected) / len(given | expected) if given | expected else 0.0
        return Score(share, share == 1.0)

    def _counted(self, paths: list[str]) -> list[str]:
        if not self._ignore_tests:
            return paths
        return [path for path in paths if not path.startswith("tests/")]
