"""Dataclasses to JSON values and back, driven by their type hints.

Encoding turns enums into their values and tuples into lists. Decoding is strict: a missing field
without a default, an unknown field, or a value of another type is one EvidenceError that names
the place. Only the types that the records use are understood.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.workset_json import bare

T = TypeVar("T")
SHOWN_LIMIT = 60
SCALARS = frozenset({str, int, float, bool, type(None)})
"""What JSON holds as it is; most values are of these, so they are looked at first."""


def to_json(value: Any) -> Any:
    """The JSON value of a dataclass, enum, tuple, list, mapping or scalar."""
    if type(value) in SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    return value


@functools.cache
def _names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def from_json(cls: type[T], value: Any, where: str) -> T:
    """An instance of the dataclass `cls` from its JSON value.

    Raises EvidenceError naming `where` for a wrong type, a missing or an unknown field.
    """
    if not isinstance(value, dict):
        raise EvidenceError("evidence", [f"{where} is not an object"])
    hints, required = _shape(typing.cast(Any, cls))
    unknown = value.keys() - hints.keys()
    if unknown:
        raise EvidenceError("evidence", [f"{where} has an unknown field {shown(min(unknown))}"])
    missing = required - value.keys()
    if missing:
        raise EvidenceError("evidence", [f"{where} lacks {min(missing)!r}"])
    return cls(**{k: _decode(hints[k], v, f"{where}.{k}") for k, v in value.items()})


def shown(value: object) -> str:
    """A value as an error may quote it: short, and no walk through nested lists."""
    return repr(value)[:SHOWN_LIMIT] if isinstance(value, (str, int, float)) else "not a word"


@functools.cache
def _shape(cls: type[Any]) -> tuple[dict[str, Any], frozenset[str]]:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    required = frozenset(
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    return {f.name: hints[f.name] for f in fields}, required


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The origin of a type hint and its arguments."""
    return typing.get_origin(hint), typing.get_args(hint)


def _decode(hint: Any, value: Any, where: str) -> Any:
    if type(value) is hint and hint is not float:
        return value
    origin, args = _parts(hint)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(args, value, where)
    if origin is tuple:
        return _decode_tuple(args, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if isinstance(value, dict):
            inner = args[1]
            return {k: _decode(inner, v, f"{where}.{bare(k)}") for k, v in value.items()}
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, value, where)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            raise EvidenceError("evidence", [f"{where} has no meaning: {shown(value)}"]) from None
    elif hint is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif hint is Any:
        return value
    raise EvidenceError("evidence", [f"{where} is of the wrong type"])


def _decode_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, value, where)
        except EvidenceError:
            if len([o for o in options if o is not type(None)]) == 1:
                raise
    raise EvidenceError("evidence", [f"{where} is of the wrong type"])


def _decode_tuple(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise EvidenceError("evidence", [f"{where} is not a list"])
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if len(args) != len(value):
        raise EvidenceError("evidence", [f"{where} has {len(value)} entries, not {len(args)}"])
    pairs = zip(args, value, strict=True)
    return tuple(_decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(pairs))
