"""Arm C as its trials arrive: compared with A at once, judged once their pass has closed.

What a trial shared, and with whom, is known only at the end of its pass; until then its comparison
waits here. Memory is linear in the open pass.
"""

from __future__ import annotations

from batch_invariance.invariance_diff.comparisons import Comparisons
from batch_invariance.invariance_diff.diff import TrialDiff
from batch_invariance.invariance_diff.donors import DonorSearch
from batch_invariance.invariance_diff.facts import Facts
from batch_invariance.invariance_diff.model import Completion, Trial
from batch_invariance.invariance_diff.overlap import is_co_batched
from batch_invariance.invariance_diff.proof import (
    DECODE_COUNT,
    DECODE_LOG,
    SCHEDULER_GAUGE,
)
from batch_invariance.invariance_diff.tracker import Member, PassTracker


class ArmC:
    """Follows the trials of arm C and writes what they come to into the facts."""

    def __init__(self, facts: Facts, compared: Comparisons) -> None:
        self._facts = facts
        self._compared = compared
        self._diffs: dict[tuple[int, int], TrialDiff] = {}
        self._first_in: list[tuple[str, Trial]] = []
        self._donors = DonorSearch(facts, compared)
        self.divergent_lanes: dict[tuple[int, int], None] = {}
        """(item, lane) of diverging trials, each once, in order of appearance."""

    def add(self, trial: Trial) -> None:
        """Compares a trial with arm A and arm B."""
        facts, key = self._facts, trial.key
        item = facts.items[key.item]
        diff, first_in = self._compared.add_c(trial)
        self._first_in += [(pair, trial) for pair in first_in]
        if diff is None:
            return
        item.n_compared += 1
        item.n_positions = max(item.n_positions, diff.n_tokens + (diff.first is not None))
        self._diffs[(key.item, key.occurrence)] = diff
        self._note_score(trial)
        if diff.score_divergent or diff.token_divergent:
            item.n_divergent += 1
            facts.n_c_divergent += 1
            self._donors.add(trial)
            self.divergent_lanes.setdefault((key.item, trial.lane))
            score_ids, token_ids = facts.per_pass.setdefault(key.pass_index, ([], []))
            (score_ids if diff.score_divergent else token_ids).append(trial.item_id)

    def _note_score(self, trial: Trial) -> None:
        item, a = self._facts.items[trial.key.item], self._compared.of_a(trial.key.item)
        x, y = a.scored if a is not None else None, trial.scored
        if x is None or y is None or x.score is None or y.score is None:
            return
        item.n_scored += 1
        item.score_sum += y.score
        item.n_better += y.score > x.score
        item.n_worse += y.score < x.score
        item.n_score_changed += y.score != x.score or y.passed is not x.passed

    def close(self, tracker: PassTracker) -> None:
        """Judges the trials of a pass that has ended."""
        for member in tracker.members:
            self._member(member)
        self._facts.space.add_pass(tracker)
        self.void(tracker)

    def void(self, tracker: PassTracker) -> None:
        """Lets go of a pass, of which only what diverged is kept."""
        self._donors.close(tracker)
        companions = tracker.companions({trial.key.item for _, trial in self._first_in})
        for pair, trial in self._first_in:
            met = sorted(companions.get((trial.key.item, trial.key.occurrence), ()))
            names = tuple(self._facts.header.workset.items[i].id for i in met)
            self._compared.set_companions(pair, trial.key.item, names)
        self._first_in.clear()
        self._diffs.clear()

    def _member(self, member: Member) -> None:
        if member.shared is None:
            return
        diff = self._diffs.get(member.sent.key)
        item = self._facts.items[member.sent.item]
        if member.shared > item.shared:
            item.shared, item.own = member.shared, member.own
            counted = SCHEDULER_GAUGE if member.by_gauge else DECODE_COUNT
            item.witness = counted if member.tally is None else DECODE_LOG
        if diff is None or not is_co_batched(member.own, member.shared):
            return
        item.n_co_batched += 1
        item.horizon = max(item.horizon, diff.n_tokens + (diff.first is not None))
        self._facts.n_co_batched_divergent += diff.score_divergent


def answered_tokens(trial: Trial | None) -> int:
    """Generated tokens of a trial, 0 where it is lost or does not say."""
    result = trial.result if trial is not None else None
    return (result.completion_tokens or 0) if isinstance(result, Completion) else 0
