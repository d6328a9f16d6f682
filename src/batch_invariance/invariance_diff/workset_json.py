"""JSON as work-sets need it: strict where a request would be silently altered, never fatal.

`json.loads` lets through repeated keys, NaN, numbers beyond range and lone surrogates. Here they
are found and named, as is nesting too deep to walk, so that a file's other faults are still read.
The phrases that show the user's text escaped and cut short live here too.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence

_MAX_SHOWN = 40  # characters of the user's text quoted in a fault
_MAX_DEPTH = 64  # of nested lists and objects in one entry; requests need about six
_MAX_TOKENS = 2**31 - 1  # the server reads the limit into an int32
_MAX_DIGITS = 100  # of an integer; int() of many more is slow, and float() of 309 overflows

_SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters, line separators and text-direction overrides: ids and families are printed.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class JsonObject(dict[str, object]):
    """A JSON object that remembers which of its keys were given more than once."""

    def __init__(self, pairs: Sequence[tuple[str, object]]) -> None:
        super().__init__(pairs)
        counts: dict[str, int] = {}
        for key, _ in pairs:
            counts[key] = counts.get(key, 0) + 1
        self.repeated = tuple(key for key, count in counts.items() if count > 1)


def entries(data: bytes, faults: list[str]) -> Iterator[tuple[str, object]]:
    """Yield each entry with its position; what is no JSON goes to `faults`."""
    text = decode(data, faults)
    if text is None:
        return
    if not text.strip(" \t\r\n"):
        faults.append("is empty; it must be a JSON list or JSON Lines")
    elif text.lstrip(" \t\r\n").startswith("["):
        whole = _load(text, "", faults)
        if isinstance(whole, list):
            yield from ((f"item [{index}]", value) for index, value in enumerate(whole))
    elif isinstance(single := _load(text, "", []), JsonObject):
        yield "line 1", single
    else:
        # Only a line feed ends a line: U+2028 and its kin may stand inside JSON strings.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip(" \t\r"):
                broken: list[str] = []
                value = _load(line, f"line {number}: ", broken)
                faults += broken
                if not broken:
                    yield f"line {number}", value


def decode(data: bytes, faults: list[str]) -> str | None:
    """The text of a UTF-8 file without its byte order mark; None with a fault when it is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        faults.append(f"is not UTF-8 at byte {error.start}; save it as UTF-8")
        return None


def parse_list(text: str) -> list[object] | None:
    """The JSON list that a text is; None for any other text."""
    value = _load(text, "", []) if text.lstrip().startswith("[") else None
    return value if isinstance(value, list) else None


def _load(text: str, prefix: str, faults: list[str]) -> object:
    """Parse one JSON text; None with a fault appended when it is none."""
    try:
        return json.loads(text, object_pairs_hook=JsonObject, parse_int=_bounded_int)
    except json.JSONDecodeError as error:
        line = "" if prefix else f"line {error.lineno} "
        faults.append(f"{prefix}not JSON: {error.msg} at {line}column {error.colno}")
    except RecursionError:
        faults.append(f"{prefix}lists or objects are nested too deeply")
    return None


def _bounded_int(digits: str) -> int | float:
    # Infinity is what JSON's other out-of-range numbers (1e999) become, and is refused as such.
    return int(digits) if len(digits) <= _MAX_DIGITS else math.inf


def json_faults(entry: object) -> Iterator[str]:
    """Find, anywhere in an entry, what JSON as such lets through and a request cannot carry."""
    queue: deque[tuple[str, int, object]] = deque([("", 0, entry)])
    while queue:
        path, depth, node = queue.popleft()
        if isinstance(node, str) and _SURROGATE.search(node):
            yield f"{path or 'text'} holds a lone surrogate and cannot be sent as UTF-8"
        elif isinstance(node, float) and not math.isfinite(node):
            yield f"{path or 'number'} is NaN, infinite or out of range"
        elif isinstance(node, (list, JsonObject)) and depth >= _MAX_DEPTH:
            yield "lists or objects are nested too deeply"
        elif isinstance(node, list):
            queue.extend((f"{path}[{index}]", depth + 1, child) for index, child in enumerate(node))
        elif isinstance(node, JsonObject):
            inside = f" in {path}" if path else ""
            yield from (f"key {show(key)} is given more than once{inside}" for key in node.repeated)
            dot = f"{path}." if path else ""
            queue.extend((dot + bare(key), depth + 1, child) for key, child in node.items())


def check_keys(obj: JsonObject, known: Collection[str], prefix: str, faults: list[str]) -> None:
    """Append a fault for each key that is not known, naming the known one it resembles."""
    for key in obj:
        if key not in known:
            # Matching takes quadratic time, and no long key is a misspelling of a short one.
            close = difflib.get_close_matches(key, known, n=1) if len(key) <= _MAX_SHOWN else []
            hint = f"; did you mean {close[0]}?" if close else ""
            faults.append(f"unknown key {prefix}{bare(key)}{hint}")


def is_absurd(value: object) -> bool:
    """Tell a number that `json_faults` has already named."""
    return isinstance(value, float) and not math.isfinite(value)


def kind(value: object) -> str:
    """Name a value's JSON type, and a number's value, for a message."""
    if value is None:
        return "null or missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "an object"


def show(text: str) -> str:
    """Quote the user's text with everything unprintable escaped, cut to a readable length."""
    return repr(text[:_MAX_SHOWN]) + ("..." if len(text) > _MAX_SHOWN else "")


def bare(key: str) -> str:
    """Show a key as it is where it reads as a word, else quoted and escaped."""
    return key if key.isidentifier() and len(key) <= _MAX_SHOWN else show(key)


def string_field(obj: JsonObject, key: str, faults: list[str]) -> str | None:
    """Read a string; None when it is absent or is none."""
    value = obj.get(key)
    if value is None or isinstance(value, str):
        return value
    quote = "; put it in quotes" if isinstance(value, (int, float)) else ""
    faults.append(f"{key} must be a string, is {kind(value)}{quote}")
    return None


def label_field(obj: JsonObject, key: str, faults: list[str]) -> str | None:
    """Read a string that reports print: not empty, nothing in it that could upset a terminal."""
    value = string_field(obj, key, faults)
    if value is None or (value and not _UNPRINTABLE.search(value)):
        return value
    faults.append(f"{key} {show(value)} must be non-empty and without control characters")
    return None


def fill_field(obj: JsonObject, faults: list[str]) -> float | None:
    """Read `fill`, a share of the context from 0 to 1."""
    value = obj.get("fill")
    if value is None or is_absurd(value):
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return abs(float(value))  # -0.0 and 0 are one fill, with one digest
    faults.append(f"fill must be a number from 0 to 1, is {kind(value)}")
    return None


def limit_field(obj: JsonObject, key: str, prefix: str, faults: list[str]) -> int | None:
    """Read a token limit; `prefix` is what stands before the key in a fault."""
    value = obj.get(key)
    if value is None or is_absurd(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_TOKENS:
        return value
    faults.append(f"{prefix}{key} must be a whole number from 1 to {_MAX_TOKENS}, is {kind(value)}")
    return None
