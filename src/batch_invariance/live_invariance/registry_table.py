"""One table of a model registry: `[defaults]` or a model's own, read value by value.

Both hold the same keys, but for `gguf`, which is a model's alone and which every model needs.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.kv_cache import KvType
from batch_invariance.invariance_diff.rules import CTX_STEP, MAX_SLOTS
from batch_invariance.invariance_diff.workset_json import bare, show
from batch_invariance.live_invariance.canary import CACHE_TYPE_K, CACHE_TYPE_V
from batch_invariance.live_invariance.flags import UserFlags, check_user_flags

MODELS_DIR: Final = "{MODELS_DIR}"
"""What a path begins with that lies in the folder of `--models-dir`."""
KV_TWICE: Final = "kv and -ctk or -ctv in server_flags both set the KV types; keep one of them"

_DEFAULT_KEYS: Final = ("server_bin", "server_flags", "kv", "ctx", "parallel")
_MODEL_KEYS: Final = ("gguf", *_DEFAULT_KEYS)
_MAX_SHOWN = 40
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_PLACEHOLDER = re.compile(r"\{[A-Za-z][A-Za-z0-9_]*\}")
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class KvTypes:
    """The element types of the KV cache: `f16` for both sides, or `q8_0/f16` for K and V."""

    k: KvType
    v: KvType

    @classmethod
    def parse(cls, text: str) -> KvTypes:
        """Raises UsageError for a type that llama-server does not know."""
        k, slash, v = text.partition("/")
        return cls(KvType.parse(k), KvType.parse(v if slash else k))

    @property
    def label(self) -> str:
        """As a registry writes it."""
        return self.k.label if self.k is self.v else f"{self.k.label}/{self.v.label}"


@dataclass(frozen=True, slots=True)
class RegistryTable:
    """A table as written; None or () where it says nothing.

    `alias` is None for `[defaults]`, which has no `gguf`; in a registry without a fault every
    other table has one. `ctx` is in tokens per slot, `parallel` in slots.
    """

    alias: str | None
    gguf: str = ""
    server_bin: str | None = None
    server_flags: tuple[str, ...] = ()
    kv: KvTypes | None = None
    ctx: int | None = None
    parallel: int | None = None

    @property
    def heading(self) -> str:
        """The table's line in the file, cut short where its name is no reasonable one."""
        if self.alias is None:
            return "[defaults]"
        if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", self.alias):
            return f"[models.{self.alias}]"
        more = "..." if len(self.alias) > _MAX_SHOWN else ""
        return f"[models.{json.dumps(self.alias[:_MAX_SHOWN])}{more}]"

    @property
    def states_kv(self) -> bool:
        """Whether the flags set a type of the KV cache."""
        return UserFlags(self.server_flags).value(*CACHE_TYPE_K, *CACHE_TYPE_V) is not None


def close_match(word: str, known: Collection[str]) -> str:
    """`; did you mean X?`, or nothing when no known word is near."""
    # Matching takes quadratic time, and no long word is a misspelling of a short one.
    close = difflib.get_close_matches(word, known, n=1) if len(word) <= _MAX_SHOWN else []
    return f"; did you mean {close[0]}?" if close else ""


def kind(value: object) -> str:
    """A value's TOML type, for a message."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"the number {value}" if value in _INT64 else "a number beyond 64 bits"
    if isinstance(value, float):
        return f"the number {value}"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else "a list"
    return "a date or time"


def read_table(alias: str | None, values: Mapping[str, object], faults: list[str]) -> RegistryTable:
    """Reads a table; each fault is appended behind the table's heading."""
    found: list[str] = []
    known = _DEFAULT_KEYS if alias is None else _MODEL_KEYS
    for key, value in values.items():
        if key not in known:
            found.append(f"unknown key {bare(key)}{_hint(alias, key, value)}")
    reading = _Reading(values, found)
    table = RegistryTable(
        alias=alias,
        gguf="" if alias is None else reading.path("gguf") or "",
        server_bin=reading.path("server_bin"),
        server_flags=reading.flags(),
        kv=reading.kv(),
        ctx=reading.ctx(),
        parallel=reading.parallel(),
    )
    split_name = any(isinstance(value, dict) for value in values.values())
    if alias is not None and "gguf" not in values and not split_name:
        found.append("gguf is missing: the path of the model's file")
    if table.kv is not None and table.states_kv:
        found.append(KV_TWICE)
    faults += [f"{table.heading}: {fault}" for fault in found]
    return table


def _hint(alias: str | None, key: str, value: object) -> str:
    if alias is None:
        return (
            "; it belongs to a model's table" if key == "gguf" else close_match(key, _DEFAULT_KEYS)
        )
    if isinstance(value, dict):
        return f"; a name with a dot needs quotes: {RegistryTable(f'{alias}.{key}').heading}"
    return close_match(key, _MODEL_KEYS)


class _Reading:
    """The values of one table by their keys; a fault leaves None or ()."""

    def __init__(self, values: Mapping[str, object], faults: list[str]) -> None:
        self.values = values
        self.faults = faults

    def path(self, key: str) -> str | None:
        """A file's path or a command, with no placeholder but {MODELS_DIR}."""
        text = self._text(key)
        for placeholder in _PLACEHOLDER.findall(text or ""):
            if placeholder != MODELS_DIR:
                self.faults.append(f"{key}: {show(placeholder)} is unknown; there is {MODELS_DIR}")
        return text

    def flags(self) -> tuple[str, ...]:
        """The server's flags, none of them the driver's own."""
        value = self.values.get("server_flags", [])
        if not isinstance(value, list):
            self._wrong("server_flags", 'a list of strings, such as ["--threads", "8"]', value)
            return ()
        before = len(self.faults)
        for index, word in enumerate(value):
            name = f"server_flags[{index}]"
            if not isinstance(word, str):
                self._wrong(name, "a string in quotes", word)
            else:
                self._refuse_control(name, word)
        if len(self.faults) > before:
            return ()
        try:
            check_user_flags(value)
        except UsageError as error:
            self.faults.append(f"server_flags: {error}")
        return tuple(value)

    def kv(self) -> KvTypes | None:
        """The types of the KV cache."""
        text = self._text("kv")
        try:
            return None if text is None else KvTypes.parse(text)
        except UsageError as error:
            self.faults.append(f"kv: {error}; give one, or K/V")
            return None

    def ctx(self) -> int | None:
        """Tokens per slot, in the server's steps."""
        ctx = self._number("ctx")
        if ctx is not None and (ctx < CTX_STEP or ctx % CTX_STEP):
            self.faults.append(f"ctx: {ctx} is no positive multiple of {CTX_STEP}")
        return ctx

    def parallel(self) -> int | None:
        """Slots under test."""
        parallel = self._number("parallel")
        if parallel is not None and not 1 <= parallel <= MAX_SLOTS:
            self.faults.append(f"parallel: {parallel} is not 1 to {MAX_SLOTS}")
        return parallel

    def _text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self._wrong(key, "a string in quotes", value)
            return None
        if not value.strip():
            self.faults.append(f"{key}: is empty")
            return None
        return None if self._refuse_control(key, value) else value

    def _refuse_control(self, key: str, text: str) -> bool:
        bad = _CONTROL.search(text)
        if bad:
            self.faults.append(f"{key}: holds the control character U+{ord(bad.group()):04X}")
        return bad is not None

    def _number(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value in _INT64:
            return value
        self._wrong(key, "a whole number", value)
        return None

    def _wrong(self, key: str, needed: str, value: object) -> None:
        self.faults.append(f"{key}: must be {needed}, not {kind(value)}")
