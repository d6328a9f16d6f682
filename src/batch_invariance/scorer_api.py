"""The scorer seam: how a completion becomes a scored answer, and how to plug in your own.

On the command line a scorer is named `pkg.mod:Name`, where `Name` is

- a subclass of `Scorer`, which is made without arguments;
- an instance of `Scorer`;
- or a plain function `f(text, expected) -> bool | float | None`, see `FunctionScorer`.

What a scorer returns is compared between the arms of a run, so it may depend on its arguments
alone: no clock, no randomness, no memory of earlier calls.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import FunctionType, MappingProxyType

from batch_invariance.errors import ScorerError
from batch_invariance.scorer_loading import import_for, one_line, source_of

from .invariance_diff.model import Completion, Item, Scored, ScorerInfo

OK = "ok"
EMPTY = "empty"
SCORER_ERROR = "scorer_error"

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Score:
    """How good an answer is: `value` is any finite number, `passed` the yes or no, if there is."""

    value: float | None
    passed: bool | None


class Scorer(ABC):
    """Base class of scorers; a subclass has to write `score` and may change the rest.

    `name` (the class's own name unless it sets one) and `params` (JSON scalars: whatever tunes
    the scorer) go into the certificate.
    """

    name: str = ""
    params: Mapping[str, Scalar] = MappingProxyType({})

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


def resolve_scorer(spec: str) -> Scorer:
    """Find the scorer that `spec`, written `pkg.mod:Name`, names.

    The current directory can be imported from, as with `python -m`. Raises `ScorerError`.
    """
    module_name, _, name = spec.partition(":")
    if not name.isidentifier() or not all(map(str.isidentifier, module_name.split("."))):
        raise ScorerError(
            f"scorer {spec!r} must be written pkg.mod:Name, a module and a name in it"
        )
    module = import_for(spec, module_name)
    try:
        found = getattr(module, name)
    except AttributeError:
        close = get_close_matches(name, vars(module))
        hint = f"did you mean {close[0]}?" if close else "nothing there has a similar name"
        raise ScorerError(f"scorer {spec!r}: {module_name} has no {name}; {hint}") from None
    return _as_scorer(found, spec)


def _as_scorer(found: object, spec: str) -> Scorer:
    if isinstance(found, Scorer):
        return found
    if isinstance(found, type) and issubclass(found, Scorer):
        if inspect.isabstract(found):
            raise ScorerError(f"scorer {spec!r}: the class does not define score(answer, item)")
        try:
            return found()
        except Exception as error:
            raise ScorerError(
                f"scorer {spec!r}: making one without arguments raised {one_line(error)}"
            ) from error
    if inspect.isfunction(found):
        try:
            inspect.signature(found).bind("text", "expected")
        except TypeError:
            raise ScorerError(
                f"scorer {spec!r}: the function must take two arguments, f(text, expected)"
            ) from None
        return FunctionScorer(found)
    what = "a class without that base" if isinstance(found, type) else f"a {type(found).__name__}"
    raise ScorerError(
        f"scorer {spec!r} must be a subclass or an instance of batch_invariance.scorer_api.Scorer"
        f" or a function f(text, expected), is {what}"
    )


def describe_scorer(scorer: Scorer) -> ScorerInfo:
    """Name a scorer for the certificate.

    Raises `ScorerError` when its name is no text or its params are not scalars.
    """
    if not isinstance(scorer.name, str) or not isinstance(scorer.params, Mapping):
        raise ScorerError(
            f"scorer {type(scorer).__qualname__}: name must be a string and params a mapping"
        )
    params = dict(scorer.params)
    for key, value in params.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        if not (isinstance(key, str) and isinstance(value, Scalar) and finite):
            raise ScorerError(
                f"scorer {scorer.name}: parameter {key!r} must be a string, a finite number, a"
                f" bool or None under a string key, is {type(value).__name__}"
            )
    return ScorerInfo(scorer.name, scorer_sha256(scorer), params)


def scorer_sha256(scorer: Scorer) -> str:
    """Digest a scorer's name, parameters and source text, in hex.

    The source is that of each module that defines the function, or the class and its bases
    (the standard library aside); of the classes in this module only their own text, so that the
    digest is not one of this tool's version. What those modules import is not covered. Without
    source the bytecode stands in, and then the digest also depends on the Python version.
    """
    parts: list[type | FunctionType] = [
        base
        for base in type(scorer).__mro__
        if base.__module__.partition(".")[0] not in sys.stdlib_module_names
    ]
    if isinstance(scorer, FunctionScorer) and isinstance(scorer.function, FunctionType):
        parts.append(scorer.function)
    sources = [
        [
            f"{part.__module__}:{part.__qualname__}",
            source_of(part, alone=part.__module__ == __name__),
        ]
        for part in parts
    ]
    text = json.dumps([scorer.name, dict(scorer.params), sources], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def apply_scorer(scorer: Scorer, completion: Completion, item: Item) -> Scored:
    """Score one completion. Raises `ScorerError` when the scorer raises or returns nonsense."""
    seen = _without_logprobs(completion)
    try:
        answer = scorer.extract_answer(seen, item)
        mode = scorer.classify_failure_mode(seen, answer, item)
        return _scored(answer, mode, scorer.score(answer, item), item)
    except (Exception, SystemExit) as error:
        raise ScorerError(
            f"scorer {scorer.name} failed on item {item.id!r}: {one_line(error)}"
        ) from error


def _without_logprobs(completion: Completion) -> Completion:
    # Logprobs drift under batching where not one token changes. A scorer that read them, or was
    # asked again because of them, would turn that drift (gate F4) into a change of score (F0).
    return replace(completion, logprobs=None, top_ids=None, top_logprobs=None)


def _scored(answer: object, mode: object, score: object, item: Item) -> Scored:
    """Check the types of what a scorer returned; raise TypeError or ValueError saying which."""
    if answer is not None and not isinstance(answer, str):
        raise TypeError(f"extract_answer must return a string or None, not {_type(answer)}")
    if not isinstance(mode, str) or not mode:
        raise TypeError(f"classify_failure_mode must return a non-empty string, not {_type(mode)}")
    for text in (answer or "", mode):
        text.encode()  # the evidence is UTF-8; a lone surrogate raises UnicodeEncodeError
    if not isinstance(score, Score):
        raise TypeError(f"score must return a Score, not {_type(score)}")
    value: object = score.value
    passed: object = score.passed
    if passed is not None and not isinstance(passed, bool):
        raise TypeError(f"Score.passed must be True, False or None, not {_type(passed)}")
    if value is not None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"Score.value must be a number or None, not {_type(value)}")
        value = float(value)
        if not math.isfinite(value):
            raise ValueError(f"Score.value must be finite, not {value}")
    # An enum of strings is a string too; what is compared and stored is its plain text.
    plain = None if answer is None else str.__str__(answer)
    return Scored(plain, item.expected_answer, str.__str__(mode), value, passed)


def _type(value: object) -> str:
    return "an empty string" if value == "" else type(value).__name__


class ScoringSession:
    """One run's use of a scorer: each distinct (item, completion) is scored once.

    Completions that differ in logprobs alone are one. A failure at the very first call raises
    `ScorerError`, because the scorer is then broken; a later one becomes a `Scored` with failure
    mode `scorer_error`. To be called from one thread.
    """

    def __init__(self, scorer: Scorer, max_errors: int = 20) -> None:
        self.scorer = scorer
        self.error_count = 0
        self._max_errors = max_errors
        self._errors: list[str] = []
        self._scored: dict[tuple[Item, bytes], Scored] = {}

    @property
    def errors(self) -> tuple[str, ...]:
        """The first `max_errors` messages of failures after the first call."""
        return tuple(self._errors)

    def score(self, item: Item, completion: Completion) -> Scored:
        """Return the score of a completion of this item."""
        # A digest, because whole completions of all passes would not fit in memory.
        text = ascii(_without_logprobs(completion))
        key = (item, hashlib.sha256(text.encode("ascii")).digest())
        if key not in self._scored:
            self._scored[key] = self._ask(item, completion)
        return self._scored[key]

    def _ask(self, item: Item, completion: Completion) -> Scored:
        try:
            return apply_scorer(self.scorer, completion, item)
        except ScorerError as error:
            if not self._scored:
                raise
            self.error_count += 1
            if len(self._errors) < self._max_errors:
                self._errors.append(str(error))
            return Scored(None, item.expected_answer, SCORER_ERROR, None, None)
