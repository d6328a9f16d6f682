"""The end of a run, for a person: verdict, reasons, where it parted, how sure, what next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from batch_invariance.cli.endpoint_text import endpoint_lines
from batch_invariance.cli.style import Style
from batch_invariance.cli.texts import first_divergence, log_tail, side_by_side
from batch_invariance.invariance_diff.cell_checks import MEANING
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.gates import GateResult
from batch_invariance.invariance_diff.model import Outcome, Source, Verdict
from batch_invariance.live_invariance.produce import Produced
from batch_invariance.live_invariance.text import printable

NOT_SAID = {
    Source.CANARY: (
        "A canary is a toy of random weights: it tests this server binary, its flags and this "
        "machine. It says nothing about any real model."
    ),
    Source.MOCK: "A mock run shows how the tool works. It says nothing about any server.",
    Source.ENDPOINT: (
        "It holds for this endpoint as it was found and as long as it runs, for this work-set and "
        "this schedule. Its weights, flags and machine are not known: it never stands for a cell."
    ),
}
MAX_REASONS = 8


def render(produced: Produced, style: Style, next_command: str) -> str:
    """The summary as text, ending in a newline."""
    cert = produced.certificate
    lines = [_head(cert, style), *_reasons(cert, style), *_death(produced)]
    lines += _contamination(cert, style)
    lines += _divergence(produced, style)
    lines += endpoint_lines(cert, style)
    lines += [*_impact(cert), _bound(cert), *_space(cert), *_closeness(cert), *_throughput(cert)]
    if cert.source in NOT_SAID:
        lines.append(NOT_SAID[cert.source])
    else:
        lines.append(
            "It holds for this cell alone: pinned slots, no prompt cache, this work-set, "
            "this schedule, these server lifetimes."
        )
    lines += [
        f"certificate  {printable(str(produced.paths.certificate))}",
        f"evidence     {printable(str(produced.paths.evidence))}",
    ]
    if produced.signature is not None:
        lines.append(f"signature    {printable(str(produced.signature))}")
    lines.append(f"next         {next_command}")
    return "\n".join(lines) + "\n"


def _head(cert: Certificate, style: Style) -> str:
    cell = f"{printable(cert.model)}, ctx {cert.ctx}, N={cert.dispatch_n}"
    extra = f", class {cert.divergence_class}" if cert.divergence_class else ""
    if cert.verdict is Verdict.GREEN and cert.claims.logprob_bits is False:
        extra = ", though logprobs drifted in their last bits"
    return f"{style.verdict(cert.verdict)}  {cell}: {MEANING[cert.verdict]}{extra}"


def _reasons(cert: Certificate, style: Style) -> list[str]:
    shown = [f"  - {printable(reason)}" for reason in cert.decision_reasons[:MAX_REASONS]]
    hidden = len(cert.decision_reasons) - len(shown)
    if hidden > 0:
        shown.append(f"  - and {hidden} more, in the certificate")
    return shown


def _death(produced: Produced) -> list[str]:
    deaths = [e for e in produced.certificate.events if e.what == "server_died"]
    if not deaths:
        return []
    lines = [f"{printable(event.detail)}, under the cell's load" for event in deaths]
    return lines + [f"  | {printable(line)}" for line in log_tail(produced.paths.evidence)]


def _divergence(produced: Produced, style: Style) -> list[str]:
    entry = first_divergence(produced.certificate)
    if entry is None:
        return []
    trial = entry.first_divergence
    wave = f"wave {trial.wave}" if trial.wave is not None else "saturated"
    companions = ", ".join(printable(name) for name in trial.companions[:6]) or "nobody"
    if len(trial.companions) > 6:
        companions += f" and {len(trial.companions) - 6} more"
    lines = [
        f"first divergence: item {style.bold(printable(entry.id))}, pass {trial.pass_index} "
        f"({wave}), lane {trial.lane}, together with {companions}"
    ]
    if trial.token_index is not None:
        margin = "" if trial.margin_x is None else f", margin in A {trial.margin_x:.3f} nats"
        lines.append(
            f"  at token {trial.token_index}: A {_token(trial.token_x)}, "
            f"C {_token(trial.token_y)}{margin}"
        )
    fields = ", ".join((*entry.score_fields, *entry.token_fields))
    lines.append(f"  differs in {entry.n_token_divergent} of {entry.n_compared} trials: {fields}")
    texts = side_by_side(entry, produced.paths.evidence)
    if texts is not None:
        shared = _visible(texts.shared)
        lines.append(f"  A: {shared}{style.bold('|' + _visible(texts.a))}")
        lines.append(f"  C: {shared}{style.bold('|' + _visible(texts.c))}")
    return lines


def _token(token: int | None) -> str:
    return "has ended" if token is None else f"token {token}"


def _visible(text: str) -> str:
    return printable(text)


def _bound(cert: Certificate) -> str:
    s = cert.sensitivity
    if s.n_ac_divergent:
        total = cert.divergence_report["AC"].n_compared
        return f"power: {s.n_ac_divergent} of {total} concurrent trials diverged"
    if s.prompt_rate_upper_bound_95 is None:
        return "power: no prompt is proved co-batched, so the run bounds nothing"
    return (
        f"power: no divergence in {s.n_hot_trials} co-batched trials of {s.n_hot_prompts} "
        f"prompts, up to {cert.horizon.longest} tokens each; with 95 % confidence fewer than "
        f"{s.prompt_rate_upper_bound_95:.1%} of such prompts diverge"
    )


def _throughput(cert: Certificate) -> list[str]:
    t = cert.throughput
    if t.serial_tokens_per_s is None or t.concurrent_tokens_per_s is None or t.speedup is None:
        return []
    prompts = ""
    if t.serial_prompt_tokens_per_s is not None and t.concurrent_prompt_tokens_per_s is not None:
        prompts = (
            f" (prompts {t.concurrent_prompt_tokens_per_s:.0f} against "
            f"{t.serial_prompt_tokens_per_s:.0f})"
        )
    return [
        f"speed: {t.concurrent_tokens_per_s:.0f} tokens/s batched against "
        f"{t.serial_tokens_per_s:.0f} serial{prompts}: serial takes {t.speedup:.1f}x as long"
    ]


def _contamination(cert: Certificate, style: Style) -> list[str]:
    """A privacy fault, said louder than any rounding."""
    lines = []
    for trial in cert.contamination[:MAX_REASONS]:
        donors = ", ".join(f"{printable(d.id)} ({d.kind.value})" for d in trial.donors[:4])
        lines.append(
            style.bold(f"CONTAMINATION: THE ANSWER TO {printable(trial.id)} HOLDS TEXT OF {donors}")
            + f", pass {trial.pass_index}, lane {trial.lane}; this is no rounding"
        )
    more = len(cert.contamination) - len(lines)
    return lines + ([f"  and {more} more answers with foreign text"] if more > 0 else [])


def _impact(cert: Certificate) -> list[str]:
    i = cert.score_impact
    if i.mean_a is None or i.mean_c is None or i.difference is None:
        return []
    return [
        f"score: {i.n_changed} of {i.n_scored} scored items changed ({i.n_worse} down, "
        f"{i.n_better} up); mean {i.mean_a:.4f} serial, {i.mean_c:.4f} batched, "
        f"difference {i.difference:+.4f}"
    ]


def _space(cert: Certificate) -> list[str]:
    s = cert.schedule_space
    sizes = s.ids_at_batch_size
    if sizes is None or s.n_pairs is None:
        why = "" if cert.endpoint is not None else cert.overlap.log_fault or ""
        return [f"batches: by {cert.overlap.witness}" + (f"; {printable(why)}" if why else "")]
    seen = ", ".join(f"{n} at {size}" for size, n in sizes.items() if n)
    missed = [str(b.tokens) for b in s.boundaries if not b.crossed]
    text = (
        f"batches: ids by batch size {seen}; {s.n_pairs} of {s.n_pairs_possible} pairs met; "
        f"{s.ids_prefill_with_decode} ids read their prompt while others generated, "
        f"{s.ids_prefill_with_prefill} beside another prompt"
    )
    if missed:
        text += f"; no sequence crossed {', '.join(missed)} tokens"
    return [text]


def _closeness(cert: Certificate) -> list[str]:
    c = cert.closeness
    if c.margin_over_drift is None or c.smallest_margin is None:
        return []
    return [
        f"drift: logprobs moved by up to {c.largest_drift:.2g} nats, the smallest margin is "
        f"{c.smallest_margin:.2g} nats ({c.margin_over_drift:.2g} times that)"
    ]


def gate_lines(gates: Sequence[GateResult], style: Style) -> list[str]:
    """One line for each gate."""
    width = max(len(gate.gate) for gate in gates)
    lines = []
    for gate in gates:
        label = gate.outcome.value.replace("NOT_APPLICABLE", "N/A")
        painted = f"{label:8}"
        if gate.outcome in (Outcome.FAIL, Outcome.UNKNOWN):
            painted = style.bold(painted)
        lines.append(f"  {painted} {gate.gate:{width}}  {printable(gate.measured)}")
    return lines


def as_json(produced: Produced, exit_code: int) -> dict[str, object]:
    """What `--json` prints: the verdict in short, and where the whole of it is."""
    cert = produced.certificate
    entry = first_divergence(cert)
    return {
        "verdict": cert.verdict.value,
        "status": cert.status.value,
        "source": cert.source.value,
        "promotable": cert.promotable,
        "divergence_class": cert.divergence_class,
        "anomaly": cert.anomaly,
        "decision_reasons": list(cert.decision_reasons),
        "first_divergent_id": None if entry is None else entry.id,
        "certificate": _path(produced.paths.certificate),
        "evidence": _path(produced.paths.evidence),
        "signature": None if produced.signature is None else _path(produced.signature),
        "exit_code": exit_code,
    }


def _path(path: Path) -> str:
    return str(path)
