"""Settings that may take a divergence away: what each changes in a server's flags, and when not.

None of them is known to work: each is a setting that changes which kernels run or how a forward
pass is cut, and what it does to one cell is for a measurement to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batch_invariance.errors import UsageError
from batch_invariance.live_invariance.canary import CACHE_TYPE_K, CACHE_TYPE_V
from batch_invariance.live_invariance.flags import (
    FLASH_ATTENTION,
    FLASH_ATTENTION_OFF,
    KV_LAYOUT,
    UBATCH_SIZE,
    UserFlags,
    canonical,
    check_user_flags,
    is_flag,
)

REPACK = ("--repack", "-nr", "--no-repack")
SMALL_UBATCH = 64
"""Tokens: the least that the CPU kernels treat as a tile of rows."""
PLAIN_TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the server's flags: `words` take the place of every flag in `replaces`."""

    name: str
    words: tuple[str, ...]
    replaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A remedy that cannot be tried on this cell, or need not be, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Today:
    """The cell as it is served: the user's flags, the KV layout (None: unknown), slots, and the
    flags that the build knows (None: it could not be asked)."""

    flags: UserFlags
    kv_unified: bool | None
    parallel: int
    known_flags: frozenset[str] | None


def remedies_for(
    today: Today, own: Sequence[Sequence[str]] = (), built_in: bool = True
) -> list[Remedy | LeftOut]:
    """Every remedy in the order in which it is tried: the user's own, then the built-in list.

    `own`: flag sets, each of them one remedy. Raises UsageError for flags that are not the user's.
    """
    found: list[Remedy | LeftOut] = [_own(words) for words in own]
    if built_in:
        found += [
            _flash_attention(today),
            _split_kv(today),
            _wide_kv(today),
            _small_ubatch(today),
            _no_repack(today),
            LeftOut("prompt cache off", "off already: every request of a run states it"),
        ]
    return _distinct([_checked(remedy, today) for remedy in found], today)


def apply_remedies(flags: UserFlags, remedies: Iterable[Remedy]) -> UserFlags:
    """The flags with each remedy's words in place of what it replaces."""
    words = list(flags.flags)
    for remedy in remedies:
        words = [*_without(words, remedy.replaces), *remedy.words]
    return UserFlags(tuple(words))


def compatible(remedies: Sequence[Remedy]) -> bool:
    """Whether no two of them set the same flag."""
    seen = [flag for remedy in remedies for flag in remedy.replaces]
    return len(seen) == len(set(seen))


def _without(words: Sequence[str], flags: tuple[str, ...]) -> list[str]:
    """The words less these flags and the values that follow them."""
    kept: list[str] = []
    dropping = False
    for word in words:
        if is_flag(word):
            dropping = canonical(word) in flags
            if dropping:
                continue
        elif dropping:
            continue
        kept.append(word)
    return kept


def _own(words: Sequence[str]) -> Remedy:
    check_user_flags(words)
    named = tuple(dict.fromkeys(canonical(word) for word in words if is_flag(word)))
    if not named:
        raise UsageError("--remedy: give at least one server flag, as in --remedy='--threads 1'")
    groups = (FLASH_ATTENTION, KV_LAYOUT, CACHE_TYPE_K, CACHE_TYPE_V, UBATCH_SIZE, REPACK)
    replaces = dict.fromkeys(named)
    for group in groups:
        if set(group) & set(named):
            replaces.update(dict.fromkeys(group))
    return Remedy(" ".join(words), tuple(words), tuple(replaces))


def _checked(remedy: Remedy | LeftOut, today: Today) -> Remedy | LeftOut:
    """Leaves out what this build does not know, or what changes nothing."""
    if isinstance(remedy, LeftOut):
        return remedy
    unknown = [
        word
        for word in remedy.words
        if is_flag(word)
        and today.known_flags is not None
        and canonical(word) not in today.known_flags
    ]
    if unknown:
        return LeftOut(remedy.name, f"this build does not know {', '.join(unknown)}")
    if apply_remedies(today.flags, [remedy]).flags == today.flags.flags:
        return LeftOut(remedy.name, "in force already")
    return remedy


def _distinct(found: Sequence[Remedy | LeftOut], today: Today) -> list[Remedy | LeftOut]:
    """Leaves out what comes to the same flags as a setting before it."""
    first: dict[tuple[str, ...], str] = {}
    kept: list[Remedy | LeftOut] = []
    for remedy in found:
        if isinstance(remedy, Remedy):
            name = first.setdefault(apply_remedies(today.flags, [remedy]).flags, remedy.name)
            if name != remedy.name:
                kept.append(LeftOut(remedy.name, f"the same as {name}"))
                continue
        kept.append(remedy)
    return kept


def _flash_attention(today: Today) -> Remedy | LeftOut:
    name = "flash attention off"
    if today.flags.flash_attn in FLASH_ATTENTION_OFF:
        return LeftOut(name, "off already")
    if today.flags.cache_type_v not in PLAIN_TYPES:
        return LeftOut(name, "a quantised V cache needs flash attention")
    return Remedy(name, ("--flash-attn", "off"), FLASH_ATTENTION)


def _split_kv(today: Today) -> Remedy | LeftOut:
    name = "one KV cache per slot"
    if today.kv_unified is False:
        return LeftOut(name, "each slot has its own already")
    return Remedy(name, ("--no-kv-unified",), KV_LAYOUT)


def _wide_kv(today: Today) -> Remedy | LeftOut:
    name = "f32 KV cache"
    if (today.flags.cache_type_k, today.flags.cache_type_v) == ("f32", "f32"):
        return LeftOut(name, "f32 already")
    return Remedy(name, ("-ctk", "f32", "-ctv", "f32"), (*CACHE_TYPE_K, *CACHE_TYPE_V))


def _small_ubatch(today: Today) -> Remedy | LeftOut:
    size = max(SMALL_UBATCH, today.parallel)
    name = f"micro-batch of {size}"
    if today.flags.ubatch_size <= size:
        return LeftOut(name, f"{today.flags.ubatch_size} already")
    return Remedy(name, ("-ub", str(size)), UBATCH_SIZE)


def _no_repack(today: Today) -> Remedy | LeftOut:
    name = "no repacked weights"
    if any(canonical(word) in ("-nr", "--no-repack") for word in today.flags.flags):
        return LeftOut(name, "off already")
    return Remedy(name, ("--no-repack",), REPACK)
