"""Whether attempts at a case show its divergence, another one, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from batch_invariance.invariance_diff.attempts import Rate
from batch_invariance.invariance_diff.case import Case, DivergenceKind, Expected, Reference, Seen
from batch_invariance.invariance_diff.diff import TOKEN_FIELDS, compare_trials
from batch_invariance.invariance_diff.digest import digest_of
from batch_invariance.invariance_diff.model import Completion, Trial

MOST_VARIANTS = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """What counts as the divergence: its kind, and for logprobs alone the move in nats that must
    be exceeded."""

    kind: DivergenceKind
    epsilon: float = 0.0

    def seen(self, alone: Trial, other: Trial) -> Seen | None:
        """How `other` differs from the answer alone in the way that is wanted; None where it does
        not, or was lost."""
        if not isinstance(alone.result, Completion) or not isinstance(other.result, Completion):
            return None
        diff = compare_trials(alone, other)
        if self.kind is DivergenceKind.LOGPROB:
            drift = diff.drift
            if drift is None or not drift.n_moved or drift.max_abs <= self.epsilon:
                return None
            return Seen(drift.first_index, None, None, None, ("logprobs",))
        fields = diff.score_fields if self.kind is DivergenceKind.SCORE else diff.token_fields
        if not fields:
            return None
        first = diff.first
        if first is None:
            return Seen(None, None, None, None, fields)
        return Seen(first.token_index, first.token_x, first.token_y, first.margin_x, fields)


def wanted_of(kind: DivergenceKind, logit_drift: str | None) -> Wanted:
    """What counts, given how the run armed its check of logprobs (`bits`, an epsilon, or not)."""
    armed = kind is DivergenceKind.LOGPROB and logit_drift not in (None, "bits")
    return Wanted(kind, float(logit_drift or 0) if armed else 0.0)


def answer_sha256(trial: Trial) -> str:
    """A digest of everything generated in an answer. Raises ValueError for a lost trial."""
    if not isinstance(trial.result, Completion):
        raise ValueError("a lost trial has no answer")
    return digest_of([getattr(trial.result, name) for name in TOKEN_FIELDS])


def gather(seen: Iterable[Seen]) -> tuple[Seen, ...]:
    """The distinct ways, the most common first, each with its count."""
    found: list[Seen] = []
    for one in seen:
        at = next((i for i, known in enumerate(found) if known.same_as(one)), None)
        if at is None:
            found.append(one)
        else:
            found[at] = replace(found[at], count=found[at].count + one.count)
    return tuple(sorted(found, key=lambda one: one.count, reverse=True)[:MOST_VARIANTS])


@dataclass(frozen=True, slots=True)
class Measured:
    """A case as it was just measured: the target's answers on one slot, alone on the case's server
    before and after the attempts, and in the attempts."""

    one_slot: tuple[Trial, ...]
    alone: tuple[Trial, ...]
    attempts: tuple[Trial, ...]

    def reference(self, which: Reference) -> Trial | None:
        """The answer to hold the attempts against; None where it was lost or is not one answer."""
        trials = self.one_slot if which is Reference.ONE_SLOT else self.alone
        answered = [trial for trial in trials if isinstance(trial.result, Completion)]
        if not answered or len(answered) < len(trials):
            return None
        first = answered[0]
        same = all(answer_sha256(trial) == answer_sha256(first) for trial in answered)
        return first if same else None

    @property
    def one_slot_agrees(self) -> bool | None:
        """Whether one slot gives the answer that the target gets alone; None where either is not
        known."""
        one, alone = self.reference(Reference.ONE_SLOT), self.reference(Reference.SAME_SERVER)
        if one is None or alone is None:
            return None
        return answer_sha256(one) == answer_sha256(alone)

    def expectation(self, wanted: Wanted, which: Reference) -> tuple[Expected | None, Rate]:
        """What the attempts show, and how often; None where there is no reference."""
        reference = self.reference(which)
        lost = sum(not isinstance(trial.result, Completion) for trial in self.attempts)
        if reference is None:
            return None, Rate(len(self.attempts), 0, lost)
        pairs = [(trial, wanted.seen(reference, trial)) for trial in self.attempts]
        seen = gather(one for _, one in pairs if one is not None)
        rate = Rate(len(pairs), sum(one is not None for _, one in pairs), lost)
        other = next(
            (trial for trial, one in pairs if one is not None and one.same_as(seen[0])), None
        )
        sha = answer_sha256(reference)
        return Expected(wanted.kind, sha, _text(reference), _text(other), seen), rate


def _text(trial: Trial | None) -> str | None:
    return trial.result.text if trial and isinstance(trial.result, Completion) else None


class ReplayOutcome(str, Enum):
    """What a replay shows.

    `REPRODUCED`: the recorded divergence, at the recorded token. `NOT_REPRODUCED`: no attempt
    differs. `OTHER_DIVERGENCE`: something differs, and not in a recorded way. `OTHER_SUBJECT`:
    the server or the model is not the recorded one, whatever was seen. `UNPROVED`: too little came
    back to say.
    """

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not_reproduced"
    OTHER_DIVERGENCE = "other_divergence"
    OTHER_SUBJECT = "other_subject"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome with its reasons; `rate` counts attempts that show the recorded divergence,
    `n_other` those that show another. `measured` is what was seen on another subject, None where
    nothing was sent to it."""

    outcome: ReplayOutcome
    reasons: tuple[str, ...]
    rate: Rate
    n_other: int
    expected: Expected | None
    measured: ReplayOutcome | None = None

    def noting(self, reason: str) -> Replayed:
        """The same with one more remark."""
        return replace(self, reasons=(*self.reasons, reason))


def judge_replay(case: Case, measured: Measured) -> Replayed:
    """Compares a measurement with what the case expects."""
    wanted = wanted_of(case.expected.kind, case.logit_drift)
    found, rate = measured.expectation(wanted, case.reference)
    if found is None:
        why = "the target alone got no answer, or more than one: there is nothing to compare with"
        return Replayed(ReplayOutcome.UNPROVED, (why,), rate, 0, None)
    known = [s for s in found.seen if any(s.same_as(e) for e in case.expected.seen)]
    n_known = sum(one.count for one in known)
    n_other = rate.shown - n_known
    if case.expected.kind is not DivergenceKind.TOKEN:
        n_other += _other_tokens(measured, case, wanted)
    reasons = list(_reasons(case, measured, found, rate))
    same_answer = found.alone_sha256 == case.expected.alone_sha256
    if n_known and same_answer:
        outcome = ReplayOutcome.REPRODUCED
    elif rate.shown or n_other:
        outcome = ReplayOutcome.OTHER_DIVERGENCE
    elif rate.n == rate.lost:
        outcome = ReplayOutcome.UNPROVED
        reasons.append("no attempt was answered")
    else:
        outcome = ReplayOutcome.NOT_REPRODUCED
        answered = rate.n - rate.lost
        chance = (1.0 - case.rate.cautious) ** answered
        reasons.append(
            f"0 of {answered} attempts: at the recorded rate of {case.rate} that happens with "
            f"probability {chance:.2g}"
        )
    return Replayed(outcome, tuple(reasons), Rate(rate.n, n_known, rate.lost), n_other, found)


def _reasons(case: Case, measured: Measured, found: Expected, rate: Rate) -> Iterable[str]:
    if found.alone_sha256 != case.expected.alone_sha256:
        yield "the target's answer alone is not the recorded one"
    if rate.lost:
        yield f"{rate.lost} of {rate.n} attempts were lost"
    if case.one_slot_agrees is not None and measured.one_slot_agrees is not case.one_slot_agrees:
        now = {True: "the same answer", False: "another answer", None: "no one answer"}
        yield f"one slot gives {now[measured.one_slot_agrees]}, which it did not when recorded"


def _other_tokens(measured: Measured, case: Case, wanted: Wanted) -> int:
    """Attempts that differ in what was generated and not in the way that is wanted."""
    reference = measured.reference(case.reference)
    assert reference is not None
    tokens = Wanted(DivergenceKind.TOKEN)
    return sum(
        tokens.seen(reference, trial) is not None and wanted.seen(reference, trial) is None
        for trial in measured.attempts
    )


def on_other_subject(differences: Sequence[str], replayed: Replayed | None) -> Replayed:
    """The answer where the subject is not the recorded one."""
    if replayed is None:
        return Replayed(ReplayOutcome.OTHER_SUBJECT, tuple(differences), Rate(0, 0), 0, None, None)
    return replace(
        replayed,
        outcome=ReplayOutcome.OTHER_SUBJECT,
        reasons=(*differences, *replayed.reasons),
        measured=replayed.outcome,
    )
