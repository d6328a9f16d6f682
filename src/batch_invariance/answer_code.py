"""Finding Python source in a reply: in its code fences, or between its lines of prose."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from batch_invariance.answer_text import fences
from batch_invariance.python_syntax import normalised_syntax

_MOST_BLOCKS = 20  # that are tried, from the last; each costs a parse
_TAGS = frozenset({"", "python", "python3", "py", "py3"})
_BEGINS = re.compile(r"(?:async +def|def|class|from|import)\b|@")
_GOES_ON = re.compile(r"[\s#)\]}]|$")
_DEFINITION = re.compile(r"\b(?:Async)?FunctionDef\(|\bClassDef\(")


def defines_something(syntax: str) -> bool:
    """Tell whether a normalised syntax tree has a function or a class in it."""
    return _DEFINITION.search(syntax) is not None


def reply_syntax(text: str, *, definition: bool, cut_off: bool = False) -> str | None:
    """Return the normalised syntax of the source in a reply, None where there is none.

    The last fenced block that is Python counts; without fences the whole text, or else its lines
    from the first that begins a definition or an import to the last that can belong to it. With
    `definition` only source that defines a function or a class counts, so that no word of prose
    is taken for an expression. Of a text that was cut off only a closed block is sure to be whole.
    """
    for source in _candidates(text, cut_off):
        syntax = normalised_syntax(textwrap.dedent(source))
        if syntax is None or "body=" not in syntax:
            continue
        if not definition or defines_something(syntax):
            return syntax
    return None


def _candidates(text: str, cut_off: bool) -> Iterator[str]:
    blocks = fences(text)
    for block in reversed(blocks[-_MOST_BLOCKS:]):
        if block.language in _TAGS and (block.closed or not cut_off):
            yield block.body
    if not blocks and not cut_off:
        yield text.strip("\n")
        yield _code_lines(text)


def _code_lines(text: str) -> str:
    """The first run of lines that look like code, the first of them at the left margin."""
    lines = text.split("\n")
    begin = next((i for i, line in enumerate(lines) if _BEGINS.match(line)), len(lines))
    end = begin
    while end < len(lines) and (_BEGINS.match(lines[end]) or _GOES_ON.match(lines[end])):
        end += 1
    return "\n".join(lines[begin:end])
