"""What arm C exercised of all that could have happened together, as far as the log proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batch_invariance.invariance_diff.decode_witness import Sent, TaskTally
from batch_invariance.invariance_diff.rules import LENGTH_BOUNDARIES
from batch_invariance.invariance_diff.tracker import PassTracker


@dataclass(frozen=True, slots=True)
class Boundary:
    """A length from which on an engine goes another way: ids whose prompt and answer stay below it,
    reach it while generating, and have a prompt of it or more. `crossed`: one reaches it, or there
    are some on both sides."""

    tokens: int
    n_ids_below: int
    n_ids_across: int
    n_ids_above: int
    crossed: bool


@dataclass(frozen=True, slots=True)
class ScheduleSpace:
    """Which schedules arm C met, proved by the server's log; None where it proves nothing.

    `ids_at_batch_size`: how many ids generated in a micro-batch of so many lanes. `ids_...`: ids
    whose prompt was read while another generated, or beside another prompt, and ids that generated
    while a prompt was read. `ids_on_lane`: ids by lane. `n_pairs` of `n_pairs_possible`: pairs of
    ids that were in one forward pass. `largest_pass`: tokens in the largest forward pass, to be
    compared with `n_ubatch`. `boundaries`: lengths that engines treat apart.
    """

    n_passes_by_log: int
    n_passes: int
    ids_at_batch_size: Mapping[str, int] | None
    ids_prefill_with_decode: int | None
    ids_prefill_with_prefill: int | None
    ids_decode_with_prefill: int | None
    ids_on_lane: Mapping[str, int]
    n_pairs: int | None
    n_pairs_possible: int
    largest_pass: int | None
    n_ubatch: int
    boundaries: tuple[Boundary, ...]


@dataclass(slots=True)
class SpaceTally:
    """Collects over the passes of arm C; linear in ids and in pairs that met."""

    n_items: int
    n_passes: int = 0
    n_by_log: int = 0
    sizes: dict[int, set[int]] = field(default_factory=dict)
    prefill_with_decode: set[int] = field(default_factory=set)
    prefill_with_prefill: set[int] = field(default_factory=set)
    decode_with_prefill: set[int] = field(default_factory=set)
    lanes: dict[int, set[int]] = field(default_factory=dict)
    pairs: set[int] = field(default_factory=set)
    largest_pass: int = 0
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Per item its prompt's tokens and the most tokens of prompt and answer together."""

    def add_pass(self, tracker: PassTracker) -> None:
        """Takes a pass that has ended."""
        self.n_passes += 1
        for sent in tracker.sent:
            self._add_sent(sent)
        members = tracker.members
        if not members or members[0].tally is None:
            return
        for member in members:
            self._add_tally(member.sent.item, member.tally)
        self.n_by_log += 1
        self.largest_pass = max(self.largest_pass, tracker.largest_pass)
        met = tracker.companions({member.sent.item for member in members})
        for (item, _), others in met.items():
            self.pairs.update(min(item, o) * self.n_items + max(item, o) for o in others)

    def _add_sent(self, sent: Sent) -> None:
        self.lanes.setdefault(sent.lane, set()).add(sent.item)
        if sent.tokens is not None and sent.prompt_tokens is not None:
            _, most = self.spans.get(sent.item, (0, 0))
            most = max(most, sent.prompt_tokens + sent.tokens)
            self.spans[sent.item] = (sent.prompt_tokens, most)

    def _add_tally(self, item: int, tally: TaskTally | None) -> None:
        if tally is None:
            return
        for size in tally.sizes:
            self.sizes.setdefault(size, set()).add(item)
        for met, ids in (
            (tally.prompt_met_decode, self.prefill_with_decode),
            (tally.prompt_met_prompt, self.prefill_with_prefill),
            (tally.decode_met_prompt, self.decode_with_prefill),
        ):
            if met:
                ids.add(item)

    def report(self, n_slots: int, n_ubatch: int) -> ScheduleSpace:
        """The certificate's section."""
        known = self.n_by_log > 0
        lengths = sorted({*LENGTH_BOUNDARIES, n_ubatch})
        sizes = {str(n): len(self.sizes.get(n, ())) for n in range(1, n_slots + 1)}
        return ScheduleSpace(
            n_passes_by_log=self.n_by_log,
            n_passes=self.n_passes,
            ids_at_batch_size=sizes if known else None,
            ids_prefill_with_decode=len(self.prefill_with_decode) if known else None,
            ids_prefill_with_prefill=len(self.prefill_with_prefill) if known else None,
            ids_decode_with_prefill=len(self.decode_with_prefill) if known else None,
            ids_on_lane={str(lane): len(ids) for lane, ids in sorted(self.lanes.items())},
            n_pairs=len(self.pairs) if known else None,
            n_pairs_possible=self.n_items * (self.n_items - 1) // 2,
            largest_pass=self.largest_pass if known else None,
            n_ubatch=n_ubatch,
            boundaries=tuple(self._boundary(tokens) for tokens in lengths),
        )

    def _boundary(self, tokens: int) -> Boundary:
        above = sum(prompt >= tokens for prompt, _ in self.spans.values())
        below = sum(most < tokens for _, most in self.spans.values())
        across = len(self.spans) - above - below
        return Boundary(tokens, below, across, above, bool(across or (above and below)))
