"""A strict reader of the part of TOML that a model registry is written in.

Read: comments; `[table]` and `[a.b]`; bare and quoted keys; one-line basic strings with their
escapes and literal strings; decimal integers of 64 bits; `true` and `false`; lists of those, over
several lines and with a comma at the end. Everything else is refused by its line: dotted keys,
arrays of tables, inline tables, lists in lists, multi-line strings, floats, dates, integers in
other bases. What is accepted means the same to any TOML 1.0 reader (https://toml.io/en/v1.0.0).

Time and memory grow with the length of the text alone.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from batch_invariance.errors import RegistryError

MAX_DEPTH: Final = 8
"""Names in one table heading; a registry needs two."""
MAX_SHOWN: Final = 40
"""Characters of the text that a fault quotes."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"[ \t\n]*(?:#[^\n]*[ \t\n]*)*")
_LINE_END = re.compile(r"(?:#[^\n]*)?(?:\n|\Z)")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"([^"\\\n]*(?:\\.[^"\\\n]*)*)"')
_LITERAL = re.compile(r"'([^'\n]*)'")
_WORD = re.compile(r"[^\s,\]#]+")
_INTEGER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)")

_ESCAPES: Final = {
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "f": "\f",
    "r": "\r",
    '"': '"',
    "\\": "\\",
}
_BOOLEANS: Final = {"true": True, "false": False}
_INT_DIGITS: Final = 19
_INT_RANGE: Final = range(-(1 << 63), 1 << 63)

Scalar = str | int | bool


def read_toml_subset(text: str, what: str) -> dict[str, object]:
    """The tables of `text` as nested dicts of str, int, bool and lists of those.

    `what` names the file in the error.

    Raises:
        RegistryError: at the first thing that is no TOML or not of this subset, with its line.
    """
    return _Reader(text.replace("\r\n", "\n"), what).read()


class _Reader:
    """One reading of one text: a position that only moves forward."""

    def __init__(self, text: str, what: str) -> None:
        self.text = text
        self.what = what
        self.at = 0
        self.root: dict[str, object] = {}
        self.table = self.root
        self.declared: set[tuple[str, ...]] = set()

    def read(self) -> dict[str, object]:
        """All statements, each on a line of its own."""
        bad = _CONTROL.search(self.text)
        if bad:
            self._fail(f"the character U+{ord(bad.group()):04X} may not stand here", bad.start())
        self._skip(_GAP)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                self._heading()
            else:
                self._pair()
            self._skip(_SPACE)
            if not self._skip(_LINE_END):
                self._fail(f"{self._next()} is not the end of the line")
            self._skip(_GAP)
        return self.root

    def _heading(self) -> None:
        if self.text.startswith("[[", self.at):
            self._fail("arrays of tables ([[...]]) are not read")
        start = self.at
        self.at += 1
        path: list[str] = []
        while not path or self._take("."):
            self._skip(_SPACE)
            path.append(self._key())
            self._skip(_SPACE)
            if len(path) > MAX_DEPTH:
                self._fail(f"a heading has more than {MAX_DEPTH} names", start)
        if not self._take("]"):
            self._fail(f"a heading needs ] instead of {self._next()}")
        self._declare(tuple(path), start)

    def _declare(self, path: tuple[str, ...], start: int) -> None:
        shown = self.text[start : min(self.at, start + MAX_SHOWN)]
        if path in self.declared:
            self._fail(f"the table {shown} is given twice", start)
        self.declared.add(path)
        table = self.root
        for name in path:
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                self._fail(f"{shown}: {_show(name)} has a value already", start)
            table = inner
        self.table = table

    def _pair(self) -> None:
        start = self.at
        key = self._key()
        self._skip(_SPACE)
        if self._take("."):
            self._fail("dotted keys are not read; write a [table] heading")
        if not self._take("="):
            self._fail(f"a key needs = instead of {self._next()}")
        self._skip(_SPACE)
        if self._take("["):
            value: object = self._list(start)
        else:
            value = self._scalar()
        if key in self.table:
            self._fail(f"the key {_show(key)} is given twice", start)
        self.table[key] = value

    def _key(self) -> str:
        if self._next() in ('"', "'"):
            return self._string()
        bare = _BARE_KEY.match(self.text, self.at)
        if bare is None:
            self._fail(f"a key cannot begin with {self._next()}")
        self.at = bare.end()
        return bare.group()

    def _list(self, start: int) -> list[Scalar]:
        values: list[Scalar] = []
        self._skip(_GAP)
        while not self._take("]"):
            if self.at == len(self.text):
                self._fail("the list that begins here does not end", start)
            if self.text[self.at] == "[":
                self._fail("lists in lists are not read")
            values.append(self._scalar())
            self._skip(_GAP)
            if self._take(","):
                self._skip(_GAP)
            elif self.at < len(self.text) and self.text[self.at] != "]":
                self._fail(f"a list needs , or ] instead of {self._next()}")
        return values

    def _scalar(self) -> Scalar:
        if self._next() in ('"', "'"):
            return self._string()
        if self._next() == "{":
            self._fail("inline tables ({...}) are not read; write a [table] heading")
        match = _WORD.match(self.text, self.at)
        if match is None:
            self._fail(f"a value is missing before {self._next()}")
        word = match.group()
        if word in _BOOLEANS:
            value: Scalar = _BOOLEANS[word]
        elif _INTEGER.fullmatch(word):
            value = self._integer(word)
        else:
            self._fail(
                f"{_show(word)} is not read as a value; write a string in quotes, a whole decimal "
                "number, true, false, or a list of those"
            )
        self.at = match.end()
        return value

    def _integer(self, word: str) -> int:
        digits = word.replace("_", "")
        if len(digits.lstrip("+-")) > _INT_DIGITS or int(digits) not in _INT_RANGE:
            self._fail(f"the number {_show(word)} does not fit 64 bits")
        return int(digits)

    def _string(self) -> str:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            self._fail("multi-line strings are not read")
        match = (_BASIC if quote == '"' else _LITERAL).match(self.text, self.at)
        if match is None:
            self._fail(f"the string that begins with {quote} does not end on its line")
        value = match.group(1)
        if quote == '"':
            value = _ESCAPE.sub(self._unescape, value)
        self.at = match.end()
        return value

    def _unescape(self, match: re.Match[str]) -> str:
        name = match.group(1)
        if name in _ESCAPES:
            return _ESCAPES[name]
        point = int(name[1:], 16) if len(name) > 1 else -1
        if not 0 <= point <= 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            self._fail(
                f"{_show(match.group())} is no escape of a basic string; a \\ is written \\\\"
            )
        return chr(point)

    def _next(self) -> str:
        """The next character, for a comparison or a message."""
        char = self.text[self.at : self.at + 1]
        if char in ('"', "'", "{"):
            return char
        return "the end of the line" if char in ("\n", "") else repr(char)

    def _take(self, char: str) -> bool:
        found = self.text.startswith(char, self.at)
        self.at += found
        return found

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match is not None

    def _fail(self, why: str, at: int | None = None) -> NoReturn:
        line = 1 + self.text.count("\n", 0, self.at if at is None else at)
        raise RegistryError(self.what, [f"line {line}: {why}"])


def _show(text: str) -> str:
    """The user's text, quoted, escaped and cut short."""
    return repr(text[:MAX_SHOWN]) + ("..." if len(text) > MAX_SHOWN else "")
