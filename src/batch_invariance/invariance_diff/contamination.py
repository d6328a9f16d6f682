"""Contamination told from drift: whether a divergent completion holds a companion's text.

Drift is rounding: another token at a near tie, then the model's own words. Contamination is
another request's text in this one's answer, a privacy fault. That is a grave thing to say of a
server, so what the model could have said by itself does not count: text of the item's own prompt
or of its own answer in arm A, text that two different items have (a template, a stock phrase), and
stretches too short or too plain. What is left must clear a `Bar`, or be a codeword.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.codewords import codeword_of, without_codeword
from batch_invariance.invariance_diff.model import Message
from batch_invariance.invariance_diff.shared_text import (
    GRAM,
    Window,
    common_length,
    shared_grams,
    shared_runs,
    window_of,
    without,
)

SEARCHED_CHARACTERS = 1 << 17
"""So much of a completion is searched for stretches, from where it leaves the item's own answer;
it bounds memory to some 20 MB. Codewords and whole prompts are looked for in all of it."""

_NO_SPACES = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_NO_SPACES}]|[^\W\d_{_NO_SPACES}]{{2,}}")


@dataclass(frozen=True, slots=True)
class Bar:
    """What foreign text must reach to count: columns of text and different words.

    A column is a character, a wide one (Chinese, Japanese, Korean) two; blanks in a row are one.
    A word is two or more letters, or one character of a script without spaces; numbers, rules and
    lists of digits hold no word.
    """

    columns: int
    words: int


PROMPT_BAR = Bar(32, 6)
"""A stretch of a prompt. Six different words in a row, unlike any other text of the work-set, are
a sentence's part that two writers hardly ever share; phrases such as `in the middle of the` do not
reach it."""
WHOLE_PROMPT_BAR = Bar(20, 4)
"""A whole message of a prompt, word for word: then its ends must fit too, and prompts made from
one template, with little text of their own, are told apart."""
ANSWER_BAR = Bar(96, 12)
"""A stretch of an answer. One model words different answers alike, so this bar is higher."""
WHOLE_ANSWER_BAR = Bar(64, 10)
"""The completion is the companion's answer from end to end: two answers changed places."""


class DonorKind(str, Enum):
    """What of a companion was found: its codeword, text of its prompt, text of its answer."""

    CODEWORD = "codeword"
    PROMPT = "prompt"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class DivergentText:
    """A divergent completion of item X: its `text` (reasoning too, where the caller joins it), X's
    own `messages`, and `reference`, X's text in arm A (None where it has none)."""

    text: str
    messages: tuple[Message, ...]
    reference: str | None


@dataclass(frozen=True, slots=True)
class CompanionText:
    """Another item Y that may be the donor: id, messages, and Y's text in arm A."""

    id: str
    messages: tuple[Message, ...]
    reference: str | None


@dataclass(frozen=True, slots=True)
class Donor:
    """Text of one companion in the completion, without the text: the companion's id, what it is,
    its length and its place in the completion, in characters."""

    id: str
    kind: DonorKind
    n_chars: int
    start: int


@dataclass(frozen=True, slots=True)
class Contamination:
    """Everything foreign in one completion: at least one donor, the longest find first, and one
    entry per companion and kind. Equal lengths stand in the order of the companions."""

    donors: tuple[Donor, ...]


def find_donor(
    subject: DivergentText,
    companions: Sequence[CompanionText],
    others: Sequence[CompanionText] = (),
) -> Contamination | None:
    """Whether `subject` holds text of a companion that is not its own; None where it does not.

    `others` are items of the work-set that were not in flight: no donors, but what they share
    with a companion is common text, and a completion that holds their whole prompts is a model
    that makes prompts up. A companion with the same prompt is no donor but by its codeword. An
    answer counts only where less than half of the words of its prompt are in the subject's too:
    like questions have like answers. Linear in the lengths of the texts.
    """
    asked = without_codeword(subject.messages)
    own = (*(message.content for message in subject.messages), subject.reference or "")
    rivals = _unlike(asked, companions)
    rest = _unlike(asked, others)
    found = [
        *_codewords(subject, companions, own),
        *_whole_prompts(subject, rivals, rest),
        *_whole_answers(subject, rivals, rest),
        *_stretches(subject, rivals, rest, own),
    ]
    best: dict[tuple[str, DonorKind], Donor] = {}
    for donor in found:
        key = (donor.id, donor.kind)
        if key not in best or donor.n_chars > best[key].n_chars:
            best[key] = donor
    rank = {companion.id: place for place, companion in reversed(list(enumerate(companions)))}
    ordered = sorted(best.values(), key=lambda donor: (-donor.n_chars, rank[donor.id]))
    return Contamination(tuple(ordered)) if ordered else None


def _unlike(asked: tuple[Message, ...], items: Sequence[CompanionText]) -> list[CompanionText]:
    """The items that ask something else, each once, without their codewords."""
    kept: dict[str, CompanionText] = {}
    for item in items:
        messages = without_codeword(item.messages)
        if messages != asked:
            kept.setdefault(item.id, CompanionText(item.id, messages, item.reference))
    return list(kept.values())


def _codewords(
    subject: DivergentText, companions: Sequence[CompanionText], own: Sequence[str]
) -> Iterator[Donor]:
    for companion in companions:
        word = codeword_of(companion.messages)
        if word is None:
            continue
        pattern = re.compile(re.escape(word), re.IGNORECASE)
        found = pattern.search(subject.text)
        if found and not any(pattern.search(text) for text in own):
            yield Donor(companion.id, DonorKind.CODEWORD, len(found[0]), found.start())


def _whole_prompts(
    subject: DivergentText,
    rivals: Sequence[CompanionText],
    rest: Sequence[CompanionText],
) -> list[Donor]:
    """Messages of companions that stand in the completion from end to end."""
    alone = subject.reference or ""
    owners: dict[str, set[tuple[Message, ...]]] = {}
    for item in (*rivals, *rest):
        for message in item.messages:
            piece = message.content.strip()
            if piece in subject.text or piece in alone:
                owners.setdefault(piece, set()).add(item.messages)
    # A message of several different items is part of a template; one of the subject's is its own.
    telling = [
        piece
        for piece, items in owners.items()
        if len(items) == 1
        and _clears(piece, WHOLE_PROMPT_BAR)
        and not any(piece in message.content for message in subject.messages)
    ]
    held = {piece: at for piece in telling if (at := _place(subject.text, piece)) is not None}
    in_flight = {message.content.strip() for item in rivals for message in item.messages}
    if held.keys() - in_flight or any(_place(alone, piece) is not None for piece in telling):
        # The model writes prompts of this kind by itself.
        return []
    found: list[Donor] = []
    for piece in sorted(held, key=len, reverse=True):
        at, n = held[piece], len(piece)
        if any(d.start <= at and at + n <= d.start + d.n_chars for d in found):
            continue
        found += [
            Donor(item.id, DonorKind.PROMPT, n, at)
            for item in rivals
            if any(message.content.strip() == piece for message in item.messages)
        ]
    return found


def _place(text: str, piece: str) -> int | None:
    """Where `piece` first stands in `text` as whole words; None where it does not."""
    start = text.find(piece)
    while start >= 0:
        end = start + len(piece)
        before, after = text[max(0, start - 1) : start], text[end : end + 1]
        if not (_joins(before, piece[0]) or _joins(piece[-1], after)):
            return start
        start = text.find(piece, start + 1)
    return None


def _joins(left: str, right: str) -> bool:
    """Whether two neighbouring characters are inside one word or number (of ASCII)."""
    return (left + right).isascii() and left.isalnum() and right.isalnum()


def _whole_answers(
    subject: DivergentText, rivals: Sequence[CompanionText], rest: Sequence[CompanionText]
) -> list[Donor]:
    """Companions whose answer in arm A the completion is, from end to end."""
    text = subject.text.strip()
    owners = [
        i for i in (*rivals, *rest) if i.reference is not None and i.reference.strip() == text
    ]
    # An answer that two different prompts have is a stock phrase.
    if len({item.messages for item in owners}) != 1 or not _clears(text, WHOLE_ANSWER_BAR):
        return []
    mine = _words_of(subject.messages)
    start = subject.text.find(text)
    return [
        Donor(item.id, DonorKind.ANSWER, len(text), start)
        for item in rivals
        if item in owners and not _asks_alike(mine, item.messages)
    ]


def _stretches(
    subject: DivergentText,
    rivals: Sequence[CompanionText],
    rest: Sequence[CompanionText],
    own: Sequence[str],
) -> list[Donor]:
    """Runs that the completion shares with a companion, less what is own or common."""
    begin = max(0, common_length(subject.text, subject.reference or "") - GRAM)
    window = window_of(subject.text, begin, SEARCHED_CHARACTERS)
    mine = _words_of(subject.messages)
    plain = {gram for text in own for gram in shared_grams(window, text)}
    kept = [
        (item, kind, run)
        for item in rivals
        for kind, run in _runs_of(window, item, mine)
        if _clears(without(window, run, plain), _BARS[kind])
    ]
    if kept:
        plain |= _common_grams(window, (*rivals, *rest))
    return [
        Donor(item.id, kind, len(run), window.begin + run.start)
        for item, kind, run in kept
        if _clears(without(window, run, plain), _BARS[kind])
    ]


_BARS = {DonorKind.PROMPT: PROMPT_BAR, DonorKind.ANSWER: ANSWER_BAR}


def _runs_of(
    window: Window, item: CompanionText, mine: set[str]
) -> Iterator[tuple[DonorKind, range]]:
    for message in item.messages:
        for run in shared_runs(window, message.content):
            yield DonorKind.PROMPT, run
    if item.reference and not _asks_alike(mine, item.messages):
        for run in shared_runs(window, item.reference):
            yield DonorKind.ANSWER, run


def _common_grams(window: Window, items: Sequence[CompanionText]) -> set[str]:
    """The grams of the window that stand in two items with different prompts."""
    owner: dict[str, tuple[Message, ...]] = {}
    common: set[str] = set()
    for item in items:
        for text in (*(message.content for message in item.messages), item.reference or ""):
            for gram in shared_grams(window, text):
                if owner.setdefault(gram, item.messages) != item.messages:
                    common.add(gram)
    return common


def _asks_alike(mine: set[str], other: Sequence[Message]) -> bool:
    """Whether half of the other question's words, or more, are in `mine` too.

    System prompts are left out: items that share one need not ask alike.
    """
    theirs = _words_of([message for message in other if message.role != "system"])
    return 2 * len(theirs & mine) >= len(theirs)


def _words_of(messages: Sequence[Message]) -> set[str]:
    return {word for message in messages for word in _words(message.content)}


def _clears(text: str, bar: Bar) -> bool:
    plain = " ".join(text.split())
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in plain)
    return len(plain) + wide >= bar.columns and len(_words(plain)) >= bar.words


def _words(text: str) -> set[str]:
    """The different words of a text, whatever the case of their letters."""
    return {word.casefold() for word in _WORD.findall(text)}
