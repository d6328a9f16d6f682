"""From gate results to a colour, and from a RED to its class."""

from __future__ import annotations

from dataclasses import dataclass

from batch_invariance.invariance_diff.facts import Facts
from batch_invariance.invariance_diff.gates import Examined, GateResult
from batch_invariance.invariance_diff.model import Outcome, Source, Status, Verdict
from batch_invariance.invariance_diff.pairs import PairReport
from batch_invariance.invariance_diff.rules import PRODUCER_GATE

PRECEDENCE = (Verdict.RED, Verdict.UNVERIFIED, Verdict.AMBER)
STATUS_OF = {
    Verdict.GREEN: Status.GREEN,
    Verdict.AMBER: Status.GREEN_WITH_CAVEAT,
    Verdict.UNVERIFIED: Status.GREEN_UNVERIFIED,
    Verdict.RED: Status.FAILED,
}
ARMED_ONLY = ("F4_logit_drift",)
"""Gates that may be NOT_APPLICABLE on a server of our own."""

CONTAMINATION = "contamination"
SOUND_GATES = ("completeness", "lost", "isolation", "identity")
"""Without these a difference may come from something else than the batch."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict, every reason behind it (worst colour first), and the word for the worst."""

    verdict: Verdict
    reasons: tuple[str, ...]
    anomaly: str | None

    @property
    def status(self) -> Status:
        """The verdict as the certificate's `status`."""
        return STATUS_OF[self.verdict]


def colour_of(result: GateResult) -> Verdict | None:
    """The colour one gate asks for; None where it asks for none."""
    if result.outcome is Outcome.FAIL:
        return result.colour_on_fail
    if result.outcome is Outcome.UNKNOWN:
        return Verdict.UNVERIFIED
    return None


def decide_status(results: tuple[GateResult, ...]) -> Decision:
    """RED > UNVERIFIED > AMBER > GREEN over all gates; no gates at all is UNVERIFIED."""
    if not results:
        return Decision(Verdict.UNVERIFIED, ("no gate was evaluated",), "no_gates")
    verdict, anomaly = Verdict.GREEN, None
    reasons = []
    for colour in PRECEDENCE:
        for result in results:
            if colour_of(result) is not colour:
                continue
            if verdict is Verdict.GREEN:
                verdict, anomaly = colour, result.reason
            elif verdict is colour and result.reason == "token_and_logit_drift":
                anomaly = result.reason
            reasons.append(f"{result.gate}: {result.reason}: {result.measured}")
    return Decision(verdict, tuple(reasons), anomaly)


def divergence_class(
    examined: Examined, results: tuple[GateResult, ...], verdict: Verdict
) -> str | None:
    """What a RED is put down to; None for any other colour.

    `contamination`, whatever the colour, where an answer holds another item's text: that is no
    rounding.
    `co_batching` only where nothing else can have differed (`SOUND_GATES` passed), arm B (A3 on a
    server of someone else) and every confirm trial repeat arm A token by token, and a divergent
    trial is proved co-batched;
    `unattributed` says what is missing for that.
    """
    facts = examined.facts
    if facts.contaminated:
        return CONTAMINATION
    if verdict is not Verdict.RED:
        return None
    aa, again = facts.pairs["AA"], _serial_again(facts)
    if aa.n_compared == 0:
        return "unattributed: arm A was not repeated"
    if not aa.passed or aa.per_id:
        return "unstable_reference"
    if again.pair.per_id or facts.confirm_divergent:
        return again.fault
    if not again.pair.token_identical or again.pair.n_ids_compared < len(facts.items):
        return f"unattributed: arm {again.arm} does not cover arm A token by token"
    if facts.confirm_done == 0 or facts.confirm_done < facts.confirm_wanted:
        return "unattributed: the divergent trials were not confirmed serially"
    if facts.n_co_batched_divergent == 0:
        return "unattributed: no divergent trial is proved co-batched"
    unsound = [r.gate for r in results if r.gate in SOUND_GATES and r.outcome is not Outcome.PASS]
    if unsound:
        return f"unattributed: {', '.join(unsound)} did not pass"
    return "co_batching"


@dataclass(frozen=True, slots=True)
class _SerialAgain:
    """The serial arm that takes the batch out and keeps the rest: its pair with A, its name, and
    what a difference in it is put down to."""

    pair: PairReport
    arm: str
    fault: str


def _serial_again(facts: Facts) -> _SerialAgain:
    """Arm B; on a server of someone else A3, which goes over its slots only where they are
    pinned."""
    slots = "slot_allocation(+co_batching)"
    dialect = facts.header.plan.sampling.dialect
    if dialect is None or "AA3" not in facts.pairs:
        return _SerialAgain(facts.pairs["AB"], "B", slots)
    return _SerialAgain(
        facts.pairs["AA3"], "A3", slots if dialect.pins_slots else "unstable_reference"
    )


def promotable(results: tuple[GateResult, ...], verdict: Verdict, source: Source, tag: str) -> bool:
    """Whether the certificate stands for the cell: live, green, made by all arms, every gate
    passed."""
    return (
        verdict is Verdict.GREEN
        and source is Source.LIVE
        and tag == PRODUCER_GATE
        and bool(results)
        and all(
            r.outcome is Outcome.PASS
            or (r.outcome is Outcome.NOT_APPLICABLE and r.gate in ARMED_ONLY)
            for r in results
        )
    )
