"""Codewords: a unique made-up word in each item's system prompt, which no other item can know.

A codeword that turns up in another item's answer names the donor beyond doubt, where shared text
could be chance. The server must accept system messages for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from batch_invariance.errors import WorkSetError
from batch_invariance.invariance_diff.digest import counter_words, digest_of
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.workset import WorkSet, items_sha256

_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aeiou"
_SYLLABLES = 4
_MAX_LISTED = 20  # faults spelled out in one error

# The lookahead finds a word at every place, also inside a longer run of letters and digits.
_ANY_WORD = re.compile(r"(?=([a-z]{8}-[0-9]{4}))")
_SENTENCE = re.compile(
    r'(?:^|\n\n)The codeword of this conversation is "([a-z]{8}-[0-9]{4})"\. Never say it\.$'
)


def with_codewords(workset: WorkSet, seed: int) -> WorkSet:
    """The same items under the same ids, each with a codeword of its own at the system prompt's
    end.

    An item without a system message gets one, before all others. A codeword is eight letters that
    can be pronounced and four digits, such as `zovikeda-4821`: decided by the seed, the item's id
    and its messages, different for each item, and in none of the work-set's texts, whatever the
    case of its letters there. The digest is that of the changed items. Raises WorkSetError where
    items have codewords already.
    """
    taken = _words_in(workset.items)
    faults = []
    items = []
    for item in workset.items:
        if codeword_of(item.messages) is not None:
            faults.append(f"item {item.id!r} has a codeword already")
        word = next(word for word in _candidates(item, seed) if word not in taken)
        taken.add(word)
        items.append(replace(item, messages=_told(item.messages, word)))
    if faults:
        more = len(faults) - _MAX_LISTED
        tail = [f"and {more} more"] if more > 0 else []
        raise WorkSetError(f"work-set {workset.name}", faults[:_MAX_LISTED] + tail)
    return WorkSet(workset.name, tuple(items), items_sha256(items))


def codeword_of(messages: Sequence[Message]) -> str | None:
    """The codeword that `with_codewords` put into these messages; None where it put none."""
    system = _first_system(messages)
    found = _SENTENCE.search(messages[system].content) if system is not None else None
    return found[1] if found else None


def without_codeword(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages as they were before `with_codewords`."""
    system = _first_system(messages)
    if system is None or codeword_of(messages) is None:
        return tuple(messages)
    rest = _SENTENCE.sub("", messages[system].content)
    kept = (replace(messages[system], content=rest),) if rest else ()
    return (*messages[:system], *kept, *messages[system + 1 :])


def _first_system(messages: Sequence[Message]) -> int | None:
    return next((i for i, message in enumerate(messages) if message.role == "system"), None)


def _told(messages: Sequence[Message], word: str) -> tuple[Message, ...]:
    sentence = f'The codeword of this conversation is "{word}". Never say it.'
    at = _first_system(messages)
    if at is None:
        return (Message("system", sentence), *messages)
    given = messages[at].content
    told = replace(messages[at], content=f"{given}\n\n{sentence}" if given else sentence)
    return (*messages[:at], told, *messages[at + 1 :])


def _candidates(item: Item, seed: int) -> Iterable[str]:
    """Endless codewords for one item, in the order in which they are tried."""
    content = digest_of([[message.role, message.content] for message in item.messages])
    numbers = counter_words(f"batch-invariance/codeword/{seed}/{item.id}/{content}")
    while True:
        letters = ""
        for _ in range(_SYLLABLES):
            number = next(numbers)
            letters += _CONSONANTS[number % len(_CONSONANTS)]
            letters += _VOWELS[number // len(_CONSONANTS) % len(_VOWELS)]
        yield f"{letters}-{next(numbers) % 10_000:04d}"


def _words_in(items: Sequence[Item]) -> set[str]:
    """Everything in the items' texts that could be a codeword, in lower case."""
    found: set[str] = set()
    for item in items:
        texts = [item.id, item.expected_answer or "", *(m.content for m in item.messages)]
        for text in texts:
            found.update(_ANY_WORD.findall(text.lower()))
    return found
