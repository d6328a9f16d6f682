"""What a replay came to, for a person and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from batch_invariance.cli.minimise_text import WHAT, seen_text
from batch_invariance.cli.style import Style
from batch_invariance.invariance_diff.case import Case
from batch_invariance.invariance_diff.case_judge import Replayed, ReplayOutcome
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.rules import CONFIDENCE
from batch_invariance.invariance_diff.stats import exact_zero_bound
from batch_invariance.live_invariance.text import printable

WORDS = {
    ReplayOutcome.REPRODUCED: (Verdict.RED, "REPRODUCED"),
    ReplayOutcome.NOT_REPRODUCED: (Verdict.GREEN, "NOT REPRODUCED"),
    ReplayOutcome.OTHER_DIVERGENCE: (Verdict.AMBER, "OTHER DIVERGENCE"),
    ReplayOutcome.OTHER_SUBJECT: (Verdict.UNVERIFIED, "OTHER SUBJECT"),
    ReplayOutcome.UNPROVED: (Verdict.UNVERIFIED, "UNPROVED"),
}


def render_replayed(case: Case, replayed: Replayed, machine: Sequence[str], style: Style) -> str:
    """The outcome as text, ending in a newline; `machine` is what differs about the machine."""
    colour, word = WORDS[replayed.outcome]
    lines = [f"{style.verdict(colour, word)}  {printable(case.origin.item_id)}: {_found(replayed)}"]
    lines.append(f"  recorded   {WHAT[case.expected.kind]} in {case.rate} attempts")
    if replayed.expected is not None:
        lines += [f"  {seen_text(one)}, in {one.count}" for one in replayed.expected.seen]
    if replayed.measured is not None:
        lines.append(f"  on this subject: {WORDS[replayed.measured][1].lower()}")
    lines += [f"  - {printable(reason)}" for reason in replayed.reasons]
    lines += [f"  note: {printable(note)}, which may change arithmetic" for note in machine]
    if replayed.outcome is ReplayOutcome.OTHER_SUBJECT and replayed.measured is None:
        lines.append("Nothing was sent. --any-subject sends it all the same.")
    return "\n".join(lines) + "\n"


def _found(replayed: Replayed) -> str:
    rate = replayed.rate
    if not rate.n:
        return "no attempt was made"
    text = f"the recorded divergence in {rate} attempts"
    if replayed.n_other:
        text += f", another in {replayed.n_other}"
    bound = rate_bound(replayed)
    if bound is None:
        return text
    return f"{text}; with {CONFIDENCE:.0%} confidence it shows in fewer than {bound:.0%}"


def rate_bound(replayed: Replayed) -> float | None:
    """The exact upper bound on the rate where no attempt showed it; None where one did, or none was
    answered."""
    rate = replayed.rate
    return None if rate.shown else exact_zero_bound(rate.n - rate.lost, CONFIDENCE)


def replayed_as_json(
    case: Case, replayed: Replayed, machine: Sequence[str], exit_code: int
) -> dict[str, object]:
    """What `--json` prints."""
    measured = replayed.measured
    return {
        "outcome": replayed.outcome.value,
        "item": case.origin.item_id,
        "kind": case.expected.kind.value,
        "rate": to_json(replayed.rate),
        "rate_upper_bound_95": rate_bound(replayed),
        "n_other": replayed.n_other,
        "recorded_rate": to_json(case.rate),
        "seen": [] if replayed.expected is None else to_json(replayed.expected.seen),
        "measured_on_other_subject": None if measured is None else measured.value,
        "reasons": list(replayed.reasons),
        "machine": list(machine),
        "exit_code": exit_code,
    }
