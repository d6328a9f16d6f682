"""The report of one pair of arms: AC, AB, BC, AA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batch_invariance.invariance_diff.diff import FirstDivergence, TrialDiff, compare_trials
from batch_invariance.invariance_diff.digest import sha256_hex
from batch_invariance.invariance_diff.model import Completion, Item, Trial
from batch_invariance.invariance_diff.stats import LogHistogram

NO_GROUP = "(none)"


@dataclass(frozen=True, slots=True)
class DivergentTrial:
    """The first diverging trial of an item: where it ran, with whom, and where it parts.

    `companions` are the ids that shared its wave, or its time in flight in a saturated pass;
    answers are given as digests.
    """

    pass_index: int
    occurrence: int
    lane: int
    wave: int | None
    companions: tuple[str, ...]
    token_index: int | None
    token_x: int | None
    token_y: int | None
    margin_x: float | None
    content_sha_x: str
    content_sha_y: str


@dataclass(frozen=True, slots=True)
class IdReport:
    """One divergent item: how many of its trials were compared and differ, and which fields."""

    id: str
    item: int
    n_compared: int
    n_score_divergent: int
    n_token_divergent: int
    score_fields: tuple[str, ...]
    token_fields: tuple[str, ...]
    first_divergence: DivergentTrial


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Counts of one family or one fill ratio."""

    n_compared: int
    n_divergent: int
    n_token_only: int


@dataclass(frozen=True, slots=True)
class DriftReport:
    """Logprob drift over a pair: trials and positions compared, positions that moved, trials with
    any move, the earliest index, the largest move in nats, trials without usable logprobs, and how
    large the moves are: quantiles in nats (upper edges of quarter octaves) and counts by edge."""

    n_trials: int
    n_trials_moved: int
    n_positions: int
    n_moved: int
    first_index: int | None
    max_abs: float
    n_unknown: int
    quantiles: Mapping[str, float]
    moves: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PairReport:
    """Everything about one pair. `n_divergent` counts ids with a score difference,
    `n_token_only` ids whose tokens differ while their score never does."""

    pair: str
    n_compared: int
    n_ids_compared: int
    n_divergent: int
    divergence_rate: float | None
    divergent_ids: tuple[str, ...]
    only_x: tuple[str, ...]
    only_y: tuple[str, ...]
    n_token_only: int
    token_divergence_ids: tuple[str, ...]
    n_tokens_unknown: int
    per_id: tuple[IdReport, ...]
    by_family: Mapping[str, GroupReport]
    by_fill: Mapping[str, GroupReport]
    logit_drift: DriftReport

    @property
    def passed(self) -> bool:
        """No score difference, and no item on one side only, over at least one comparison."""
        return self.n_compared > 0 and not (self.n_divergent or self.only_x or self.only_y)

    @property
    def token_identical(self) -> bool:
        """Nothing that was generated differs anywhere, and the tokens are known everywhere."""
        return self.passed and not self.per_id and self.n_tokens_unknown == 0


@dataclass(slots=True)
class _ItemTally:
    n_compared: int = 0
    n_score: int = 0
    n_token: int = 0
    score_fields: set[str] = field(default_factory=set)
    token_fields: set[str] = field(default_factory=set)
    first: tuple[Trial, Trial, FirstDivergence | None] | None = None
    companions: tuple[str, ...] = ()


class PairAccumulator:
    """Adds comparisons up, one trial of y at a time, keeping one entry per item."""

    def __init__(self, pair: str, items: tuple[Item, ...]) -> None:
        self.pair = pair
        self._items = items
        self._tallies: dict[int, _ItemTally] = {}
        self._drift = [0, 0, 0, 0, 0]
        self._drift_first: int | None = None
        self._drift_max = 0.0
        self._moves = LogHistogram()
        self._tokens_unknown = 0
        self._only_x: set[int] = set()
        self._only_y: set[int] = set()

    def add(self, x: Trial, y: Trial, known: TrialDiff | None = None) -> TrialDiff:
        """Compares two answered trials of one item and counts the result; `known` is their
        comparison where it has been made."""
        diff = known or compare_trials(x, y)
        tally = self._tallies.get(y.key.item)
        if tally is None:
            tally = self._tallies[y.key.item] = _ItemTally()
        tally.n_compared += 1
        self._tokens_unknown += not diff.tokens_known
        if diff.score_divergent or diff.token_divergent:
            tally.n_score += diff.score_divergent
            tally.n_token += diff.token_divergent
            tally.score_fields.update(diff.score_fields)
            tally.token_fields.update(diff.token_fields)
            if tally.first is None:
                tally.first = (x, y, diff.first)
        self._add_drift(diff)
        return diff

    def _add_drift(self, diff: TrialDiff) -> None:
        counts, drift = self._drift, diff.drift
        if drift is None:
            counts[4] += 1
            return
        counts[0] += 1
        counts[1] += drift.n_moved > 0
        counts[2] += drift.n_positions
        counts[3] += drift.n_moved
        if drift.first_index is not None and (
            self._drift_first is None or drift.first_index < self._drift_first
        ):
            self._drift_first = drift.first_index
        self._drift_max = max(self._drift_max, drift.max_abs)
        for place in drift.bins:
            self._moves.add_bin(place)

    def missing_side(self, item: int, side: str) -> None:
        """Records an item that only arm `side` (x or y) has: a divergence by itself."""
        (self._only_x if side == "x" else self._only_y).add(item)

    def first_of(self, item: int) -> Trial | None:
        """The first diverging trial of an item, or None."""
        tally = self._tallies.get(item)
        return tally.first[1] if tally is not None and tally.first is not None else None

    def set_companions(self, item: int, companions: tuple[str, ...]) -> None:
        """Names the companions of an item's first diverging trial."""
        self._tallies[item].companions = companions

    def report(self) -> PairReport:
        """The finished report, items in work-set order."""
        tallies = sorted(self._tallies.items())
        score_items = [i for i, t in tallies if t.n_score]
        token_only = [i for i, t in tallies if t.n_token and not t.n_score]
        n_ids = len(tallies)
        one_sided = self._only_x | self._only_y
        n_divergent = len(set(score_items) | one_sided)
        ids = self._items
        counts = self._drift
        return PairReport(
            pair=self.pair,
            n_compared=sum(t.n_compared for _, t in tallies),
            n_ids_compared=n_ids,
            n_divergent=n_divergent,
            divergence_rate=len(score_items) / n_ids if n_ids else None,
            divergent_ids=tuple(ids[i].id for i in sorted({*score_items, *one_sided})),
            only_x=tuple(ids[i].id for i in sorted(self._only_x)),
            only_y=tuple(ids[i].id for i in sorted(self._only_y)),
            n_token_only=len(token_only),
            token_divergence_ids=tuple(ids[i].id for i, t in tallies if t.n_token),
            n_tokens_unknown=self._tokens_unknown,
            per_id=tuple(self._id_report(i, t) for i, t in tallies if t.first is not None),
            by_family=self._groups([item.family for item in ids]),
            by_fill=self._groups([None if i.fill is None else str(i.fill) for i in ids]),
            logit_drift=DriftReport(
                counts[0],
                counts[1],
                counts[2],
                counts[3],
                self._drift_first,
                self._drift_max,
                counts[4],
                self._moves.quantiles(("0.5", "0.9", "0.99")),
                self._moves.by_edge(),
            ),
        )

    def _id_report(self, item: int, tally: _ItemTally) -> IdReport:
        assert tally.first is not None
        x, y, first = tally.first
        trial = DivergentTrial(
            pass_index=y.key.pass_index,
            occurrence=y.key.occurrence,
            lane=y.lane,
            wave=y.wave,
            companions=tally.companions,
            token_index=None if first is None else first.token_index,
            token_x=None if first is None else first.token_x,
            token_y=None if first is None else first.token_y,
            margin_x=None if first is None else first.margin_x,
            content_sha_x=content_sha(x),
            content_sha_y=content_sha(y),
        )
        return IdReport(
            self._items[item].id,
            item,
            tally.n_compared,
            tally.n_score,
            tally.n_token,
            tuple(sorted(tally.score_fields)),
            tuple(sorted(tally.token_fields)),
            trial,
        )

    def _groups(self, labels: list[str | None]) -> dict[str, GroupReport]:
        sums: dict[str, list[int]] = {}
        for item, tally in self._tallies.items():
            row = sums.setdefault(labels[item] or NO_GROUP, [0, 0, 0])
            row[0] += 1
            row[1] += tally.n_score > 0
            row[2] += tally.n_token > 0 and not tally.n_score
        return {label: GroupReport(*row) for label, row in sorted(sums.items())}


def content_sha(trial: Trial) -> str:
    """Digest of a trial's visible text, by which the certificate refers to an answer."""
    text = trial.result.text if isinstance(trial.result, Completion) else ""
    return sha256_hex(text.encode("utf-8", "surrogatepass"))


def diff_arms(
    items: tuple[Item, ...], pair: str, x: Mapping[int, Trial], y: Mapping[int, Trial]
) -> PairReport:
    """Compares two arms given as item index -> trial. Lost trials are not compared; an item that
    one arm alone has is a divergence."""
    accumulator = PairAccumulator(pair, items)
    for item in sorted(x.keys() | y.keys()):
        if item not in x or item not in y:
            accumulator.missing_side(item, "x" if item in x else "y")
        elif isinstance(x[item].result, Completion) and isinstance(y[item].result, Completion):
            accumulator.add(x[item], y[item])
    return accumulator.report()
