"""JSON that every reader reads alike, for the files that a verdict rests on.

Refused, besides what is no JSON in UTF-8: a key given twice in one object, NaN and infinities,
numbers out of range, nesting deeper than any of these files has.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from batch_invariance.invariance_diff.model import MAX_MAGNITUDE

MAX_DIGITS = 20
"""Of an integer: enough for 64 bits and a sign, and every such integer has a float."""
MAX_DEPTH = 64
"""Of lists and objects; certificates need 8."""


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError, in one line, for what is refused."""
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    try:
        value = DECODER.decode(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for node in level:
            if isinstance(node, dict):
                inner += [child for child in node.values() if isinstance(child, (dict, list))]
            elif isinstance(node, list):
                inner += [child for child in node if isinstance(child, (dict, list))]
        if not inner:
            return
        level = inner
    raise ValueError("lists or objects are nested too deeply")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has a key twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("an integer is out of range")
    return int(digits)


def _bounded_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value) or abs(value) > MAX_MAGNITUDE:
        raise ValueError("a number is out of range")
    return value


DECODER = json.JSONDecoder(
    object_pairs_hook=_once,
    parse_constant=_no_constant,
    parse_int=_bounded_int,
    parse_float=_bounded_float,
)
"""Built once: `json.loads` with options would build one for every line. It raises ValueError, and
RecursionError for deep nesting."""
