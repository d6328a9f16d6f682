"""Who wants more of an evidence file than its facts, while it is read once for both."""

from __future__ import annotations

from batch_invariance.invariance_diff.records import Record
from batch_invariance.invariance_diff.tracker import PassFacts, PassTracker


class Onlooker:
    """Takes nothing; a subclass overrides what it wants to see."""

    def feed(self, record: Record) -> None:
        """The next record, once the facts have taken it."""

    def pass_closed(self, tracker: PassTracker, facts: PassFacts | None) -> None:
        """A pass is over: before the record is shown that ended it, or after the last one where
        the evidence breaks off inside it. `facts` is None where the pass is void."""
