"""The built-in work-set of the mock and the canary: sixteen prompts of chosen lengths.

The lengths straddle what an engine treats apart: 64, 256 and 512 tokens of a toy model, whose
tokens are mostly single characters.
"""

from __future__ import annotations

from batch_invariance.invariance_diff.digest import canonical_json, counter_words
from batch_invariance.invariance_diff.workset import WorkSet, parse_workset

LENGTHS = (24, 36, 48, 53, 54, 55, 96, 128, 192, 245, 246, 247, 320, 501, 502, 503)
"""Prompt lengths in characters; the toy's chat frame adds about ten tokens."""
# fmt: off
WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet",
    "jetty", "kelp", "larch", "maple", "north", "otter", "pearl", "quartz", "river",
    "stone", "tidal", "umber", "viola", "willow", "xylem", "yarrow", "zephyr",
)
# fmt: on
NAME = "built-in"


def builtin_workset() -> WorkSet:
    """Sixteen items without expected answers, the same on every platform."""
    items = [
        {"id": f"len{length}", "prompt": prompt_of(length), "family": _family(length)}
        for length in LENGTHS
    ]
    return parse_workset(canonical_json(items), NAME)


def prompt_of(length: int) -> str:
    """Words, decided by the length, cut to exactly `length` characters."""
    words = counter_words(f"batch-invariance/prompt/{length}")
    text = ""
    while len(text) < length:
        text += WORDS[next(words) % len(WORDS)] + " "
    return text[: length - 1] + "."


def _family(length: int) -> str:
    for limit in (64, 256, 512):
        if length + 10 <= limit + 2:
            return f"up to {limit}"
    return "longer"
