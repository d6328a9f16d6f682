"""Cutting Python source into strings and the rest, as the lexers up to Python 3.11 cut it.

Python 3.12 reads f-strings by another grammar, and the trees that two Pythons make of one f-string
differ. So f-strings are taken out of a source before it is parsed, and compared as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_BRACKET_DEPTH = 80
MAX_WORD_CHARS = 600
"""Within the limits of every parser from 3.10 to 3.13, and of int() in every environment (640)."""

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<prefix>[rRbBuUfF]{0,2})
        (?:'''(?P<long1>(?:[^\\]|\\.)*?)'''|\"\"\"(?P<long2>(?:[^\\]|\\.)*?)\"\"\"
        |(?P<unclosed>'''|\"\"\")
        |'(?P<short1>(?:[^'\\\n]|\\.)*)'|"(?P<short2>(?:[^"\\\n]|\\.)*)"
        |(?P<broken>['"]))
    |(?P<word>[A-Za-z0-9_]+)
    |(?P<space>[ \t\f\n\\]+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_BODIES = ("long1", "long2", "short1", "short2")
_PREFIXES = frozenset({"", "r", "u", "b", "br", "rb", "f", "fr", "rf"})


@dataclass(frozen=True, slots=True)
class PlainSource:
    """A source whose f-strings are calls of names that occur nowhere else in it.

    Name number i is `stem` with i behind it; `fstrings[i]` is what it stands for, as text.
    """

    text: str
    stem: str
    fstrings: tuple[str, ...]

    def fstring(self, name: str) -> str | None:
        """Return the f-string that a name stands for, None for a name of the source itself."""
        return self.fstrings[int(name[len(self.stem) :])] if self.is_stand_in(name) else None

    def is_stand_in(self, name: str) -> bool:
        """Tell whether a name stands for an f-string."""
        return name.startswith(self.stem)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Adjacent strings with what joins them, each as (prefix, body); or any other token."""

    text: str
    strings: tuple[tuple[str, str], ...] = ()
    is_word: bool = False


def without_fstrings(source: str) -> PlainSource:
    """Replace each f-string, with the strings joined to it, by a call.

    A call, because that too is an expression that nothing can be assigned to. Raises ValueError
    for characters, strings, words and nesting that are no Python or beyond the limits above.
    """
    source.encode("utf-8")  # UnicodeEncodeError, a ValueError, for a lone surrogate
    if "\0" in source:
        raise ValueError("a NUL character in the source")
    stem = "_f"
    while stem in source:
        stem += "_"
    out: list[str] = []
    fstrings: list[str] = []
    after_word = False
    for piece in _joined(source):
        prefixes = {prefix for prefix, _ in piece.strings}
        if any("f" in prefix for prefix in prefixes):
            if any("b" in prefix for prefix in prefixes):
                raise ValueError("bytes joined to an f-string")
            out.append(f"{' ' if after_word else ''}{stem}{len(fstrings)}()")
            fstrings.append(ascii(piece.strings))
        else:
            out.append(piece.text)
        after_word = piece.is_word
    return PlainSource("".join(out), stem, tuple(fstrings))


def _joined(source: str) -> Iterator[_Piece]:
    """The tokens of a source, strings that Python joins taken together."""
    strings: list[tuple[str, str]] = []
    text = between = ""
    depth = 0
    for match in _TOKEN.finditer(source):
        string = _string(match)
        depth += _step(match)
        if depth > MAX_BRACKET_DEPTH:
            raise ValueError("brackets nested too deeply")
        if string is not None:
            strings.append(string)
            text, between = text + between + match[0], ""
        elif strings and _joins(match, depth):
            between += match[0]
        else:
            if strings:
                yield _Piece(text, tuple(strings))
                yield _Piece(between)
                strings, text, between = [], "", ""
            yield _Piece(match[0], is_word=match["word"] is not None)
    if strings:
        yield _Piece(text, tuple(strings))
        yield _Piece(between)


def _string(match: re.Match[str]) -> tuple[str, str] | None:
    if match["unclosed"] or match["broken"]:
        raise ValueError("a string without its end")
    body = next((match[name] for name in _BODIES if match[name] is not None), None)
    if body is None:
        return None
    prefix = "".join(sorted(match["prefix"].lower()))
    if match["prefix"].lower() not in _PREFIXES:
        raise ValueError("no such string prefix")
    return prefix, body


def _step(match: re.Match[str]) -> int:
    """How much deeper in brackets a token leads. Raises ValueError for what is no Python."""
    if match["word"] and len(match["word"]) > MAX_WORD_CHARS:
        raise ValueError("a word or number that long")
    other = match["other"]
    if other and not other.isascii():
        raise ValueError("a character beyond ASCII outside of strings and comments")
    return 1 if other and other in "([{" else -1 if other and other in ")]}" else 0


def _joins(match: re.Match[str], depth: int) -> bool:
    """Whether strings before and after this token are one string to Python."""
    if match["comment"] is not None:
        return depth > 0
    if match["space"] is None:
        return False
    left = match["space"].replace("\\\n", "")
    return "\\" not in left and (depth > 0 or "\n" not in left)
