"""Work-sets with power: prompts that straddle the engine's boundaries, and near ties.

An engine takes other code at certain lengths, so a prompt of 63, one of 64 and one of 65 tokens may
meet three ways of adding up. A token flips where the best two are nearly equal, so one token asked
for at such a place shows more than many asked for elsewhere. Neither needs an expected answer: the
texts are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from batch_invariance.invariance_diff.digest import counter_words
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.invariance_diff.rules import LENGTH_BOUNDARIES

CountTokens = Callable[[Sequence[Message]], int]
"""Tokens of a prompt as the server sees it, chat template included."""

NEAR_TIE = "near-tie"
SLOT_END = "slot end"
VARIANTS = 12
"""So many choices of words are tried before a length is given up; the last ones have no opener."""
# fmt: off
OPENERS = (
    "Tell a story with these words: ", "Write a poem about: ", "Find a link between: ",
    "Describe a day with: ", "Sort these by size: ", "Explain each: ", "Invent a game from: ", "",
)
WORDS = (
    "river", "stone", "bread", "music", "window", "garden", "winter", "doctor", "letter", "market",
    "paper", "silver", "summer", "teacher", "water", "bridge", "camera", "dinner", "engine",
    "forest", "guitar", "hammer", "island", "jacket", "kitchen", "ladder", "mirror", "needle",
    "orange", "pencil", "queen", "rabbit", "school", "table", "uncle", "valley", "wagon", "yellow",
    "apple", "button", "candle", "desert", "eagle", "farmer", "glass", "horse", "iron", "jungle",
)
# fmt: on
FILLERS = (" a", ",", " I", "!", " 1", ".", "?", " x", ";", "-")
"""Pieces that most tokenizers give one token after a word."""


@dataclass(frozen=True, slots=True)
class BoundarySpec:
    """What to generate: `count` prompts for slots of `ctx` tokens of which `max_tokens` are to be
    generated, for `parallel` slots and a physical batch of `n_ubatch` tokens.

    `slot_ends`: a slot is full at `ctx`, as with one KV buffer for each. `seed` chooses the words.
    """

    ctx: int
    max_tokens: int
    n_ubatch: int
    parallel: int
    count: int
    seed: int
    slot_ends: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """A prompt length to reach, in tokens, and the family it belongs to."""

    tokens: int
    family: str


@dataclass(frozen=True, slots=True)
class Placed:
    """An item, the length that was wanted and the one that was reached, both in tokens."""

    item: Item
    wanted: int
    reached: int


@dataclass(frozen=True, slots=True)
class BoundarySet:
    """The prompts in their mixed order, and in words what was left out and why."""

    placed: tuple[Placed, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tie:
    """A generated position at which two tokens were nearly equal.

    `item` is the index of the prompt, `position` counts the answer's tokens before it and `before`
    is their text. `margin` is the best logprob minus the second, in nats; `pair` their token ids
    in ascending order.
    """

    item: int
    position: int
    before: str
    margin: float
    pair: tuple[int, int]


def boundary_targets(spec: BoundarySpec) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Every length to aim at, the most telling first, and in words those that do not fit.

    Each boundary is met by one token less, as many, and one more; the slot's end by the longest
    prompt that fits and one token less. With several slots, `parallel` prompts about n_ubatch /
    parallel fill one physical batch.
    """
    shares = {spec.n_ubatch // spec.parallel} if spec.parallel > 1 else set()
    boundaries = sorted({*LENGTH_BOUNDARIES, spec.n_ubatch, *shares} - {0})
    last = spec.ctx - spec.max_tokens
    ends = (last, last - 1) if spec.slot_ends else ()
    found: dict[int, Target] = {}
    for offset in (0, -1, 1):
        for boundary in boundaries:
            if boundary + 1 <= last:
                tokens = boundary + offset
                found.setdefault(tokens, Target(tokens, f"around {boundary}"))
        for tokens in ends[:1] if offset == 0 else ends[1:]:
            found.setdefault(tokens, Target(tokens, SLOT_END))
    left_out = [
        f"around {boundary}: with {spec.max_tokens} tokens to generate it does not fit {spec.ctx}"
        for boundary in boundaries
        if boundary + 1 > last
    ]
    if not spec.slot_ends:
        left_out.append(f"{SLOT_END}: slots that share one KV buffer do not end at {spec.ctx}")
    return tuple(t for t in found.values() if t.tokens > 0), tuple(left_out)


def boundary_workset(spec: BoundarySpec, count: CountTokens) -> BoundarySet:
    """Generates the prompts. The same spec and the same counts give the same bytes everywhere.

    A target that the chat template alone exceeds is left out; where no choice of words reaches a
    length, the nearest one stands. More prompts than targets go round again with other words.
    """
    targets, left_out = boundary_targets(spec)
    smallest = count([Message("user", "a")])
    usable = [target for target in targets if target.tokens >= smallest]
    short = sorted(target.tokens for target in targets if target.tokens < smallest)
    notes = list(left_out)
    if short:
        listed = ", ".join(map(str, short))
        notes.append(f"{listed} tokens: the chat template alone takes {smallest - 1}")
    if spec.count < len(usable):
        lost = ", ".join(str(t.tokens) for t in usable[spec.count :])
        notes.append(f"{lost} tokens: more targets than --count {spec.count}")
    placed = []
    for number in range(spec.count if usable else 0):
        target, turn = usable[number % len(usable)], number // len(usable) + 1
        placed.append(_place(target, turn, spec, count))
    return BoundarySet(tuple(_mixed(placed)), tuple(notes))


def _place(target: Target, turn: int, spec: BoundarySpec, count: CountTokens) -> Placed:
    name = f"len{target.tokens}" + (f"-{turn}" if turn > 1 else "")
    label = f"batch-invariance/boundary/{spec.seed}/{name}"
    tried: list[tuple[str, int]] = []
    for variant in range(VARIANTS):
        words = counter_words(f"{label}/{variant}")
        opener = OPENERS[next(words) % len(OPENERS)] if variant < VARIANTS // 2 else ""
        tried.append(_approach(opener, words, target.tokens, count))
        if tried[-1][1] == target.tokens:
            break
    text, reached = min(tried, key=lambda found: abs(found[1] - target.tokens))
    item = Item(name, (Message("user", text),), None, target.family, None, spec.max_tokens)
    return Placed(item, target.tokens, reached)


def _approach(
    opener: str, words: Iterator[int], target: int, count: CountTokens
) -> tuple[str, int]:
    """As many whole words as fit the target, then single tokens; the text and its length."""
    chosen = [WORDS[word % len(WORDS)] for word in islice(words, target)]

    def text_of(n: int) -> str:
        return opener + " ".join(chosen[:n])

    def tokens(text: str) -> int:
        return count([Message("user", text)])

    low, high = 0, len(chosen)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tokens(text_of(middle)) <= target else (low, middle - 1)
    text = text_of(low)
    reached = tokens(text)
    while reached < target:
        for filler in FILLERS:
            longer = tokens(text + filler)
            if reached < longer <= target:
                text, reached = text + filler, longer
                break
        else:
            break
    return text, reached


def _mixed(placed: Sequence[Placed]) -> Iterator[Placed]:
    """Long and short in turn, so that long prefills meet the decodes of others."""
    ordered = sorted(placed, key=lambda one: one.reached)
    while ordered:
        yield ordered.pop()
        if ordered:
            yield ordered.pop(0)


def ties_of(item: int, response: bytes) -> list[Tie]:
    """Every position of one answer as a tie, near or not; empty where the response has no
    logprobs. A position that follows half a character is left out: no request could ask for it."""
    try:
        rows = json.loads(response)["choices"][0]["logprobs"]["content"]
    except (ValueError, RecursionError, KeyError, IndexError, TypeError):
        return []
    before = b""
    found = []
    for position, row in enumerate(rows if isinstance(rows, list) else []):
        try:
            best, second = sorted(row["top_logprobs"], key=lambda top: -top["logprob"])[:2]
            margin = float(best["logprob"]) - float(second["logprob"])
            pair = (min(best["id"], second["id"]), max(best["id"], second["id"]))
            text = before.decode("utf-8", "ignore")
            if text.encode("utf-8") == before:
                found.append(Tie(item, position, text, margin, pair))
            # A list: of a number n `bytes` would make n of them.
            before += bytes(list(row["bytes"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            break
    return found


def near_tie_item(prompt: Item, tie: Tie) -> Item:
    """An item that asks for the one token at `tie`: the same chat, and the answer up to there as
    the beginning of the assistant's turn, which the server continues."""
    return replace(
        prompt,
        id=f"tie-{prompt.id}-{tie.position}",
        messages=(*prompt.messages, Message("assistant", tie.before)),
        expected_answer=None,
        family=NEAR_TIE,
        max_tokens=1,
    )


def tie_again(tie: Tie, response: bytes) -> float | None:
    """The margin that the answer to `near_tie_item` has at `tie`; None where it is another place.

    The same two tokens must lead: a server that does not continue the assistant's turn, or cuts
    the text into other tokens, answers a different question.
    """
    asked = ties_of(tie.item, response)
    return asked[0].margin if asked and asked[0].pair == tie.pair else None
