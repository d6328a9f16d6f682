"""Choices that a label decides, alike on every Python and platform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from batch_invariance.invariance_diff.digest import counter_words

T = TypeVar("T")


class Draw:
    """A sequence of choices, decided by `label` and by the order in which they are asked for.

    The modulo bias is below n / 2**64 and of no consequence for which name a question uses.
    """

    def __init__(self, label: str) -> None:
        self._words = counter_words(label)

    def between(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + next(self._words) % (high - low + 1)

    def flip(self) -> bool:
        """Return a yes or a no."""
        return self.between(0, 1) == 1

    def pick(self, options: Sequence[T]) -> T:
        """Return one of `options`."""
        return options[self.between(0, len(options) - 1)]

    def some(self, options: Sequence[T], n: int) -> list[T]:
        """Return `n` of `options`, each place taken once, in an order of their own."""
        left = list(options)
        return [left.pop(self.between(0, len(left) - 1)) for _ in range(n)]

    def shuffled(self, options: Sequence[T]) -> list[T]:
        """Return all of `options` in another order."""
        return self.some(options, len(options))
