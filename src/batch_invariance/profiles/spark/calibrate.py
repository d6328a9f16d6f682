"""How much filler brings a prompt to a target length: bisection with the token counter asked for.

Two bisections: over whole sentences or functions, then over single words (tags) in what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batch_invariance.errors import UsageError
from batch_invariance.invariance_diff.model import Message
from batch_invariance.profiles.spark.filler import piece, tags
from batch_invariance.profiles.spark.task import Task, prompt_of

CountTokens = Callable[[Sequence[Message]], int]
"""Tokens of a prompt as the server will see it, its chat template included."""
TOLERANCE_PERCENT = 3
_MOST_CHARACTERS = 40
"""Characters that a token can stand for: no word of the filler is longer than 15."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task with its place in the work-set; the prompt's length is still open.

    `label` decides the filler, `positions` where in it the facts stand (`task.prompt_of`).
    """

    item_id: str
    task: Task
    positions: tuple[int, ...]
    label: str

    def messages(self, pieces: Sequence[str] = (), n_tags: int = 0) -> tuple[Message, ...]:
        """Return the prompt around so many pieces of filler and so many tags."""
        return prompt_of(self.task, self.positions, pieces, tags(self.label, n_tags))


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt of the right length, in tokens as counted; `floor`: no filler could be put in."""

    messages: tuple[Message, ...]
    measured: int
    floor: bool


def within(measured: int, target: int) -> bool:
    """Whether a length is close enough to its target, in whole-number arithmetic."""
    return 100 * abs(measured - target) <= TOLERANCE_PERCENT * target


def calibrate(draft: Draft, bare: int, target: int, ceiling: int, count: CountTokens) -> Fitted:
    """Fill a draft, `bare` tokens long by itself, up to `target` tokens and never above `ceiling`.

    The prompt stays at or below the target unless only the next word up is within 3 % of it. A
    counter that jumps or stands still ends the search as any other does. Raises UsageError when
    the counter cannot be a count of the text, or gives no length within 3 %.
    """
    if bare > target:
        return Fitted(draft.messages(), bare, floor=True)
    gauge = _Gauge(draft, bare, count)
    above = gauge.pieces_above(target)
    n = _last_within(lambda n: gauge.tokens(n, 0) <= target, 0, above)
    # So many tags are a longer text than the piece that did not fit.
    limit = len(gauge.piece(n)) + 1
    n_tags = _last_within(lambda k: gauge.tokens(n, k) <= target, 0, limit)
    for at in ((n, n_tags), (n, n_tags + 1), (n + 1, 0)):
        measured = gauge.tokens(*at)
        if within(measured, target) and measured <= ceiling:
            return Fitted(gauge.messages(*at), measured, floor=False)
    low, high = gauge.tokens(n, n_tags), gauge.tokens(n, n_tags + 1)
    raise UsageError(
        f"{draft.item_id}: no filler gives a prompt within {TOLERANCE_PERCENT} % of {target} "
        f"tokens: by one more word the count goes from {low} to {high}, of {ceiling} that fit. "
        "Check the token counter, or choose another fill or ctx"
    )


class _Gauge:
    """The lengths of one draft with more or less filler, each counted once."""

    def __init__(self, draft: Draft, bare: int, count: CountTokens) -> None:
        self._draft = draft
        self._count = count
        self._pieces: list[str] = []
        self._known = {(0, 0): bare}

    def piece(self, index: int) -> str:
        """Return one piece of the draft's filler."""
        while len(self._pieces) <= index:
            new = piece(self._draft.task.body, self._draft.label, len(self._pieces))
            self._pieces.append(new)
        return self._pieces[index]

    def messages(self, n: int, n_tags: int) -> tuple[Message, ...]:
        """Return the prompt with `n` pieces and `n_tags` tags."""
        self.piece(n)
        return self._draft.messages(self._pieces[:n], n_tags)

    def tokens(self, n: int, n_tags: int) -> int:
        """Return the length of that prompt."""
        at = (n, n_tags)
        if at not in self._known:
            self._known[at] = self._count(self.messages(n, n_tags))
        return self._known[at]

    def pieces_above(self, target: int) -> int:
        """Return a number of pieces that exceeds `target`, found by doubling."""
        n = 1
        while self.tokens(n, 0) <= target:
            characters = sum(len(text) for text in self._pieces[:n])
            if characters > _MOST_CHARACTERS * (target + 1):
                raise UsageError(
                    f"{self._draft.item_id}: the token counter gives {self.tokens(n, 0)} tokens "
                    f"for a prompt with {characters} characters of filler, which is no count of "
                    "its text. Count with the server's own tokenizer"
                )
            n *= 2
        return n


def _last_within(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Bisect for an n with fits(n) and not fits(n + 1), where fits(low) and not fits(high)."""
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
