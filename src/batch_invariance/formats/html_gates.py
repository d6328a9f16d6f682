"""The gate table of one cell: what is asked, measured against required, the worst first."""

from __future__ import annotations

from batch_invariance.formats.html_markup import Child, Markup, element, joined
from batch_invariance.formats.html_parts import icon, table
from batch_invariance.invariance_diff.gates import GateResult
from batch_invariance.invariance_diff.model import Outcome
from batch_invariance.invariance_diff.report_data import CellReport
from batch_invariance.invariance_diff.report_words import GATE_QUESTIONS, Standing

OUTCOMES = {
    Outcome.FAIL: ("f", "r", "FAIL"),
    Outcome.UNKNOWN: ("k", "u", "UNKNOWN"),
    Outcome.PASS: ("p", "g", "PASS"),
    Outcome.NOT_APPLICABLE: ("x", "x", "N/A"),
}
"""Class, icon and word of each outcome, the worst first."""


def gates_part(report: CellReport) -> Markup | None:
    """The table; None where the file holds none."""
    if report.view is None or not report.view.gates:
        return None
    order = list(OUTCOMES)
    gates = sorted(report.view.gates, key=lambda gate: order.index(gate.outcome))
    claimed = report.standing is Standing.NOT_VERIFIED
    caption = "Each condition, measured against required"
    if claimed:
        caption += ", as the file claims them"
    rows = (_gate(gate, claimed) for gate in gates)
    heads = ("Outcome", "Gate", "Measured", "Required")
    return joined((element("h4", "The gates"), table(caption, heads, rows, "gates")))


def _gate(gate: GateResult, claimed: bool) -> tuple[Child, ...]:
    """One row; a claim that nothing bears out has no colour."""
    letter, shape, word = OUTCOMES[gate.outcome]
    name = joined((GATE_QUESTIONS.get(gate.gate), element("small", gate.gate)))
    if claimed:
        letter, shape, word = "x", "n", f"claims {word}"
    outcome = element("span", icon(shape), word, class_=f"o o-{letter}")
    return outcome, name, gate.measured, gate.required
