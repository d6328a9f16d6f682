"""Reading values out of a reply's text: numbers and strict JSON, each in one canonical form.

No number is ever turned into an int or a float on the way to its canonical form, so no digit is
lost and no limit of Python's on long integers applies. Time is linear in the length of the text.
"""

from __future__ import annotations

import json
import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_EXPONENT = r"(?:[eE][+-]?[0-9]{1,6}(?![0-9A-Za-z_]))?"
_NUMBER = re.compile(
    # a sign counts where no word, bracket or number stands before it: 3-4 is 3 and 4
    r"(?:(?<![\w)\].])[-+\u2212][$\u20ac\u00a3]?)?"
    rf"(?:(?<!\w)(?<![0-9]\.){_DIGITS}(?:\.[0-9]+)?{_EXPONENT}|(?<![\w.])\.[0-9]+{_EXPONENT})",
    re.ASCII,
)
_PARTS = re.compile(r"\+?(-?)([0-9]*)(?:\.([0-9]*))?(?:e([+-]?[0-9]+))?")
_SPELLING = str.maketrans({"\u2212": "-", **dict.fromkeys(",$\u20ac\u00a3", "")})
_PLAIN = range(-7, 21)  # leading digit's powers of ten that are written without an exponent
_PRECISION = 60  # digits in the comparison of two numbers

MAX_JSON_DIGITS = 600  # below the least limit on int() that an environment can set, 640
MAX_JSON_DEPTH = 64
_CLOSING = {"{": "}", "[": "]"}
_BEGINNING = {"{": re.compile(r'\{\s*"'), "[": re.compile(r'\[\s*["\[{0-9tfn-]')}
_MARKS = {"{": re.compile(r'["\\\n{}]'), "[": re.compile(r'["\\\n\[\]]')}


def last_number(text: str) -> str | None:
    """Return the last number in a text in canonical form, None without one.

    Integers and decimals, `1,024` with thousands separators, `.5`, `-3`, `+3`, `1.5e-3`. Digits
    right behind a letter (`x1`, `GPT-4` aside, which gives 4) or an earlier number's point are
    none; a unit behind the number (`7kg`) does no harm. `1/2` reads 2, `50%` reads 50.
    """
    found = None
    for match in _NUMBER.finditer(text):
        found = match
    return None if found is None else canonical_number(found[0])


def whole_number_text(text: str) -> str | None:
    """Return the number that a text is, in canonical form; None when it is anything else."""
    match = _NUMBER.fullmatch(text)
    return None if match is None else canonical_number(match[0])


def canonical_number(text: str) -> str:
    """Write a number that `last_number` recognises in the one form its value has.

    No plus sign, separators, leading or trailing zeros, and no negative zero; an exponent only
    where the leading digit stands below 1e-7 or from 1e21 on: `007` is `7`, `7.50` is `7.5`,
    `1e3` is `1000`, `1e30` is `1e+30`.
    """
    match = _PARTS.fullmatch(text.translate(_SPELLING).lower())
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"no number: {text[:40]!r}")
    sign, whole, fraction = match[1], match[2], match[3] or ""
    digits = (whole + fraction).lstrip("0")
    point = int(match[4] or 0) - len(fraction)  # the value is digits * 10**point
    stripped = digits.rstrip("0")
    point += len(digits) - len(stripped)
    if not stripped:
        return "0"
    leading = point + len(stripped) - 1
    if leading not in _PLAIN:
        rest = f".{stripped[1:]}" if stripped[1:] else ""
        return f"{sign}{stripped[0]}{rest}e{leading:+d}"
    if point >= 0:
        return sign + stripped + "0" * point
    padded = stripped.rjust(1 - point, "0")
    return f"{sign}{padded[:point]}.{padded[point:]}"


def within(answer: str, expected: str, tolerance: float) -> bool:
    """Tell whether two canonical numbers differ by at most `tolerance`, in decimal arithmetic.

    Decimal, so that 0.31 is within 0.01 of 0.3, as written. The difference is worked out to 60
    digits.
    """
    if answer == expected:
        return True
    context = Context(prec=_PRECISION, Emax=MAX_EMAX, Emin=MIN_EMIN)
    difference = context.subtract(Decimal(answer), Decimal(expected))
    return difference.copy_abs() <= Decimal(repr(tolerance))


def strict_json(text: str) -> object:
    """Read one JSON value. Raises ValueError for anything that is not strict JSON.

    Refused beyond malformed text: NaN and infinities in every spelling (`1e400` too), a key that
    stands twice in an object, integers of more than 600 digits, nesting deeper than 64.
    """
    if _depth(text) > MAX_JSON_DEPTH:
        raise ValueError("nested too deeply")
    try:
        value: object = json.loads(
            text,
            parse_int=_int,
            parse_float=_float,
            parse_constant=_refused,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:  # the caller's own stack may be nearly full
        raise ValueError("nested too deeply") from None
    return value


def json_text(value: object) -> str:
    """Write a JSON value in its one form: sorted keys, no spaces, ASCII only."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def same_json(one: object, other: object) -> bool:
    """Compare two JSON values by type and value: 1, 1.0 and true are three values."""
    return json_text(one) == json_text(other)


def json_regions(text: str, opening: str) -> list[str]:
    """Return the outermost balanced `{...}` (or with `opening` "[", `[...]`) parts of a text.

    Brackets inside strings do not count; a string ends with its line at the latest, because JSON
    has no raw line feed in one. Behind a bracket that never closes there is none if it begins like
    JSON, because what is closed there is a part of something broken; a stray one in prose hides
    nothing.
    """
    closing = _CLOSING[opening]
    open_at: list[int] = []
    closed: list[tuple[int, int]] = []
    in_string, skip = False, -1
    for match in _MARKS[opening].finditer(text):
        mark, at = match[0], match.start()
        if at == skip:
            continue
        if mark == "\\":
            skip = at + 1 if in_string else -1
        elif mark == "\n":
            in_string = False
        elif mark == '"':
            in_string = bool(open_at) and not in_string
        elif in_string:
            continue
        elif mark == opening:
            open_at.append(at)
        elif mark == closing and open_at:
            start = open_at.pop()
            while closed and closed[-1][0] > start:
                closed.pop()
            closed.append((start, at + 1))
    begun = (at for at in open_at if _BEGINNING[opening].match(text, at))
    limit = next(begun, len(text))
    return [text[start:end] for start, end in closed if start < limit]


def find_json(text: str, opening: str) -> object:
    """Return the first strict JSON object (or with `opening` "[", list) that stands in a text.

    Raises ValueError when none does.
    """
    for region in json_regions(text, opening):
        try:
            return strict_json(region)
        except ValueError:
            continue
    raise ValueError("no JSON value in the text")


def _depth(text: str) -> int:
    """How deeply brackets nest outside of strings."""
    depth = deepest = 0
    in_string, skip = False, -1
    for match in re.finditer(r'["\\{}\[\]]', text):
        mark, at = match[0], match.start()
        if at == skip:
            continue
        if mark == "\\":
            skip = at + 1
        elif mark == '"':
            in_string = not in_string
        elif not in_string:
            depth += 1 if mark in "{[" else -1
            deepest = max(deepest, depth)
    return deepest


def _int(text: str) -> int:
    if len(text) > MAX_JSON_DIGITS:
        raise ValueError("an integer of too many digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number out of range")
    return value


def _refused(text: str) -> object:
    raise ValueError(f"{text} is no JSON")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value
