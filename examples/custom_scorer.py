"""A scorer of your own: the last number of the reply, compared within a tolerance.

Exact match calls "The change is $7." wrong when "$7" is expected. This scorer reads the last
number of the reply and of the expected answer, so only what the number says counts. Run from the
directory that holds `examples`:

    batch-invariance run-live --server-bin llama-server --model model.gguf \
        --workset examples/workset.json --ctx 4096 --parallel 4 \
        --scorer examples.custom_scorer:LastNumber --out-dir certs

`examples.custom_scorer:strict`, an instance with other parameters, can be named as well.
"""

from __future__ import annotations

import math
import re

from batch_invariance.invariance_diff.model import Completion, Item
from batch_invariance.scorer_api import Score, Scorer

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def last_number(text: str) -> str | None:
    """Return the last number in a text without its thousands separators, None without one."""
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


class LastNumber(Scorer):
    """Score 1.0 when the reply's last number is within `tolerance` of the expected one."""

    name = "last_number"

    def __init__(self, tolerance: float = 1e-6) -> None:
        # Parameters are part of the scorer's digest: another tolerance is another scorer.
        self.params = {"tolerance": tolerance}
        self.tolerance = tolerance

    def extract_answer(self, completion: Completion, item: Item) -> str | None:
        """Return the reply's last number."""
        return last_number(completion.text)

    def classify_failure_mode(self, completion: Completion, answer: str | None, item: Item) -> str:
        """Count a reply as `ok` when it has a number, or when none was asked for."""
        if not completion.text.strip():
            return "empty"
        if answer is None and self._expected(item) is not None:
            return "no_number"
        return "ok"

    def score(self, answer: str | None, item: Item) -> Score:
        """Compare the numbers; an item that expects no number is not scored."""
        expected = self._expected(item)
        if expected is None:
            return Score(None, None)
        passed = answer is not None and math.isclose(
            float(answer), expected, rel_tol=0.0, abs_tol=self.tolerance
        )
        return Score(float(passed), passed)

    @staticmethod
    def _expected(item: Item) -> float | None:
        number = last_number(item.expected_answer or "")
        return None if number is None else float(number)


strict = LastNumber(tolerance=0.0)
