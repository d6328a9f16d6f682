"""Fields of a JSON object read by path and type, with every fault on one list."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

E = TypeVar("E", bound=Enum)

MOST = 1e300
"""Numbers beyond this are no figures of any cell, and whole ones of them fit no float."""


MAX_SHOWN = 200
"""Characters of a field's path in a fault."""


class JsonFields:
    """One JSON object.

    A field that is absent or null reads as None, or as an empty tuple. A field of a wrong type
    reads the same and puts a line on `issues`, which the parts of one document share; `where` is
    the path of this object within it.
    """

    def __init__(
        self, source: Mapping[str, Any], issues: list[str] | None = None, where: str = ""
    ) -> None:
        self.source = source
        self.issues: list[str] = [] if issues is None else issues
        self.where = where

    def text(self, path: str) -> str | None:
        """A string."""
        value = self._find(path)
        if isinstance(value, str):
            return value
        self._wrong(path, value, "a text")
        return None

    def count(self, path: str) -> int | None:
        """A whole number from 0."""
        value = self._find(path)
        if type(value) is int and value >= 0:
            return value
        self._wrong(path, value, "a whole number from 0")
        return None

    def number(self, path: str) -> float | None:
        """A finite number."""
        value = self._find(path)
        if type(value) in (int, float) and abs(value) <= MOST and math.isfinite(value):
            return float(value)
        self._wrong(path, value, "a number")
        return None

    def flag(self, path: str) -> bool | None:
        """True or false."""
        value = self._find(path)
        if isinstance(value, bool):
            return value
        self._wrong(path, value, "true or false")
        return None

    def word(self, path: str, words: type[E]) -> E | None:
        """A value of an enum of strings."""
        value = self._find(path)
        for word in words:
            if isinstance(value, str) and value == word.value:
                return word
        self._wrong(path, value, "one of " + ", ".join(str(word.value) for word in words))
        return None

    def texts(self, path: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._find(path)
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        self._wrong(path, value, "a list of texts")
        return ()

    def rows(self, path: str) -> list[JsonFields]:
        """A list of objects."""
        value = self._find(path)
        if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
            return [
                JsonFields(row, self.issues, f"{self.where}{path}[{i}].")
                for i, row in enumerate(value)
            ]
        self._wrong(path, value, "a list of objects")
        return []

    def part(self, path: str) -> JsonFields:
        """An object; empty where there is none."""
        value = self._find(path)
        if not isinstance(value, dict):
            self._wrong(path, value, "an object")
            value = {}
        return JsonFields(value, self.issues, f"{self.where}{path}.")

    def fault(self, path: str, text: str) -> None:
        """Puts a fault of this object on the list, in one line."""
        place = f"{self.where}{path}"
        if not place.isprintable() or len(place) > MAX_SHOWN:
            place = repr(place[:MAX_SHOWN])
        self.issues.append(f"{place}: {text}")

    def only(self, known: tuple[str, ...]) -> None:
        """Every key that is not among `known` is a fault."""
        for key in self.source:
            if key not in known:
                self.fault(str(key), f"unknown; known are {', '.join(known)}")

    def _find(self, path: str) -> Any:
        value: Any = self.source
        for name in path.split("."):
            if value is None:
                return None
            if not isinstance(value, Mapping):
                self.fault(path, "what should hold it is not an object")
                return None
            value = value.get(name)
        return value

    def _wrong(self, path: str, value: object, wanted: str) -> None:
        if value is not None:
            self.fault(path, f"is not {wanted}")
