"""Looking for foreign text in the diverging answers of one pass of arm C."""

from __future__ import annotations

from collections.abc import Iterable

from batch_invariance.invariance_diff.comparisons import Comparisons
from batch_invariance.invariance_diff.contamination import (
    CompanionText,
    DivergentText,
    find_donor,
)
from batch_invariance.invariance_diff.facts import ContaminatedTrial, Facts
from batch_invariance.invariance_diff.model import Completion, Trial
from batch_invariance.invariance_diff.tracker import PassTracker


class DonorSearch:
    """Searches each different diverging answer of an item once.

    Donors may be the items that a trial met and the one before it on its lane, whose cache it took
    over.
    """

    def __init__(self, facts: Facts, compared: Comparisons) -> None:
        self._facts = facts
        self._compared = compared
        self._items = facts.header.workset.items
        self._seen: set[tuple[int, str]] = set()
        self._waiting: list[Trial] = []

    def add(self, trial: Trial) -> None:
        """Takes a diverging trial; it is searched when its pass has ended."""
        key = (trial.key.item, _text_of(trial))
        if key not in self._seen:
            self._seen.add(key)
            self._waiting.append(trial)

    def close(self, tracker: PassTracker) -> None:
        """Searches the diverging trials of a pass that has ended."""
        if not self._waiting:
            return
        met = tracker.companions({trial.key.item for trial in self._waiting})
        before = _predecessors(tracker)
        for trial in self._waiting:
            key = (trial.key.item, trial.key.occurrence)
            near = {*met.get(key, ()), *before.get(key, ())} - {key[0]}
            self._search(trial, sorted(near))
        self._waiting.clear()

    def _search(self, trial: Trial, near: list[int]) -> None:
        item = trial.key.item
        subject = DivergentText(_text_of(trial), self._items[item].messages, self._reference(item))
        candidates = self._texts(near)
        if find_donor(subject, candidates) is None:
            return
        # Only now all other items are asked whether it is common text: there are many of them.
        rest = [i for i in range(len(self._items)) if i != item and i not in near]
        found = find_donor(subject, candidates, self._texts(rest))
        if found is not None:
            key = trial.key
            self._facts.contaminated.append(
                ContaminatedTrial(
                    trial.item_id, key.pass_index, key.occurrence, trial.lane, found.donors
                )
            )

    def _texts(self, items: Iterable[int]) -> list[CompanionText]:
        return [
            CompanionText(self._items[i].id, self._items[i].messages, self._reference(i))
            for i in items
        ]

    def _reference(self, item: int) -> str | None:
        trial = self._compared.of_a(item)
        answered = trial is not None and isinstance(trial.result, Completion)
        return _text_of(trial) if trial is not None and answered else None


def _text_of(trial: Trial) -> str:
    result = trial.result
    if not isinstance(result, Completion):
        return ""
    return f"{result.reasoning}\n{result.text}" if result.reasoning else result.text


def _predecessors(tracker: PassTracker) -> dict[tuple[int, int], tuple[int]]:
    """For each trial the item that went before it on its lane."""
    last: dict[int, int] = {}
    before: dict[tuple[int, int], tuple[int]] = {}
    for sent in sorted(tracker.sent, key=lambda s: s.dispatch_ts):
        if sent.lane in last:
            before[sent.key] = (last[sent.lane],)
        last[sent.lane] = sent.item
    return before
