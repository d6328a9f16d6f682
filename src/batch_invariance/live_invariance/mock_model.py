"""The mock server's language model: a tokenizer, a template and a deterministic next token.

A completion is a walk. Each step holds a SHA-256 state that depends on the prompt and on the
tokens chosen so far, and the state alone decides the candidates and their logprobs. So an answer
never depends on who else is in the batch, and a banned token changes everything after it.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VOCABULARY: tuple[str, ...] = tuple(
    re.findall(
        " [a-z]+",
        " amber anchor apple arrow basin beacon birch bridge candle canyon cedar cloud copper coral"
        " crane delta dune ember falcon fern field flint forest garden glacier granite harbor hazel"
        " heron hollow island ivory jasper juniper kettle lagoon lantern ledger lemon linen maple"
        " marble meadow mirror nectar oak olive orchard otter pebble pine prairie quarry raven reed"
        " river saddle silver slate spruce thistle timber valley willow",
    )
)
"""The 64 words that completions are made of, each with its leading space."""

EOS_ID = 2
_FIRST_WORD_ID = 100
_FIRST_TWIN_ID = 1100
_FIRST_PIECE_ID = 2000
_PIECE_IDS = 47_000
VOCABULARY_SIZE = _FIRST_PIECE_ID + _PIECE_IDS

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
)
_PIECE = re.compile(r"<\|im_(?:start|end)\|>| ?[A-Za-z]{1,8}| ?[0-9]{1,3}|.", re.DOTALL)
_WORD_IDS = {word: _FIRST_WORD_ID + index for index, word in enumerate(VOCABULARY)}


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a tokenized text. Pieces joined give the text back."""

    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may come next: its id, its text and its logprob, a float32 value."""

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Step:
    """A place in a completion: the digest of all that came before, and the position from 0.

    `end` is the position at which the end-of-sequence token is the best one; None: never.
    """

    state: bytes
    position: int
    end: int | None


def tokenize(text: str) -> list[Piece]:
    """Cut a text into pieces, the same way for `/tokenize` and for prompts."""
    return [Piece(_piece_id(piece), piece) for piece in _PIECE.findall(text)]


def _piece_id(piece: str) -> int:
    known = _WORD_IDS.get(piece)
    if known is not None:
        return known
    digest = hashlib.sha256(piece.encode("utf-8", "surrogatepass")).digest()
    return _FIRST_PIECE_ID + int.from_bytes(digest[:4], "big") % _PIECE_IDS


def apply_template(messages: Sequence[tuple[str, str]]) -> str:
    """Render (role, content) pairs as the prompt, as `CHAT_TEMPLATE` says."""
    turns = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def twin_of(token_id: int) -> int:
    """Give the other id with the same text; end-of-sequence and prompt pieces have none."""
    index = token_id - _FIRST_WORD_ID
    return _FIRST_TWIN_ID + index if 0 <= index < len(VOCABULARY) else token_id


def first_step(prompt: str) -> Step:
    """Start a completion. One prompt in sixteen ends by itself, after 6 to 45 tokens."""
    state = hashlib.sha256(b"mock-model\0" + prompt.encode("utf-8", "surrogatepass")).digest()
    end = 6 + state[1] % 40 if state[0] < 16 else None
    return Step(state, 0, end)


def advance(step: Step, token_id: int) -> Step:
    """Go on with the chosen token."""
    state = hashlib.sha256(step.state + token_id.to_bytes(4, "little")).digest()
    return Step(state, step.position + 1, step.end)


def candidates(step: Step, count: int) -> tuple[Candidate, ...]:
    """List the `count` best next tokens, best first, all different.

    Their probabilities sum to less than 1: the first two are close together, as where a real
    model wavers, the others far below. Only additions make the logprobs, so they are the same
    on every machine.
    """
    state = step.state
    start, stride = state[0], state[1] | 1
    logprob = -(0.8 + _fraction(state, 2))
    found = [(EOS_ID, "")] if step.end == step.position else []
    # An odd stride visits every word of a vocabulary whose size is a power of two.
    for rank in range(count - len(found)):
        index = (start + rank * stride) % len(VOCABULARY)
        found.append((_FIRST_WORD_ID + index, VOCABULARY[index]))
        if rank + 1 == len(VOCABULARY):
            break
    listed: list[Candidate] = []
    for rank, (token_id, text) in enumerate(found):
        listed.append(Candidate(token_id, text, float32(logprob)))
        gap = (0.01, 2.5)[rank] if rank < 2 else 0.8
        logprob -= gap + _fraction(state, 4 + 2 * (rank % 12)) * 0.5
    return tuple(listed)


def choose(step: Step, bias: Mapping[int, float]) -> int:
    """Pick the token with the highest logprob after the bias (minus infinity bans it)."""
    if not bias:
        return candidates(step, 1)[0].token_id
    every = candidates(step, len(VOCABULARY) + 1)
    return max(every, key=lambda one: one.logprob + bias.get(one.token_id, 0.0)).token_id


def _fraction(state: bytes, offset: int) -> float:
    return int.from_bytes(state[offset : offset + 2], "big") / 65536


def float32(value: float) -> float:
    """Round to the nearest float32 value."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def next_float32_down(value: float) -> float:
    """Move a negative float32 value by one unit in the last place, away from zero."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    moved: float = struct.unpack("<f", struct.pack("<I", bits + 1))[0]
    return moved
