"""What a run uses: the command line before the registry, each value with where it came from."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from batch_invariance.live_invariance.canary import CACHE_TYPE_K, CACHE_TYPE_V
from batch_invariance.live_invariance.flags import UserFlags
from batch_invariance.live_invariance.registry import ModelEntry, Origins

COMMAND_LINE: Final = "the command line"

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class CellArguments:
    """What the command line says of a cell; None or () where it says nothing.

    `ctx` is in tokens per slot, `parallel` in slots, `flags` are the words after `--`.
    """

    server_bin: str | None = None
    model: Path | None = None
    ctx: int | None = None
    parallel: int | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that a run uses, as text, and where it stands: a file with its table, or the
    command line. `name` is the option that states the same."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class CellChoice:
    """What was chosen; None where neither says anything.

    `flags` are the registry's and then the command line's. Of a flag that is given twice
    llama-server takes the last. `settings` names every value that there is.
    """

    server_bin: str | None
    model: Path | None
    ctx: int | None
    parallel: int | None
    flags: tuple[str, ...]
    settings: tuple[Setting, ...]


def choose(given: CellArguments, entry: ModelEntry | None) -> CellChoice:
    """The command line's values, and the registry's where it says nothing.

    `entry` is None for a run without a registry. A KV type that the command line's flags state
    takes the place of the registry's for that side, K or V, alone.
    """
    theirs, origins = CellArguments(), Origins()
    words: list[tuple[str, str]] = []
    if entry is not None:
        theirs = CellArguments(entry.server_bin, entry.gguf, entry.ctx, entry.parallel)
        origins = entry.origins
        words = _registry_words(entry, UserFlags(given.flags))
    rows: tuple[tuple[str, object, object, str], ...] = (
        ("--server-bin", given.server_bin, theirs.server_bin, origins.server_bin),
        ("--model", given.model, theirs.model, origins.gguf),
        ("--ctx", given.ctx, theirs.ctx, origins.ctx),
        ("--parallel", given.parallel, theirs.parallel, origins.parallel),
    )
    settings = [
        Setting(name, str(their if own is None else own), origin if own is None else COMMAND_LINE)
        for name, own, their, origin in rows
        if own is not None or their is not None
    ]
    words += [(word, COMMAND_LINE) for word in given.flags]
    for origin, group in itertools.groupby(words, key=lambda pair: pair[1]):
        settings.append(Setting("--", shlex.join(word for word, _ in group), origin))
    return CellChoice(
        server_bin=_first(given.server_bin, theirs.server_bin),
        model=_first(given.model, theirs.model),
        ctx=_first(given.ctx, theirs.ctx),
        parallel=_first(given.parallel, theirs.parallel),
        flags=tuple(word for word, _ in words),
        settings=tuple(settings),
    )


def _first(own: _Value | None, theirs: _Value | None) -> _Value | None:
    return theirs if own is None else own


def _registry_words(entry: ModelEntry, given: UserFlags) -> list[tuple[str, str]]:
    """The flags that a registry comes to, each word with its origin."""
    words: list[tuple[str, str]] = []
    if entry.kv is not None:
        for spellings, kv_type in ((CACHE_TYPE_K, entry.kv.k), (CACHE_TYPE_V, entry.kv.v)):
            if given.value(*spellings) is None:
                words += [(word, entry.origins.kv) for word in (spellings[0], kv_type.label)]
    return words + list(zip(entry.server_flags, entry.origins.server_flags, strict=True))
