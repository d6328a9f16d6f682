"""Inputs for a parser: bytes by chance, and what becomes of good files when something hits them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

DEEP = 100_000
NEAR_THE_LIMIT = (60, 63, 64, 65, 66, 200, 450, 900, 985, 995, 1005, 3000)
"""Depths around the parsers' own limits and around Python's limit of recursion."""
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 0.5, -0.0, 1e300, 1e-320, 255, 256, 65_536, 2**31, 2**32,
    2**53, 2**63, -(2**63), 10**19, 10**20, 10**40, float("nan"), float("inf"),
    "", " ", "\0", "\ud800", "\udfff\ud800", "\x1b[2J", "\u202e", "\n", "..", "../../x",
    "/etc/passwd", "a\\b", "A", "C", "confirm", "NaN", "1e999", "AAAA", "////", "=",
    "é" * 40, "x" * 5000, [], {}, [[]], [{}], {"": None}, [0] * 300,
)  # fmt: skip
TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"1E-400", b"9" * 30, b"9" * 5000, b"null",
    b"true", b"\\ud800", b"\\u0000", b"\x1b[2J", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\0",
    b"\r\n", b"\n", b"\r", b"\xe2\x80\xa8", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"=",
    b"#", b"''", b'"""', b"../",
)  # fmt: skip
NUMBERS = (b"0", b"-1", b"1", b"9" * 18, b"9" * 25, b"2.5", b"1e5", b"007")
KEYS = ("", "id", "a.b", "\x1b[2J", "\ud800", "\n", "x" * 300)


class Mutator:
    """Gives inputs out of one seed, the same on every run and every Python."""

    def __init__(self, label: str) -> None:
        self.rng = random.Random(label)

    def noise(self) -> bytes:
        """Bytes by chance, of any of them or of those that texts are made of."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.randbytes(rng.randrange(200))
        words = [rng.choice(TOKENS) for _ in range(rng.randrange(1, 12))]
        return b"".join(word[:40] for word in words)

    def damaged(self, good: Sequence[bytes], span: int | None = None) -> bytes:
        """A good file with one to four faults in its bytes, all within the first `span` of them."""
        rng = self.rng
        data = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 5)):
            size = min(len(data), span or len(data))
            self._hit(data, rng.randrange(size + 1), good)
        return bytes(data)

    def _hit(self, data: bytearray, at: int, good: Sequence[bytes]) -> None:
        rng = self.rng
        what = rng.randrange(10)
        if what == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            data[at : at + 1] = bytes([data[at] ^ 1 << rng.randrange(8)]) if at < len(data) else b""
        elif what == 2:
            del data[at : at + 1 + rng.randrange(40)]
        elif what == 3:
            data[at:at] = data[at : at + rng.randrange(1, 60)] * rng.choice((1, 1, 2, 30))
        elif what == 4:
            data[at:at] = rng.choice(TOKENS)
        elif what == 5:
            size = rng.randrange(1, 6)
            data[at : at + size] = rng.choice(TOKENS)
        elif what == 6:
            data[at : at + 8] = struct.pack("<Q", rng.randrange(1 << 63))
        elif what == 7:
            data[at : at + 4] = struct.pack("<I", 1 << rng.randrange(32))
        elif what == 8:
            other = rng.choice(good)
            cut = rng.randrange(len(other) + 1)
            data[at:] = other[cut : cut + 4096]
        elif rng.random() < 0.3:
            del data[at:]
        else:
            self._digits(data, at)

    def _digits(self, data: bytearray, at: int) -> None:
        """The next number in the text becomes another one."""
        while at < len(data) and not 48 <= data[at] <= 57:
            at += 1
        end = at
        while end < len(data) and 48 <= data[end] <= 57:
            end += 1
        if end > at:
            data[at:end] = self.rng.choice(NUMBERS)

    def odd_json(self, good: Sequence[Any]) -> bytes:
        """A good JSON value with one to three of its parts replaced, dropped, moved or repeated."""
        value = json.loads(json.dumps(self.rng.choice(good)))
        change = self.similar if self.rng.random() < 0.5 else self.changed
        for _ in range(self.rng.randrange(1, 4)):
            value = change(value)
        return self.spelled(value)

    def changed(self, value: Any) -> Any:
        """The value with one of its parts changed."""
        rng = self.rng
        holder, key = self._place(value)
        if holder is None:
            return self._odd()
        what = rng.randrange(10)
        if what < 4:
            holder[key] = self._odd()
        elif what < 6:
            holder[key] = self._like(holder[key])
        elif what == 6:
            del holder[key]
        elif what == 7:
            other, place = self._place(value)
            if other is not None and not isinstance(holder[key], (dict, list)):
                other[place] = holder[key]
        elif isinstance(holder, list):
            holder.insert(key, holder[key])
        else:
            holder[rng.choice(("", "id", "a.b", "\x1b[2J", "\ud800", "\n", "x" * 300))] = (
                self._odd()
            )
        return value

    def _place(self, value: Any) -> tuple[Any, Any]:
        """A container somewhere in the value, and one of its keys; None where there is none."""
        rng, holder, key = self.rng, None, None
        for _ in range(rng.randrange(1, 10)):
            if not isinstance(value, (dict, list)) or not value:
                break
            holder = value
            key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
            value = value[key]
        return holder, key

    def _odd(self) -> Any:
        odd = self.rng.choice(ODD)
        return json.loads(json.dumps(odd)) if isinstance(odd, (list, dict)) else odd

    def _like(self, value: Any) -> Any:
        """Another value of the same type."""
        rng = self.rng
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            near = (value + 1, value - 1, -value, value * 1000)
            return rng.choice((*near, 0, -1, 1, 2, 2**31, 2**53, 10**19, rng.randrange(1 << 40)))
        if isinstance(value, float):
            return rng.choice((value + 1.5, -value, value * 1e9, 0.0, 1e308, 5e-324))
        if isinstance(value, str):
            near = (value + "x", value[:-1], value * 2, value.upper(), value + "\x1b[31m", "")
            far = ("\ud800", value[:4] * 500, value.replace("A", "/").replace("a", "A"))
            return rng.choice((*near, *far))
        if isinstance(value, list):
            return rng.choice((value[:-1], value + value, value[::-1], [], [*value, self._odd()]))
        return self._odd()

    def similar(self, value: Any) -> Any:
        """The value with one of its parts replaced by another of the same type."""
        holder, key = self._place(value)
        if holder is not None:
            holder[key] = self._like(holder[key])
        return value

    def spelled(self, value: Any) -> bytes:
        """The JSON text of a value, sometimes too deep, with a key twice or strangely encoded."""
        rng = self.rng
        text = json.dumps(value, ensure_ascii=rng.random() < 0.7)
        luck = rng.randrange(40)
        if luck == 0:
            text = self._nested(text)
        elif luck == 1:
            text = text.replace('": ', '": 1, "a": 2, "a": ', 1)
        elif luck == 2:
            return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")), "surrogatepass")
        return text.encode("utf-8", "surrogatepass")

    def _nested(self, text: str) -> str:
        depth = DEEP if self.rng.random() < 0.02 else self.rng.choice(NEAR_THE_LIMIT)
        begin, end = self.rng.choice((("[", "]"), ('{"a":', "}")))
        deep = begin * depth + "1" + end * depth
        spots = [i for i, char in enumerate(text) if char in "0123456789tfn"]
        at = self.rng.choice(spots) if spots else 0
        return text[:at] + deep + text[at + 1 :]
