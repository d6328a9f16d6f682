"""The vocabulary of the toy models: any UTF-8 text tokenises, and only printable text comes out.

Special tokens, then one token per byte as the fallback for characters without a token of their
own, then the printable ASCII characters and some longer pieces. Pieces grow one character at a
time, because a SentencePiece tokenizer reaches a token only by merging two others.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` (llama_token_type in llama.h, b11434)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    BYTE = 6


UNKNOWN_ID: Final = 0
BOS_ID: Final = 1
EOS_ID: Final = 2

_SPECIAL: Final = (
    ("<unk>", TokenType.UNKNOWN),
    ("<s>", TokenType.CONTROL),
    ("</s>", TokenType.CONTROL),
    ("<|im_start|>", TokenType.CONTROL),
    ("<|im_end|>", TokenType.CONTROL),
)
_BYTES: Final = tuple((f"<0x{value:02X}>", TokenType.BYTE) for value in range(256))
_SPACE: Final = "\u2581"
_CHARACTERS: Final = (_SPACE, *(chr(code) for code in range(0x21, 0x7F)))
_WORDS: Final = (
    *("user", "assistant", "▁the", "▁and", "▁of", "▁in"),
    *("▁is", "▁you", "▁to", "▁it", "▁as"),
)


def _pieces() -> tuple[str, ...]:
    """Every prefix of the words, two characters or longer, each once."""
    grown = (word[:length] for word in _WORDS for length in range(2, len(word) + 1))
    return tuple(dict.fromkeys(grown))


VOCABULARY: Final = (
    *_SPECIAL,
    *_BYTES,
    *((text, TokenType.NORMAL) for text in (*_CHARACTERS, *_pieces())),
)
"""Every token's text and type, by id."""

FIRST_PRINTABLE: Final = len(_SPECIAL) + len(_BYTES)
"""Ids from here on are printable text; those below must never be generated."""
