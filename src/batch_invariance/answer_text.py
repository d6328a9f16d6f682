"""Reading the text of a reply: reasoning blocks, code fences, wrappers, and signs of trouble.

Text in, text out. Every function takes time linear in the length of the text, is indifferent to
what characters are in it, and gives the same result on every Python and platform.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

THINK, UNTHINK = "<think>", "</think>"

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`\n]*)")
_LAYERS = 8  # of quotes around one answer; more would be no wrapper any more
_WRAPPERS = (
    ("**", "**"), ("*", "*"), ("```", "```"), ("`", "`"), ('"', '"'), ("'", "'"),
    ("\u201c", "\u201d"), ("\u2018", "\u2019"), ("\u00ab", "\u00bb"),
)  # fmt: skip
_SENTENCE_END = re.compile(r"[.!?](?=\s)")

REPEATED_TIMES = 8
REPEATED_CHARS = 40
_REPEATED_WINDOW = 4096  # characters from the end

_REFUSED = re.compile(
    r"(?:(?:i'?m|i am)\s+(?:very\s+|really\s+|so\s+)?sorry|sorry|i apologi[sz]e|unfortunately)?"
    r"[\s,.!:;]*(?:but\s+)?(?:as an? (?:ai|language model)\b[^.,\n]{0,60}[.,]?\s*)?"
    r"(?:i\s+(?:can'?t|can\s?not|could not|couldn'?t|won'?t|will not|must decline to)"
    r"|i(?:'m| am)\s+(?:unable|not able|not allowed|not permitted|not going)\s+to)\s+"
    r"(?:help|assist|comply|provide|share|reveal|disclose|answer|give you|fulfil|do that|discuss"
    r"|support|complete (?:this|that|your)|respond|engage|participate)\b"
)


@dataclass(frozen=True, slots=True)
class Visible:
    """A text without its reasoning. `leaked`: a reasoning block was opened and never closed."""

    text: str
    leaked: bool


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block: its language tag (lower case, may be empty), its lines, closed or not."""

    language: str
    body: str
    closed: bool


def without_reasoning(text: str) -> Visible:
    """Cut out what stands between `<think>` and `</think>`.

    A `</think>` without its opening (chat templates may put that in the prompt) cuts all before
    it; a `<think>` without its closing cuts all after it.
    """
    kept: list[str] = []
    at = 0
    while (opened := text.find(THINK, at)) >= 0:
        closed = text.find(UNTHINK, opened)
        kept.append(text[at:opened])
        if closed < 0:
            return Visible(_after_last_unthink("".join(kept)), leaked=True)
        at = closed + len(UNTHINK)
    kept.append(text[at:])
    return Visible(_after_last_unthink("".join(kept)), leaked=False)


def _after_last_unthink(text: str) -> str:
    return text[text.rfind(UNTHINK) + len(UNTHINK) :] if UNTHINK in text else text


def fences(text: str) -> tuple[Fence, ...]:
    """Return the fenced blocks in their order; the last one may be unclosed."""
    return tuple(_split(text)[0])


def without_fence_marks(text: str) -> str:
    """Drop the lines that open and close fences, and keep what is in the blocks and between."""
    return "\n".join(_split(text)[1])


def _split(text: str) -> tuple[list[Fence], list[str]]:
    """The fenced blocks, and the lines of the text that mark no fence."""
    found: list[Fence] = []
    others: list[str] = []
    mark, language = "", ""
    body: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line.rstrip())
        if match and not mark:
            mark, language, body = match[1], match[2].strip().lower(), []
        elif match and match[1].startswith(mark) and not match[2].strip():
            found.append(Fence(language, "\n".join(body), closed=True))
            mark = ""
        else:
            others.append(line)
            if mark:
                body.append(line)
    if mark:
        found.append(Fence(language, "\n".join(body), closed=False))
    return found, others


def unwrapped(text: str) -> str:
    """Strip whitespace, and quotes, backticks and emphasis that stand around the whole text."""
    text = text.strip()
    for _ in range(_LAYERS):
        for left, right in _WRAPPERS:
            inner = text[len(left) : -len(right)]
            wraps = text.startswith(left) and text.endswith(right) and inner
            if wraps and left not in inner and right not in inner:
                text = inner.strip()
                break
        else:
            return text
    return text


def settled_part(text: str) -> str:
    """Return what of a cut-off text is surely whole: up to its last line or sentence end."""
    sentence = max((match.end() for match in _SENTENCE_END.finditer(text)), default=0)
    return text[: max(sentence, text.rfind("\n") + 1)]


def encodable(text: str) -> str:
    r"""Return the text with lone surrogates written out (`\ud800`), so that UTF-8 can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_runaway(text: str) -> bool:
    """Tell whether the text ends in one unit over and over.

    That is a suffix of at least `REPEATED_CHARS` characters that is one unit, `REPEATED_TIMES`
    times or more, with some of it once again at most. The unit has a letter, a figure or a line
    end in it, so that a ruled line is none. Only the last 4096 characters are looked at.
    """
    tail = text.rstrip()[-_REPEATED_WINDOW:][::-1]
    said = (i for i, char in enumerate(tail) if char.isalnum() or char == "\n")
    first_said = next(said, len(tail))
    # borders[i]: length of the longest proper prefix of tail[:i+1] that is also its suffix
    # (Knuth, Morris and Pratt 1977); i + 1 - borders[i] is then its shortest period.
    borders = [0] * len(tail)
    for i in range(1, len(tail)):
        border = borders[i - 1]
        while border and tail[i] != tail[border]:
            border = borders[border - 1]
        borders[i] = border + (tail[i] == tail[border])
        length, period = i + 1, i + 1 - borders[i]
        if length >= max(REPEATED_CHARS, REPEATED_TIMES * period) and first_said < period:
            return True
    return False


def is_refusal(text: str) -> bool:
    """Tell whether the text opens by declining to answer, as in "I'm sorry, but I can't help".

    Conservative: English only, only at the very beginning, and only with a verb of answering;
    "I cannot find it" is an answer.
    """
    start = text.lstrip()[:300].lower().replace("\u2019", "'")
    return _REFUSED.match(start) is not None
