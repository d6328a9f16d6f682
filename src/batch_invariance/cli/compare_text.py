"""A comparison for a person: the outcome first, then why, then both sides."""

from __future__ import annotations

from pathlib import Path

from batch_invariance.cli.fact_lines import fact_lines
from batch_invariance.cli.style import Style
from batch_invariance.invariance_diff.compare import (
    Comparison,
    Drift,
    Figure,
    GateChange,
    IdChange,
    Kind,
    Outcome,
    Side,
)
from batch_invariance.invariance_diff.gates import GateResult
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.report_lines import some
from batch_invariance.invariance_diff.subject_facts import Agreement
from batch_invariance.live_invariance.text import printable

HEADS = {
    Outcome.NOT_WORSE: ("NOT WORSE", Verdict.GREEN, "nothing got worse"),
    Outcome.WORSE: ("WORSE", Verdict.RED, "something got worse"),
    Outcome.UNPROVED: ("UNPROVED", Verdict.UNVERIFIED, "nothing shows that it is not worse"),
}
ID_WORDS = {
    IdChange.NEW: "new",
    IdChange.KIND_CHANGED: "other kind",
    IdChange.IN_BOTH: "in both",
    IdChange.UNPROVED: "not tried",
    IdChange.GONE: "gone",
}
KIND_WORDS = {Kind.SCORE: "score", Kind.TOKEN: "tokens alone", None: "none"}


def comparison_lines(result: Comparison, paths: tuple[Path, Path], style: Style) -> list[str]:
    """The lines of the whole comparison; `paths` are those of before and after."""
    word, colour, meaning = HEADS[result.outcome]
    cell = result.cell
    name = f"{printable(cell.model)}, ctx {cell.ctx}, N={cell.dispatch_n}"
    lines = [f"{style.verdict(colour, word)}  {name}: {meaning}"]
    lines += [f"  - {printable(reason)}" for reason in result.reasons]
    lines.append(_side_line("before", result.before, paths[0], style))
    lines.append(_side_line("after", result.after, paths[1], style))
    lines.append("subject and questions")
    if result.before.cell_sha256 == result.after.cell_sha256:
        lines.append(
            "  nothing that is recorded of the cell differs: what follows differs from run to run"
        )
    lines += fact_lines(result.facts)
    lines += [*_ids(result), *_reference(result), *_gates(result), *_figures(result)]
    return lines


def _side_line(word: str, side: Side, path: Path, style: Style) -> str:
    extra = f", {printable(side.divergence_class)}" if side.divergence_class else ""
    extra += ", promotable" if side.promotable else ""
    at = f"{printable(side.ts_utc)}  {printable(str(path))}"
    return f"  {word:7} {style.verdict(side.verdict)}{extra}  {at}"


def _ids(result: Comparison) -> list[str]:
    if result.ids is None:
        others = " and ".join(result.incomparable)
        return [f"divergent ids: not comparable, {others} not the same"]
    n = result.after.n_compared
    lines = [f"divergent ids, of {n} compared"]
    if not result.ids:
        return [*lines, "  none on either side"]
    for change, word in ID_WORDS.items():
        entries = [entry for entry in result.ids if entry.change is change]
        for pair in dict.fromkeys((entry.before, entry.after) for entry in entries):
            names = tuple(e.id for e in entries if (e.before, e.after) == pair)
            kinds = _kinds(*pair)
            lines.append(f"  {word:10} {len(names):3}  {kinds}: {printable(some(names))}")
    return lines


def _kinds(before: Kind | None, after: Kind | None) -> str:
    if before is None or after is None or before is after:
        return KIND_WORDS[before or after]
    return f"{KIND_WORDS[before]}, now {KIND_WORDS[after]}"


def _reference(result: Comparison) -> list[str]:
    reference = result.reference
    if reference is None:
        return []
    text = f"serial answers: {reference.n_same} of the same text"
    if reference.changed:
        text += f", {len(reference.changed)} changed: {printable(some(reference.changed))}"
    if reference.unknown:
        text += f", {len(reference.unknown)} unknown: {printable(some(reference.unknown))}"
    return [text]


def _gates(result: Comparison) -> list[str]:
    moved = [gate for gate in result.gates if gate.agreement is not Agreement.SAME]
    lines = [
        f"gates: {len(result.gates) - len(moved)} of {len(result.gates)} with the same outcome"
    ]
    for gate in moved:
        lines += _gate(gate)
    return lines


def _gate(gate: GateChange) -> list[str]:
    sides = (gate.before, gate.after)
    outcomes = " -> ".join("absent" if row is None else row.outcome.value for row in sides)
    required = next((row.required for row in reversed(sides) if row is not None), "")
    lines = [f"  {printable(gate.gate)}  {outcomes}  (required: {printable(required)})"]
    return lines + [
        f"    {word:7} {_measured(row)}"
        for word, row in zip(("before", "after"), sides, strict=True)
    ]


def _measured(row: GateResult | None) -> str:
    return "no such gate" if row is None else printable(row.measured)


def _figures(result: Comparison) -> list[str]:
    lines = [
        "logprobs under load",
        f"  before  {_drift(result.before.drift)}",
        f"  after   {_drift(result.after.drift)}",
        "speed, as noisy as the machine",
    ]
    return lines + [f"  {figure.name:17} {_figure(figure)}" for figure in result.figures]


def _drift(drift: Drift | None) -> str:
    if drift is None:
        return "unknown: none could be compared"
    text = f"moved at {drift.n_moved} of {drift.n_positions} positions"
    if drift.n_moved:
        text += f", by up to {drift.max_abs:.2g} nats"
    return text + (f"; {drift.n_unknown} trials without usable ones" if drift.n_unknown else "")


def _figure(figure: Figure) -> str:
    sides = " -> ".join(
        "unknown" if value is None else f"{value:.2f}" for value in (figure.before, figure.after)
    )
    return sides if figure.ratio is None else f"{sides}  ({figure.ratio:.2f} times)"
