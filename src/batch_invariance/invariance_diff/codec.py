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
from collections.abc import Callable, Mapping
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
    try:
        return typing.cast(T, _reader(typing.cast(Any, cls))(value))
    except _Misfit as misfit:
        raise EvidenceError("evidence", [f"{where}{misfit.place} {misfit.what}"]) from None


def shown(value: object) -> str:
    """A value as an error may quote it: short, and no walk through nested lists."""
    return repr(value)[:SHOWN_LIMIT] if isinstance(value, (str, int, float)) else "not a word"


_Reader = Callable[[Any], Any]


class _Misfit(Exception):
    """A value that does not fit; `place` grows on the way out, so that what fits builds none."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.place = ""

    def inside(self, place: str) -> _Misfit:
        """The same, seen from the value around it."""
        self.place = place + self.place
        return self


@functools.cache
def _reader(hint: Any) -> _Reader:
    """What turns a JSON value into one of this type, or raises _Misfit; made once for each type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _union_reader(hint)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return _list_reader(args[0])
        return _row_reader(args)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(args[1])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _object_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _word_reader(hint)
    if hint is float:
        return _read_float
    return _read_any if hint is Any else _plain_reader(hint)


@functools.cache
def _plain(hint: Any) -> frozenset[type]:
    """The types of the values that fit as they are."""
    if hint in SCALARS and hint is not float:
        return frozenset({hint})
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return frozenset[type]().union(*map(_plain, typing.get_args(hint)))
    return frozenset()


def _object_reader(cls: type[Any]) -> _Reader:
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)
    readers = {f.name: (_plain(hints[f.name]), _reader(hints[f.name])) for f in fields}
    required = frozenset(
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("is not an object")
        if value.keys() != readers.keys():
            unknown, missing = value.keys() - readers.keys(), required - value.keys()
            if unknown:
                raise _Misfit(f"has an unknown field {shown(min(unknown))}")
            if missing:
                raise _Misfit(f"lacks {min(missing)!r}")
        fitting = {}
        for name, inner in value.items():
            plain, reader = readers[name]
            try:
                fitting[name] = inner if type(inner) in plain else reader(inner)
            except _Misfit as misfit:
                raise misfit.inside(f".{name}") from None
        return cls(**fitting)

    return read


def _list_reader(hint: Any) -> _Reader:
    plain, reader = _plain(hint), _reader(hint)

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Misfit("is not a list")
        if plain.issuperset(map(type, value)):
            return tuple(value)
        return tuple(_read_at(i, reader, inner) for i, inner in enumerate(value))

    return read


def _row_reader(hints: tuple[Any, ...]) -> _Reader:
    readers = tuple(map(_reader, hints))

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Misfit("is not a list")
        if len(readers) != len(value):
            raise _Misfit(f"has {len(value)} entries, not {len(readers)}")
        pairs = zip(readers, value, strict=True)
        return tuple(_read_at(i, reader, inner) for i, (reader, inner) in enumerate(pairs))

    return read


def _read_at(index: int, reader: _Reader, value: Any) -> Any:
    try:
        return reader(value)
    except _Misfit as misfit:
        raise misfit.inside(f"[{index}]") from None


def _mapping_reader(hint: Any) -> _Reader:
    reader = _reader(hint)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Misfit("is of the wrong type")
        fitting = {}
        for key, inner in value.items():
            try:
                fitting[key] = reader(inner)
            except _Misfit as misfit:
                raise misfit.inside(f".{bare(key)}") from None
        return fitting

    return read


def _union_reader(hint: Any) -> _Reader:
    plain = _plain(hint)
    readers = [_reader(o) for o in typing.get_args(hint) if o is not types.NoneType]

    def read(value: Any) -> Any:
        if type(value) in plain:
            return value
        for reader in readers:
            try:
                return reader(value)
            except _Misfit:
                if len(readers) == 1:
                    raise
        raise _Misfit("is of the wrong type")

    return read


def _word_reader(enum: type[Enum]) -> _Reader:
    def read(value: Any) -> Any:
        try:
            return enum(value)
        except ValueError:
            raise _Misfit(f"has no meaning: {shown(value)}") from None

    return read


def _plain_reader(hint: Any) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is hint:
            return value
        raise _Misfit("is of the wrong type")

    return read


def _read_float(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value):
        return float(value)
    raise _Misfit("is of the wrong type")


def _read_any(value: Any) -> Any:
    return value
