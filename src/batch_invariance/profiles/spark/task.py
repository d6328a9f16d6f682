"""A question before filler is put around its facts, and how the two become a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.model import Message

SYSTEM = Message("system", "Answer in exactly the form that is asked for, and add nothing.")
"""The one system message of every item."""
WHOLE = 1000  # positions of facts are in thousandths of the filler
_PARAGRAPH = 6  # sentences


class Body(str, Enum):
    """What surrounds the facts: sentences, or functions."""

    PROSE = "prose"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Task:
    """A question with its answer.

    `facts`: what the answer follows from, sentences in prose and functions in code; they are
    planted in this order. `question` ends the prompt. `expected`: what `Item.expected_answer`
    becomes. `max_tokens`: what an answer in the asked form needs at most, in tokens of any
    vocabulary in use.
    """

    body: Body
    facts: tuple[str, ...]
    question: str
    expected: str
    max_tokens: int


def prompt_of(
    task: Task, positions: Sequence[int], filler: Sequence[str], tags: Sequence[str]
) -> tuple[Message, ...]:
    """Turn a task into chat messages, its facts planted in the filler.

    `positions`: where each fact stands, in thousandths of the filler, rising. `filler`: whole
    sentences or functions. `tags`: single words that end the filler where one more sentence or
    function would be too long; nothing is put before them, because two tokens are 3 % of a short
    prompt.
    """
    pieces: list[str] = []
    done = 0
    for fact, position in zip(task.facts, positions, strict=True):
        place = position * (len(filler) + 1) // WHOLE
        pieces += [*filler[done:place], fact]
        done = place
    pieces += filler[done:]
    text = _prose(pieces, tags) if task.body is Body.PROSE else _code(pieces, tags)
    return (SYSTEM, Message("user", f"{text}\n\n{task.question}"))


def _prose(pieces: list[str], tags: Sequence[str]) -> str:
    if tags:
        pieces = [*pieces, f"{' '.join(tags).capitalize()}."]
    starts = range(0, len(pieces), _PARAGRAPH)
    paragraphs = (" ".join(pieces[start : start + _PARAGRAPH]) for start in starts)
    return "Read these notes.\n\n" + "\n\n".join(paragraphs)


def _code(pieces: list[str], tags: Sequence[str]) -> str:
    if tags:
        pieces = [*pieces, f"# {' '.join(tags)}"]
    return "Read this code.\n\n```python\n" + "\n\n".join(pieces) + "\n```"
