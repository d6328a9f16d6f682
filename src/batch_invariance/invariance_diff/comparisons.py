"""The comparisons of a run: arms A and B are kept, one trial per item, and the others run past."""

from __future__ import annotations

from collections.abc import Mapping

from batch_invariance.invariance_diff.diff import TrialDiff, compare_trials, repeats
from batch_invariance.invariance_diff.model import Arm, Completion, Item, Trial
from batch_invariance.invariance_diff.pairs import PairAccumulator, PairReport

PAIRS = {"AC": Arm.A, "AB": Arm.A, "BC": Arm.B, "AA": Arm.A}
"""Each pair of arms by name, with the arm of its x side."""
OF_ENDPOINT = {"AC": Arm.A, "AA": Arm.A, "AA3": Arm.A}
"""The pairs of a run against a server of someone else, which has no arm B."""


class Comparisons:
    """Adds trials to the pairs they belong to. An answer that repeats arm A's is held once."""

    def __init__(self, items: tuple[Item, ...], pairs: Mapping[str, Arm] = PAIRS) -> None:
        self._arms = pairs
        self._kept: dict[Arm, dict[int, Trial]] = {Arm.A: {}, Arm.B: {}}
        # The certificate has the report of every pair, if only to say that nothing was compared.
        self._pairs = {name: PairAccumulator(name, items) for name in (*PAIRS, *pairs)}
        self._seen: dict[str, set[int]] = {name: set() for name in pairs}
        self._repeat_diffs: dict[int, TrialDiff] = {}

    def of_a(self, item: int) -> Trial | None:
        """Arm A's trial of an item."""
        return self._kept[Arm.A].get(item)

    def add_a(self, trial: Trial) -> None:
        """Takes a trial of arm A. One that runs again after an interruption is a repeat."""
        if trial.key.item in self._kept[Arm.A]:
            self._compare("AA", trial)
        else:
            self._kept[Arm.A][trial.key.item] = trial

    def add_repeat(self, pair: str, trial: Trial) -> None:
        """Takes a trial of A2 (pair AA), A3 (AA3) or B (AB)."""
        item = trial.key.item
        diff = self._compare(pair, trial)
        if trial.key.arm is Arm.B:
            repeated = diff is not None and diff is self._repeat_diffs.get(item)
            self._kept[Arm.B].setdefault(item, self._kept[Arm.A][item] if repeated else trial)

    def add_c(self, trial: Trial) -> tuple[TrialDiff | None, tuple[str, ...]]:
        """Takes a trial of arm C: its difference from A (None where there is none to compare),
        and the pairs in which it is the first of its item to diverge."""
        item = trial.key.item
        diff = self._compare("AC", trial)
        b_is_a = self._kept[Arm.B].get(item) is self._kept[Arm.A].get(item)
        self._compare("BC", trial, diff if b_is_a else None)
        first = tuple(p for p in ("AC", "BC") if self._pairs[p].first_of(item) is trial)
        return diff, first

    def against_a(self, trial: Trial) -> TrialDiff | None:
        """The difference from arm A, counted in no pair; None where either was lost."""
        x = self.of_a(trial.key.item)
        if x is None or not _answered(x) or not _answered(trial):
            return None
        return compare_trials(x, trial)

    def set_companions(self, pair: str, item: int, companions: tuple[str, ...]) -> None:
        """Names the companions of an item's first diverging trial."""
        self._pairs[pair].set_companions(item, companions)

    def close_sides(self) -> None:
        """Counts as divergences the items that the x side of a pair has and its y side never."""
        for pair, arm in self._arms.items():
            for item in self._kept[arm].keys() - self._seen[pair]:
                self._pairs[pair].missing_side(item, "x")

    def reports(self) -> dict[str, PairReport]:
        """The report of every pair."""
        return {name: pair.report() for name, pair in self._pairs.items()}

    def _compare(self, pair: str, y: Trial, known: TrialDiff | None = None) -> TrialDiff | None:
        item = y.key.item
        if pair not in self._arms:
            return None
        self._seen[pair].add(item)
        x = self._kept[self._arms[pair]].get(item)
        if x is None:
            self._pairs[pair].missing_side(item, "y")
            return None
        if not _answered(x) or not _answered(y):
            return None
        return self._pairs[pair].add(x, y, known or self._of_repeat(x, y))

    def _of_repeat(self, x: Trial, y: Trial) -> TrialDiff | None:
        """The one comparison of all answers that repeat arm A's; None for another."""
        item = y.key.item
        if x is not self._kept[Arm.A].get(item) or not repeats(x, y):
            return None
        diff = self._repeat_diffs.get(item)
        if diff is None:
            diff = self._repeat_diffs[item] = compare_trials(x, y)
        return diff


def _answered(trial: Trial) -> bool:
    return isinstance(trial.result, Completion)
