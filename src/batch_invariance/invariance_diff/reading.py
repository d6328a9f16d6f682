"""What a gate's check answers: an outcome, the figures behind it, and a reason unless it passed."""

from __future__ import annotations

from dataclasses import dataclass

from batch_invariance.invariance_diff.model import Outcome


@dataclass(frozen=True, slots=True)
class Reading:
    """`reason` is a stable code word; None for PASS and NOT_APPLICABLE."""

    outcome: Outcome
    measured: str
    reason: str | None = None


def passed(measured: str) -> Reading:
    """The condition holds."""
    return Reading(Outcome.PASS, measured)


def failed(measured: str, reason: str) -> Reading:
    """The condition does not hold."""
    return Reading(Outcome.FAIL, measured, reason)


def unknown(measured: str, reason: str) -> Reading:
    """Nothing shows whether the condition holds."""
    return Reading(Outcome.UNKNOWN, measured, reason)


def not_applicable(measured: str) -> Reading:
    """The gate's own condition says it does not apply."""
    return Reading(Outcome.NOT_APPLICABLE, measured)
