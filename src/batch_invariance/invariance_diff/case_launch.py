"""The command line of a case's server, without what belongs to one launch or one machine."""

from __future__ import annotations

from collections.abc import Sequence

_WITH_VALUE = frozenset(
    {"--model", "--host", "--port", "--api-key-file", "--alias", "--log-colors", "-lv"}
)
_ALONE = frozenset({"--log-prefix", "--log-timestamps", "--metrics"})


def portable_words(argv: Sequence[str]) -> tuple[str, ...]:
    """The words of a launch less server, model, address, key, name and log: what is left changes
    the arithmetic or the slots. The user's flags come last and are kept as they are."""
    kept: list[str] = []
    words = iter(argv[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word not in _ALONE:
            kept.append(word)
    return tuple(kept)


def with_slots(words: Sequence[str], ctx: int, lanes: int) -> tuple[str, ...]:
    """The words for another number of slots of `ctx` tokens each."""
    changed = list(words)
    for flag, value in (("-c", str(ctx * lanes)), ("--parallel", str(lanes))):
        if flag in changed[:-1]:
            changed[changed.index(flag) + 1] = value
    return tuple(changed)
