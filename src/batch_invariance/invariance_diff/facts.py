"""What a run comes to: everything the gates look at, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from batch_invariance.invariance_diff.contamination import Donor
from batch_invariance.invariance_diff.model import Arm, Completion
from batch_invariance.invariance_diff.pairs import PairReport
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    Event,
    Footer,
    Header,
    LifetimeEnd,
    LifetimeStart,
    Resumed,
    ServerSaid,
)
from batch_invariance.invariance_diff.schedule_space import SpaceTally
from batch_invariance.invariance_diff.stats import LogHistogram
from batch_invariance.invariance_diff.tracker import PassFacts

SERIAL_ARMS = (Arm.A, Arm.A2, Arm.A3, Arm.B, Arm.CONFIRM)
PLANNED_ARMS = (Arm.A, Arm.A2, Arm.A3, Arm.B, Arm.C)


@dataclass(frozen=True, slots=True)
class LostTrial:
    """A trial without a completion. What the server said is in the evidence alone."""

    id: str
    arm: Arm
    pass_index: int
    occurrence: int
    kind: str
    http_status: int | None


@dataclass(frozen=True, slots=True)
class ContaminatedTrial:
    """A trial of arm C whose answer holds text of another item: where it ran, and the donors."""

    id: str
    pass_index: int
    occurrence: int
    lane: int
    donors: tuple[Donor, ...]


@dataclass(slots=True)
class ItemFacts:
    """One item over arm C: trials compared and diverging, and what was proved of sharing.

    `shared`/`own`: the trial with the most proved shared passes and its own, by `witness`.
    `n_co_batched` counts scored trials with enough of them; `horizon` is the longest run of token
    positions compared in such a trial, `n_positions` in any. `n_scored` counts trials with a score
    beside a score of A, `score_sum` adds those up; changed, better and worse are against A's.
    """

    n_compared: int = 0
    n_divergent: int = 0
    shared: int = 0
    own: int = 0
    witness: str | None = None
    n_co_batched: int = 0
    horizon: int = 0
    n_positions: int = 0
    n_scored: int = 0
    score_sum: float = 0.0
    n_score_changed: int = 0
    n_better: int = 0
    n_worse: int = 0


@dataclass(slots=True)
class Isolation:
    """Counts over all trials of A, A2, B, C, confirm and P that speak for or against isolation."""

    n_checked: int = 0
    cache_unknown: int = 0
    cache_used: int = 0
    truncation_unknown: int = 0
    truncated: int = 0
    speculated: int = 0
    prompt_count_unknown: int = 0
    foreign_bodies: int = 0

    def note(self, result: Completion) -> None:
        """Counts one answer in."""
        self.n_checked += 1
        self.cache_unknown += result.cache_n is None
        self.cache_used += bool(result.cache_n)
        self.truncation_unknown += result.truncated is None
        self.truncated += bool(result.truncated)
        self.speculated += bool(result.draft_n)
        self.prompt_count_unknown += result.prompt_tokens is None


@dataclass(slots=True)
class ControlFacts:
    """The positive control: its plan, the planted trial, and whether each diff saw the change, and
    how many of its unperturbed companions differ from arm A."""

    plan: ControlPlan | None = None
    token_seen: bool | None = None
    score_seen: bool | None = None
    companions_divergent: int = 0


@dataclass(slots=True)
class Lifetime:
    """One launch of the server: how it began and, once read, how it ended. `cut_off`: the run was
    interrupted before that could be read, and went on with another launch."""

    start: LifetimeStart
    end: LifetimeEnd | None = None
    cut_off: bool = False


@dataclass(slots=True)
class Facts:
    """All that the gates look at."""

    header: Header
    space: SpaceTally
    margins: LogHistogram = field(default_factory=LogHistogram)
    lifetimes: list[Lifetime] = field(default_factory=list)
    passes: list[PassFacts] = field(default_factory=list)
    n_void_passes: int = 0
    resumed: list[Resumed] = field(default_factory=list)
    pairs: dict[str, PairReport] = field(default_factory=dict)
    items: list[ItemFacts] = field(default_factory=list)
    lost: list[LostTrial] = field(default_factory=list)
    contaminated: list[ContaminatedTrial] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)
    isolation: Isolation = field(default_factory=Isolation)
    control: ControlFacts = field(default_factory=ControlFacts)
    events: list[Event] = field(default_factory=list)
    said: list[ServerSaid] = field(default_factory=list)
    footer: Footer | None = None
    plan_faults: list[str] = field(default_factory=list)
    n_trials: int = 0
    failure_modes: dict[str, dict[str, int]] = field(default_factory=dict)
    content_a: list[str | None] = field(default_factory=list)
    score_a: list[float | None] = field(default_factory=list)
    per_pass: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)
    n_co_batched_divergent: int = 0
    n_c_divergent: int = 0
    confirm_wanted: int = 0
    confirm_done: int = 0
    confirm_divergent: int = 0
