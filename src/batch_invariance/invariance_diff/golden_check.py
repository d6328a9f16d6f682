"""A later run held against a golden file: per item the same, changed, or not shown.

Whatever is missing, lost, unstable or was asked otherwise is UNVERIFIED, and never a pass. A change
of build, flags, device or environment is reported and does not decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from batch_invariance.invariance_diff.golden import Golden
from batch_invariance.invariance_diff.reference_digests import (
    AnswerDigests,
    Gap,
    reference_faults,
)
from batch_invariance.invariance_diff.report_lines import some
from batch_invariance.invariance_diff.subject_facts import (
    MODEL_FILE,
    SAMPLING,
    SCORER,
    WORK_SET,
    Agreement,
    FactChange,
    FactKind,
    Run,
    agreement_of,
    compare_facts,
    facts_of,
)


class ItemState(str, Enum):
    """What became of one item. `SAME` and `CHANGED` are of the answer, logprobs apart.

    `UNKNOWN`: text or tokens are not known on one side and nothing else differs. `OTHER_REQUEST`:
    its prompt or sampling is another. `MISSING`: the run has no such item. `LOST`: no answer.
    `UNSTABLE`: the run's own repeat differs. `NOT_RECORDED`: the file has no answer of it.
    """

    CHANGED = "changed"
    SAME = "same"
    UNKNOWN = "unknown"
    OTHER_REQUEST = "other_request"
    MISSING = "missing"
    LOST = "lost"
    UNSTABLE = "unstable"
    NOT_RECORDED = "not_recorded"


class GoldenOutcome(str, Enum):
    """What the check comes to. Only `SAME` is a pass."""

    SAME = "SAME"
    CHANGED = "CHANGED"
    UNVERIFIED = "UNVERIFIED"


OF_GAP = {Gap.LOST: ItemState.LOST, Gap.UNSTABLE: ItemState.UNSTABLE}
IN_WORDS = {
    ItemState.CHANGED: "answered otherwise",
    ItemState.UNKNOWN: "without tokens on one side",
    ItemState.OTHER_REQUEST: "asked otherwise (prompt or sampling)",
    ItemState.MISSING: "missing from the run",
    ItemState.LOST: "not answered in the run",
    ItemState.UNSTABLE: "answered in two ways by the run itself",
    ItemState.NOT_RECORDED: "without a record",
}
NOT_SHOWN = tuple(state for state in IN_WORDS if state is not ItemState.CHANGED)
ASKED = (WORK_SET, SAMPLING)


@dataclass(frozen=True, slots=True)
class ItemCheck:
    """One item. `text`, `tokens`, `logprobs`: whether the digests agree; UNKNOWN where either side
    has none, and where the item was not compared."""

    id: str
    state: ItemState
    text: Agreement = Agreement.UNKNOWN
    tokens: Agreement = Agreement.UNKNOWN
    logprobs: Agreement = Agreement.UNKNOWN


@dataclass(frozen=True, slots=True)
class GoldenCheck:
    """`reasons` say why the outcome is not SAME; `facts` compare the subject then and now;
    `logprobs_asked`: they had to be the same too."""

    outcome: GoldenOutcome
    reasons: tuple[str, ...]
    facts: tuple[FactChange, ...]
    items: tuple[ItemCheck, ...]
    logprobs_asked: bool

    def count(self, state: ItemState) -> int:
        """How many items are in this state."""
        return sum(item.state is state for item in self.items)

    def n_logprobs(self, agreement: Agreement) -> int:
        """How many items have logprobs that agree so."""
        return sum(item.logprobs is agreement for item in self.items)


def check_golden(
    golden: Golden, run: Run, answers: tuple[AnswerDigests, ...], logprobs: bool = False
) -> GoldenCheck:
    """Holds the serial answers of a run against a golden file; `logprobs` asks for those too.

    UNVERIFIED over CHANGED where the subject is another or the run's answers are no reference;
    else CHANGED over UNVERIFIED.
    """
    facts = tuple(
        change for change in compare_facts(golden.facts, facts_of(run)) if change.name != SCORER
    )
    items = _check_items(golden, answers)
    foreign = _foreign(golden, run, facts)
    changed = [*_named(items, (ItemState.CHANGED,))]
    unproved = [*_not_known(facts), *_named(items, NOT_SHOWN)]
    if logprobs:
        changed += _logprobs(items, Agreement.CHANGED, "other logprobs")
        unproved += _logprobs(items, Agreement.UNKNOWN, "no logprobs on one side")
    outcome = GoldenOutcome.SAME
    if unproved or foreign:
        outcome = GoldenOutcome.UNVERIFIED
    if changed and not foreign:
        outcome = GoldenOutcome.CHANGED
    return GoldenCheck(outcome, (*foreign, *changed, *unproved), facts, items, logprobs)


def _check_items(golden: Golden, answers: tuple[AnswerDigests, ...]) -> tuple[ItemCheck, ...]:
    """The recorded items in their order, then those of the run that were never recorded."""
    now = {answer.id: answer for answer in answers}
    known = {item.id for item in golden.items}
    return (
        *(_check_item(item, now.get(item.id)) for item in golden.items),
        *(ItemCheck(a.id, ItemState.NOT_RECORDED) for a in answers if a.id not in known),
    )


def _check_item(then: AnswerDigests, now: AnswerDigests | None) -> ItemCheck:
    if now is None:
        return ItemCheck(then.id, ItemState.MISSING)
    if now.gap is not None:
        return ItemCheck(then.id, OF_GAP[now.gap])
    if then.gap is not None:
        return ItemCheck(then.id, ItemState.NOT_RECORDED)
    if agreement_of(then.request_sha256, now.request_sha256) is not Agreement.SAME:
        return ItemCheck(then.id, ItemState.OTHER_REQUEST)
    text = agreement_of(then.text_sha256, now.text_sha256)
    tokens = agreement_of(then.tokens_sha256, now.tokens_sha256)
    logprobs = agreement_of(then.logprobs_sha256, now.logprobs_sha256)
    state = ItemState.SAME
    if Agreement.UNKNOWN in (text, tokens):
        state = ItemState.UNKNOWN
    if Agreement.CHANGED in (text, tokens):
        state = ItemState.CHANGED
    return ItemCheck(then.id, state, text, tokens, logprobs)


def _foreign(golden: Golden, run: Run, facts: tuple[FactChange, ...]) -> list[str]:
    """Why nothing about these answers can be said of the recorded subject."""
    cert = run.certificate
    found = [
        f"another subject: {name} {then} then, {now} now"
        for name, then, now in (
            ("model", golden.model, cert.model),
            ("source", golden.source.value, cert.source.value),
        )
        if then != now
    ]
    if any(c.name == MODEL_FILE and c.agreement is Agreement.CHANGED for c in facts):
        found.append("another subject: the model file has another digest")
    found += [f"its serial answers are no reference: {f}" for f in reference_faults(cert)]
    return found


def _not_known(facts: tuple[FactChange, ...]) -> list[str]:
    found = []
    for change in facts:
        if change.name in ASKED and change.agreement is not Agreement.SAME:
            found.append(f"another {change.name}")
        elif change.name == MODEL_FILE and change.agreement is Agreement.UNKNOWN:
            found.append("the model file's digest is not known: nothing shows the same subject")
    return found


def _named(items: tuple[ItemCheck, ...], states: tuple[ItemState, ...]) -> list[str]:
    found = []
    for state in states:
        names = tuple(item.id for item in items if item.state is state)
        if names:
            found.append(f"{len(names)} of {len(items)} {IN_WORDS[state]}: {some(names)}")
    return found


def _logprobs(items: tuple[ItemCheck, ...], agreement: Agreement, words: str) -> list[str]:
    names = tuple(item.id for item in items if item.logprobs is agreement)
    return [f"{len(names)} of {len(items)} with {words}: {some(names)}"] if names else []


def of_subject(changes: tuple[FactChange, ...]) -> tuple[FactChange, ...]:
    """The facts about what was tested, without those about what it was asked."""
    return tuple(c for c in changes if c.kind is not FactKind.MEASUREMENT)
