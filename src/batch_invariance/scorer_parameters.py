"""Parameters of scorers: text from the command line becomes keyword arguments of a constructor.

A value is read as the constructor's annotation says: `bool` (true or false), `int`, `float`
(finite) and `str`, each of them also with `| None`. Any other annotation, or none, takes the text
as it is.
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

from batch_invariance.errors import ScorerError
from batch_invariance.scorer_loading import one_line

_INT = re.compile(r"[+-]?[0-9]{1,18}")
_Made = TypeVar("_Made")


def scorer_params(texts: Iterable[str]) -> dict[str, str]:
    """Split texts of the form `KEY=VALUE`. Raises `ScorerError` with every fault of the list."""
    faults: list[str] = []
    params: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            faults.append(f"{text!r} must be written KEY=VALUE")
        elif key in params:
            faults.append(f"{key} is given twice")
        params[key] = value
    if faults:
        raise ScorerError(f"scorer parameters: {'; '.join(faults)}")
    return params


def construct(made: type[_Made], params: Mapping[str, str], label: str) -> _Made:
    """Make an instance of a class with the parameters given as text.

    `label` says in errors which scorer it is. Raises `ScorerError` for a parameter that the
    constructor does not take, one that is missing, a value of the wrong type, and whatever the
    constructor itself raises.
    """
    accepted = parameter_names(made)
    unknown = [key for key in params if key not in accepted]
    if unknown:
        raise ScorerError(f"{label} {_unknown(unknown[0], accepted)}")
    hints = _hints(made)
    values = {key: _value(key, text, hints.get(key), label) for key, text in params.items()}
    try:
        return made(**values)
    except ScorerError as error:
        raise ScorerError(f"{label}: {error}") from None
    except Exception as error:
        how = "with these parameters" if params else "without arguments"
        raise ScorerError(f"{label}: making one {how} raised {one_line(error)}") from error


def parameter_names(made: type) -> tuple[str, ...]:
    """Return the names that a class takes as keyword arguments, in its own order."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except ValueError:  # written in C, without a signature
        return ()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in parameters if parameter.kind in named)


def _unknown(key: str, accepted: tuple[str, ...]) -> str:
    if not accepted:
        return f"takes no parameters, and {key} was given"
    close = get_close_matches(key, accepted, 1)
    hint = f"did you mean {close[0]}? it" if close else "it"
    return f"has no parameter {key}; {hint} takes {', '.join(accepted)}"


def _hints(made: type) -> Mapping[str, object]:
    try:
        return typing.get_type_hints(made.__init__)  # type: ignore[misc]
    except Exception:  # a name that only a type checker sees; the values then stay texts
        return {}


def _value(key: str, text: str, hint: object, label: str) -> object:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        hint = members[0] if len(members) == 1 else str
    if hint is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ScorerError(f"{label}: {key} must be true or false, is {text!r}")
    if hint is int:
        if _INT.fullmatch(text):
            return int(text)
        raise ScorerError(f"{label}: {key} must be a whole number, is {text!r}")
    if hint is float:
        number = _finite(text)
        if number is not None:
            return number
        raise ScorerError(f"{label}: {key} must be a finite number, is {text!r}")
    return text


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
