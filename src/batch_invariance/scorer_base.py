"""The base class of scorers, and the two that need nothing but it: exact match, and a function.

What a scorer returns is compared between the arms of a run, so it may depend on its arguments
alone: no clock, no randomness, no memory of earlier calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType

from batch_invariance.invariance_diff.model import Completion, Item

OK = "ok"
EMPTY = "empty"

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Score:
    """How good an answer is: `value` is any finite number, `passed` the yes or no, if there is."""

    value: float | None
    passed: bool | None


class Scorer(ABC):
    """Base class of scorers; a subclass has to write `score` and may change the rest.

    `name` (the class's own name unless it sets one) and `params` (JSON scalars: whatever tunes
    the scorer) go into the certificate. `rests_on` names the imported modules whose text belongs
    to the scorer's digest; the module of the class itself always does.
    """

    name: str = ""
    params: Mapping[str, Scalar] = MappingProxyType({})
    rests_on: tuple[ModuleType, ...] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__qualname__

    def extract_answer(self, completion: Completion, item: Item) -> str | None:
        """Return the answer in a completion, None where there is none: the text, stripped.

        The completion comes without its logprobs, which drift where the answer does not.
        """
        return completion.text.strip()

    def classify_failure_mode(self, completion: Completion, answer: str | None, item: Item) -> str:
        """Say in a word what became of the completion; only `ok` counts towards the floor (F2)."""
        return OK if answer else EMPTY

    @abstractmethod
    def score(self, answer: str | None, item: Item) -> Score:
        """Rate an answer; `Score(None, None)` where the item has no expected answer."""


class ExactMatch(Scorer):
    """The default: 1.0 and passed when answer and expected answer are equal once stripped."""

    name = "exact_match"

    def score(self, answer: str | None, item: Item) -> Score:
        """Compare with the item's expected answer."""
        if item.expected_answer is None:
            return Score(None, None)
        passed = answer == item.expected_answer.strip()
        return Score(float(passed), passed)


class FunctionScorer(Scorer):
    """A plain function `f(text, expected)` as a scorer.

    `text` is the completion's text, stripped; `expected` the item's expected answer. The function
    is not called for an item without one. It returns True or False (score 1.0 or 0.0, and passed
    or not), a number (the score; passed stays None), or None (not scored).
    """

    def __init__(self, function: Callable[[str, str], bool | float | None]) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__qualname__)

    def score(self, answer: str | None, item: Item) -> Score:
        """Ask the function."""
        if item.expected_answer is None:
            return Score(None, None)
        result = self.function(answer or "", item.expected_answer)
        if isinstance(result, bool):
            return Score(float(result), result)
        return Score(result, None)
