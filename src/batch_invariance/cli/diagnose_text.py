"""A diagnosis for a person, a table and the command line to use; and the same as JSON."""

from __future__ import annotations

import shlex

from batch_invariance.cli.style import Style
from batch_invariance.invariance_diff.codec import to_json
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.live_invariance.diagnosis import Diagnosis, Measured, Row, Scope
from batch_invariance.live_invariance.prepare import ServerChoice, model_name
from batch_invariance.live_invariance.text import printable

HEAD = ("setting", "N", "verdict", "diverging", "tokens/s", "to today", "to serial")
WIDTHS = (4, 12, 11, 9, 9, 10)


def server_command(choice: ServerChoice, row: Row) -> str:
    """The server's command line under a row's settings, without what a run adds for itself."""
    model = str(choice.model) if choice.model.exists() else choice.model.name
    words = [choice.server_bin.name, "--model", model]
    words += ["-c", str(choice.ctx * row.parallel), "--parallel", str(row.parallel)]
    if not row.flags.states_kv_unified:
        words.append("--no-kv-unified")
    return shlex.join([*words, *row.flags.flags])


def diagnosis_text(found: Diagnosis, choice: ServerChoice, style: Style) -> str:
    """The result as text, ending in a newline."""
    lines = [f"{printable(model_name(choice))}, ctx {choice.ctx}, N={found.today.parallel}"]
    if not found.reproduced:
        lines.append("today's settings did not diverge again: there is nothing to measure against")
    rows = [found.today, *found.rows, *found.by_slots]
    width = max(len(row.name) for row in rows) + 2
    lines.append(style.dim(_cells(HEAD, width)))
    for row in rows:
        lines += _row(row, found.today, width, style)
    lines += [f"left out: {left.name}: {left.why}" for left in found.left_out]
    lines += _advice(found, choice, style)
    return "\n".join(lines) + "\n"


def _cells(cells: tuple[str, ...], width: int) -> str:
    line = cells[0].ljust(width)
    return (
        line + "".join(cell.rjust(w) for cell, w in zip(cells[1:], WIDTHS, strict=True))
    ).rstrip()


def _row(row: Row, today: Row, width: int, style: Style) -> list[str]:
    verdict = row.verdict
    worst = max(row.runs, key=lambda run: (len(run.divergent), run.n_ids), default=None)
    ids = "-" if worst is None else f"{len(worst.divergent)}/{worst.n_ids}"
    speed, to_today, to_serial = _speeds(row, today)
    word = "-" if verdict is None else verdict.value
    figures = (_number(speed, 1), _number(to_today, 2), _number(to_serial, 2))
    text = _cells((row.name, str(row.parallel), word, ids, *figures), width)
    if verdict is not None:
        text = text.replace(word, style.verdict(verdict), 1)
    lines = [text]
    if row.needed and row.n_green:
        n_full = sum(run.scope is Scope.FULL for run in row.runs)
        said = f"GREEN in {row.n_green} of {n_full} full runs"
        if verdict is not Verdict.GREEN:
            said += f", of {row.needed} needed: clean only mostly is not GREEN"
        lines.append(style.dim(f"  {said}"))
    if row.why is not None:
        lines.append(style.dim(f"  {printable(row.why.splitlines()[0])}"))
    return lines


def _speeds(row: Row, today: Row) -> tuple[float | None, float | None, float | None]:
    """Batched tokens per second of the row's first run, that over today's batching, and that over
    today's serial arm. Row and today are compared on the same items."""
    if not row.runs:
        return None, None, None
    speed, base = row.runs[0].concurrent_tokens_per_s, _base(row, today)
    return (
        speed,
        _ratio(speed, base.concurrent_tokens_per_s),
        _ratio(speed, base.serial_tokens_per_s),
    )


def _base(row: Row, today: Row) -> Measured:
    return next((run for run in today.runs if run.scope is row.runs[0].scope), today.runs[-1])


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _number(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _advice(found: Diagnosis, choice: ServerChoice, style: Style) -> list[str]:
    if not found.reproduced:
        return []
    lines = []
    best = _fastest(found)
    if best is not None:
        lines.append(f"{style.verdict(Verdict.GREEN)} at N={best.parallel} with: {best.name}")
        lines.append(f"  {server_command(choice, best)}")
        lines.append(f"  certificate  {best.runs[-1].certificate}")
    else:
        lines.append(f"no setting that was tried is GREEN at N={found.today.parallel}")
    if found.by_slots:
        largest = found.largest_n
        if largest is None:
            lines.append(
                "with today's flags no smaller number of slots above 1 that was tried is GREEN"
            )
        else:
            lines.append(f"with today's flags the largest N found GREEN is {largest}")
    lines.append("One slot is serial: it batches nothing.")
    return lines


def _fastest(found: Diagnosis) -> Row | None:
    return max(
        found.remedies, key=lambda row: row.runs[0].concurrent_tokens_per_s or 0.0, default=None
    )


def diagnosis_as_json(found: Diagnosis, choice: ServerChoice, exit_code: int) -> dict[str, object]:
    """What `--json` prints and what is kept."""
    best = _fastest(found)
    rows = [found.today, *found.rows, *found.by_slots]
    return {
        "cell_name": f"{model_name(choice)}/{choice.ctx}/{found.today.parallel}",
        "reproduced": found.reproduced,
        "rows": [_row_as_json(row, found.today, choice) for row in rows],
        "left_out": [to_json(left) for left in found.left_out],
        "remedy": None if best is None else best.name,
        "command": None if best is None else server_command(choice, best),
        "largest_n": found.largest_n,
        "exit_code": exit_code,
    }


def _row_as_json(row: Row, today: Row, choice: ServerChoice) -> dict[str, object]:
    _, to_today, to_serial = _speeds(row, today)
    return {
        "name": row.name,
        "server_flags": list(row.flags.flags),
        "parallel": row.parallel,
        "verdict": None if row.verdict is None else row.verdict.value,
        "n_green": row.n_green,
        "n_green_needed": row.needed,
        "speed_to_today": to_today,
        "speed_to_serial": to_serial,
        "why": row.why,
        "command": server_command(choice, row),
        "runs": [{**to_json(run), "certificate": str(run.certificate)} for run in row.runs],
    }
