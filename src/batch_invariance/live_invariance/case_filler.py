"""Replacing a private prompt by meaningless words of equal token count."""

from __future__ import annotations

from dataclasses import replace

from batch_invariance.invariance_diff.builtin_workset import WORDS
from batch_invariance.invariance_diff.digest import counter_words
from batch_invariance.invariance_diff.model import Item, Message
from batch_invariance.live_invariance.fit import count_prompt_tokens
from batch_invariance.live_invariance.http import Client

TAILS = (" a", ".", " x", "!")
MOST_TAILS = 8


def filler_item(client: Client, item: Item, name: str, label: str) -> Item | None:
    """`item` under another name, with other words in every message, and as many prompt tokens as
    the server counts in it; None where the server cannot be asked, or no such words were found.

    `label` decides the words. The expected answer, which may be private too, is left out.
    """
    wanted = count_prompt_tokens(client, item)
    if wanted is None:
        return None
    plain = replace(item, id=name, expected_answer=None, family=None, fill=None)
    longest = max(range(len(item.messages)), key=lambda i: len(item.messages[i].content))
    counts = [len(message.content.split()) for message in item.messages]

    def filled(n_words: int, tail: str) -> Item:
        numbers = [*counts[:longest], n_words, *counts[longest + 1 :]]
        messages = tuple(
            Message(message.role, _words(f"{label}/{i}", n) + (tail if i == longest else ""))
            for i, (message, n) in enumerate(zip(item.messages, numbers, strict=True))
        )
        return replace(plain, messages=messages)

    low, high = 0, wanted
    while low < high:
        middle = (low + high + 1) // 2
        count = count_prompt_tokens(client, filled(middle, ""))
        if count is None:
            return None
        if count <= wanted:
            low = middle
        else:
            high = middle - 1
    for tail in ("", *TAILS):
        for n in range(1, MOST_TAILS + 1 if tail else 2):
            candidate = filled(low, tail * n)
            if count_prompt_tokens(client, candidate) == wanted:
                return candidate
    return None


def _words(label: str, n: int) -> str:
    numbers = counter_words(f"batch-invariance/filler/{label}")
    return " ".join(WORDS[next(numbers) % len(WORDS)] for _ in range(n))
