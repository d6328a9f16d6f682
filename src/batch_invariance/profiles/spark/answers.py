"""How the answer of each family of the profile `spark` is read out of a reply.

Every reader gives the answer in one canonical form, so that a bare, a fenced, a quoted and a
verbose form of one answer are one answer. Of a reply that was cut off only what is surely whole is
read: complete lines and sentences, closed JSON, closed code fences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from batch_invariance.answer_text import settled_part, unwrapped, without_fence_marks
from batch_invariance.answer_values import (
    find_json,
    json_text,
    last_number,
    strict_json,
    whole_number_text,
)
from batch_invariance.scorer_reading import FailureMode, Reading, Reply, answered
from batch_invariance.scorers.json_equal import read_json

_TOKEN = re.compile(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*")
_LETTERS, _FIGURES = re.compile(r"[A-Za-z]+"), re.compile(r"[0-9]+")
_LEFT, _RIGHT = " \t*`\"'$=", " \t*`\"'$=.,;}"  # what decorates a value in a line
_LABEL = re.compile(r"\A(?:the )?(?:final )?(?:answer|result)(?: is)?\s*[:=]\s*", re.IGNORECASE)
_AND = re.compile(r"\Aand\s+")
_BULLET = re.compile(r"\A\s*(?:[-*\u2022]|[0-9]{1,3}[.)])\s+")
_NAME = re.compile(r"(?:def\s+)?([A-Za-z_][A-Za-z0-9_]*)(?:\s*\([^()\n]*\))?(?:\s*:)?")
_INTRODUCED = re.compile(
    r"\b(?:is|named|called|answer|function|name)\b"
    r"(?=[\s:*`\"']*([A-Za-z_][A-Za-z0-9_]*)([ \t]*\(|[`\"'*]|\.(?=\s|\Z)|[ \t]*(?:\n|\Z))?)",
    re.IGNORECASE,
)
_MOST_WORDS = 6  # of a reply, or a listed value, that is a name or code and no prose


def read_secret(reply: Reply, expected: str) -> Reading:
    """A2: the first code in the reply that is built like the expected one.

    Built alike means letters, figures, hyphens and underscores in the same pattern. Where the
    expected text has no such pattern, the expected text itself if it stands in the reply. Without
    either a reply of one line and few words is the answer as it stands.
    """
    text = _sure_text(reply)
    if _is_patterned(expected):
        alike = _built_like(text, [expected])
        if alike:
            return answered(alike[0])
    elif re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", text):
        return answered(expected)
    plain = unwrapped(text).rstrip(_RIGHT)
    if reply.cut_off or "\n" in plain or not 0 < len(plain.split()) <= _MOST_WORDS:
        return reply.without_answer(FailureMode.WRONG_FORMAT)
    return answered(plain)


def read_integer(reply: Reply, expected: str) -> Reading:
    """A4, B1, C1: the last line that is nothing but a number, or else the last number.

    Of a reply that was cut off the last number may be a step on the way, so only a line counts.
    """
    text = _sure_text(reply)
    for line in reversed(text.split("\n")):
        bare = _LABEL.sub("", line.lstrip(_LEFT), count=1).lstrip(_LEFT).rstrip(_RIGHT)
        number = whole_number_text(bare)
        if number is not None:
            return answered(number)
    last = None if reply.cut_off else last_number(text)
    return reply.without_answer(FailureMode.WRONG_FORMAT) if last is None else answered(last)


def read_facts(reply: Reply, keys: Sequence[str]) -> Reading:
    """D1: the facts asked for, from `key: value` lines or from a JSON object.

    Where a key stands twice, the last value counts. Other keys do not matter. One fact is enough
    to be an answer, unless the reply was cut off.
    """
    facts = _facts_of_json(reply.text, keys) or _facts_of_lines(_sure_text(reply), keys)
    if not facts or (reply.cut_off and len(facts) < len(keys)):
        return reply.without_answer(FailureMode.WRONG_FORMAT)
    return answered(json_text(facts))


def _facts_of_json(text: str, keys: Sequence[str]) -> dict[str, str]:
    try:
        value = find_json(text, "{")
    except ValueError:
        return {}
    given = {_key(key): one for key, one in value.items()} if isinstance(value, dict) else {}
    return {key: _text(given[_key(key)]) for key in keys if _key(key) in given}


def _facts_of_lines(text: str, keys: Sequence[str]) -> dict[str, str]:
    spelled = "|".join(re.escape(key).replace("_", "[ _-]") for key in keys)
    found = list(
        re.finditer(rf"(?<![A-Za-z0-9])({spelled})[ \t*_`\"']*[:=]", text, re.IGNORECASE | re.ASCII)
    )
    names = {_key(key): key for key in keys}
    facts = {}
    ends = [*(match.start() for match in found[1:]), len(text)]
    for match, end in zip(found, ends, strict=False):
        lines = text[match.end() : end].strip().split("\n", 1)
        value = lines[0].lstrip(_LEFT).rstrip(_RIGHT)
        if value:
            facts[names[_key(match[1])]] = value
    return facts


def read_values(reply: Reply, expected: Sequence[str]) -> Reading:
    """E1: a list of values in order, from one line, one line each, or a JSON list.

    Values are the codes built like the expected ones, of the first line that has two of them, or
    else of all lines. Without any, what commas or line ends separate, if it is short. Fewer than
    two values are no list, and fewer than expected none in a reply that was cut off.
    """
    values = _values_of_json(reply.text)
    if not values:
        text = _sure_text(reply)
        values = _codes(text, expected) or _separated(text)
    least = len(expected) if reply.cut_off else min(2, len(expected))
    if len(values) < max(least, 1):
        return reply.without_answer(FailureMode.WRONG_FORMAT)
    return answered(json_text(values))


def _values_of_json(text: str) -> list[str]:
    try:
        value = find_json(text, "[")
    except ValueError:
        return []
    return [_text(one) for one in value] if isinstance(value, list) and len(value) > 1 else []


def _codes(text: str, expected: Sequence[str]) -> list[str]:
    if not all(map(_is_patterned, expected)):
        return []
    lines = [_built_like(line, expected) for line in text.split("\n")]
    together = next((codes for codes in lines if len(codes) > 1), None)
    return [code for codes in lines for code in codes] if together is None else together


def _separated(text: str) -> list[str]:
    lines = [_BULLET.sub("", line, count=1) for line in text.split("\n") if line.strip()]
    longest = max(lines, key=lambda line: line.count(","), default="")
    parts = longest.split(",") if "," in longest else lines
    values = [_AND.sub("", part.lstrip(_LEFT), count=1) for part in parts]
    values = [value.strip(_LEFT).rstrip(_RIGHT) for value in values]
    return values if all(0 < len(value.split()) <= _MOST_WORDS for value in values) else []


def read_object(reply: Reply, expected: str) -> Reading:
    """E2: the JSON object in the reply."""
    reading = read_json(reply, "{")
    if reading.answer is not None and not reading.answer.startswith("{"):
        return reply.without_answer(FailureMode.WRONG_FORMAT)
    return reading


def read_tool_call(reply: Reply, expected: str) -> Reading:
    """E3: the JSON object with a `name` and an object of `arguments`; other keys do not matter."""
    reading = read_json(reply, "{")
    if reading.answer is None:
        return reading
    value = strict_json(reading.answer)
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get("arguments") if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return reply.without_answer(FailureMode.WRONG_FORMAT)
    return answered(json_text({"arguments": arguments, "name": name}))


def read_function_name(reply: Reply, expected: str) -> Reading:
    """E5: one name, as `name`, `name()`, or in a sentence.

    In this order: the first line that is a name and nothing else; the first name that is
    introduced ("the function is ..."); the first name there is. Where the expected name has an
    underscore, a name is what is built like it; any other word counts only as a line of its own,
    or introduced and then called, quoted or at the end.
    """
    text = _sure_text(reply)
    for name in _names(text, _is_patterned(expected)):
        if not _is_patterned(expected) or _shape(name) == _shape(expected):
            return answered(name)
    return reply.without_answer(FailureMode.WRONG_FORMAT)


def _names(text: str, patterned: bool) -> Iterator[str]:
    for line in text.split("\n"):
        match = _NAME.fullmatch(unwrapped(line).rstrip(_RIGHT))
        if match:
            yield match[1]
    for match in _INTRODUCED.finditer(text):
        if patterned or match[2]:
            yield match[1]
    if patterned:
        yield from _TOKEN.findall(text)


def _sure_text(reply: Reply) -> str:
    """The visible text without fence marks, and of a reply that was cut off the whole lines."""
    text = without_fence_marks(reply.text)
    return settled_part(text).strip() if reply.cut_off else text.strip()


def _shape(code: str) -> str:
    """How a code is built: runs of letters as `a`, runs of figures as `9`."""
    return _FIGURES.sub("9", _LETTERS.sub("a", code))


def _is_patterned(code: str) -> bool:
    return _TOKEN.fullmatch(code) is not None and _shape(code) not in ("a", "9")


def _built_like(text: str, codes: Sequence[str]) -> list[str]:
    shapes = {_shape(code) for code in codes}
    return [token for token in _TOKEN.findall(text) if _shape(token) in shapes]


def _key(key: str) -> str:
    return re.sub(r"[ -]", "_", key.lower())


def _text(value: object) -> str:
    """A JSON value where a text was asked for: 7 counts as "7"."""
    return value.strip() if isinstance(value, str) else json_text(value)
