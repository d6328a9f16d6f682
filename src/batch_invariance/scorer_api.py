"""The scorer seam: how a completion becomes a scored answer, and how to plug in your own.

On the command line a scorer is one of the tool's own, by its name (`scorers.SHIPPED`), or named
`pkg.mod:Name`, where `Name` is

- a subclass of `Scorer`, which is made with the parameters given, or without arguments;
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
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import FunctionType, ModuleType

from batch_invariance import scorer_base
from batch_invariance.errors import ScorerError
from batch_invariance.scorer_base import EMPTY as EMPTY
from batch_invariance.scorer_base import OK as OK
from batch_invariance.scorer_base import ExactMatch as ExactMatch
from batch_invariance.scorer_base import FunctionScorer as FunctionScorer
from batch_invariance.scorer_base import Scalar as Scalar
from batch_invariance.scorer_base import Score as Score
from batch_invariance.scorer_base import Scorer as Scorer
from batch_invariance.scorer_loading import import_for, one_line, source_of
from batch_invariance.scorer_parameters import construct, scorer_params
from batch_invariance.scorers import shipped_scorer

from .invariance_diff.model import MAX_MAGNITUDE, Completion, Item, Scored, ScorerInfo

SCORER_ERROR = "scorer_error"


def resolve_scorer(spec: str, params: Iterable[str] = ()) -> Scorer:
    """Find the scorer that `spec` names, `pkg.mod:Name` or a shipped one's name.

    `params`: texts `KEY=VALUE`, which become keyword arguments of the class, typed as its
    constructor annotates them. The current directory can be imported from, as with `python -m`.
    Raises `ScorerError`.
    """
    texts = scorer_params(params)
    module_name, colon, name = spec.partition(":")
    if not colon and module_name.isidentifier():
        return shipped_scorer(spec, texts)
    if not name.isidentifier() or not all(map(str.isidentifier, module_name.split("."))):
        raise ScorerError(
            f"scorer {spec!r} must be written pkg.mod:Name, a module and a name in it, or be one"
            " of the tool's own"
        )
    module = import_for(spec, module_name)
    try:
        found = getattr(module, name)
    except AttributeError:
        close = get_close_matches(name, vars(module))
        hint = f"did you mean {close[0]}?" if close else "nothing there has a similar name"
        raise ScorerError(f"scorer {spec!r}: {module_name} has no {name}; {hint}") from None
    return _as_scorer(found, spec, texts)


def _as_scorer(found: object, spec: str, params: Mapping[str, str]) -> Scorer:
    if isinstance(found, type) and issubclass(found, Scorer):
        if inspect.isabstract(found):
            raise ScorerError(f"scorer {spec!r}: the class does not define score(answer, item)")
        return construct(found, params, f"scorer {spec!r}")
    if params and (isinstance(found, Scorer) or inspect.isfunction(found)):
        what = "an instance" if isinstance(found, Scorer) else "a function"
        raise ScorerError(
            f"scorer {spec!r} is {what} and takes no parameters, {', '.join(params)} given; name"
            " a class to set them"
        )
    if isinstance(found, Scorer):
        return found
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

    Raises `ScorerError` when its name is no text, its params are not scalars, or what it rests on
    is no modules.
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
    if not all(isinstance(module, ModuleType) for module in _rests_on(scorer)):
        raise ScorerError(f"scorer {scorer.name}: rests_on must be a tuple of modules")
    return ScorerInfo(scorer.name, scorer_sha256(scorer), params)


def scorer_sha256(scorer: Scorer) -> str:
    """Digest a scorer's name, parameters and source text, in hex.

    The source is that of each module that defines the function, or the class and its bases
    (the standard library aside), and of those named in `rests_on` by any of the classes; of the
    classes in `scorer_base` only their own text, so that the digest is not one of this tool's
    version. What those modules import beyond is not covered. Without source the bytecode stands
    in, and then the digest also depends on the Python version.
    """
    parts: list[type | FunctionType] = [
        base
        for base in type(scorer).__mro__
        if base.__module__.partition(".")[0] not in sys.stdlib_module_names
    ]
    if isinstance(scorer, FunctionScorer) and isinstance(scorer.function, FunctionType):
        parts.append(scorer.function)
    sources: list[list[object]] = [
        [
            f"{part.__module__}:{part.__qualname__}",
            source_of(part, alone=part.__module__ == scorer_base.__name__),
        ]
        for part in parts
    ]
    sources += [[module.__name__, source_of(module, alone=True)] for module in _rests_on(scorer)]
    text = json.dumps([scorer.name, dict(scorer.params), sources], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _rests_on(scorer: Scorer) -> list[ModuleType]:
    """What the scorer's class and its bases rest on, in the order of the classes."""
    named: list[ModuleType] = []
    for base in type(scorer).__mro__:
        found = vars(base).get("rests_on", ())
        named += found if isinstance(found, tuple) else [found]
    return named


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
        if abs(value) > MAX_MAGNITUDE:
            raise ValueError(f"Score.value is beyond {MAX_MAGNITUDE:g}: {value}")
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
