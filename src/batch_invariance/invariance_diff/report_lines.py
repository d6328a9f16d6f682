"""The sentences that a report and a terminal say of one cell. Plain text, not yet made safe."""

from __future__ import annotations

from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.impact import ScoreImpact
from batch_invariance.invariance_diff.model import Outcome, Source, Verdict
from batch_invariance.invariance_diff.pairs import DivergentTrial, IdReport
from batch_invariance.invariance_diff.report_data import CellReport
from batch_invariance.invariance_diff.report_words import (
    CLASS_WORDS,
    GATE_SHORTFALLS,
    IN_WORDS,
    Standing,
)
from batch_invariance.invariance_diff.schedule_space import ScheduleSpace

MAX_NAMES = 6


def some(names: tuple[str, ...], limit: int = MAX_NAMES) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def times(speedup: float | None) -> str:
    """A speed-up as it is said."""
    return "unknown" if speedup is None else f"{speedup:.2f}x"


def cell_flags(report: CellReport) -> str:
    """Flags after -- and KV layout: with the model's name, what makes a row of the matrix."""
    if report.view is None:
        return ""
    subject = report.view.subject
    flags = " ".join(subject.server_flags) or "no further flags"
    return f"{flags}; KV {subject.kv_label or 'unknown'}"


def headline(report: CellReport) -> str:
    """The standing in words."""
    if report.standing is Standing.NOT_VERIFIED and report.view is not None:
        return (
            f"its evidence does not bear it out; the file itself says {report.view.verdict.value}"
        )
    text = IN_WORDS[report.standing]
    certificate = report.certificate
    if (
        report.standing is Standing.GREEN
        and certificate is not None
        and certificate.claims.logprob_bits is False
    ):
        text += ", though logprobs drifted"
    return text


def why(report: CellReport) -> str:
    """The one line that matters most."""
    view = report.view
    if report.problems or view is None:
        return "; ".join(report.problems[:2]) or "it cannot be read"
    n = report.certificate.workset.n_items if report.certificate is not None else 0
    if _contaminated(report):
        return "an answer holds text of another request"
    if view.verdict is Verdict.RED:
        return f"{len(view.mismatch)} of {n} scored answers changed"
    if view.verdict is Verdict.AMBER and view.token_divergence_ids:
        return f"{len(view.token_divergence_ids)} of {n} answers changed in tokens alone"
    if view.verdict is Verdict.GREEN:
        return power(report)
    return view.reasons[0] if view.reasons else ""


def in_brief(report: CellReport) -> str:
    """What `why` says in a few words, for a small field."""
    view = report.view
    if view is None or report.problems:
        return "" if view is None else f"claims {view.verdict.value}"
    if _contaminated(report):
        return "foreign text in answers"
    n = report.certificate.workset.n_items if report.certificate is not None else 0
    if view.verdict in (Verdict.RED, Verdict.GREEN):
        return f"{len(view.mismatch)} of {n} changed"
    if view.verdict is Verdict.AMBER and view.token_divergence_ids:
        return f"{len(view.token_divergence_ids)} of {n} in tokens alone"
    missed = (Outcome.FAIL, Outcome.UNKNOWN)
    named = (GATE_SHORTFALLS.get(g.gate, g.gate) for g in view.gates if g.outcome in missed)
    return next(named, "")


def _contaminated(report: CellReport) -> bool:
    return report.certificate is not None and bool(report.certificate.contamination)


def bound_of(report: CellReport) -> float | None:
    """The share of such prompts that may change at most, at 95 % confidence. None where the run
    proved no equality, and where it saw a change."""
    if report.view is None or report.standing not in (Standing.GREEN, Standing.AMBER):
        return None
    return report.view.power.bound_95


def power(report: CellReport) -> str:
    """How sure the run could be."""
    view = report.view
    if view is None or report.problems:
        return "nothing is proved"
    seen, bound = view.power, bound_of(report)
    if seen.n_divergent:
        return f"{seen.n_divergent} concurrent trials diverged"
    if bound is None or seen.n_hot_trials is None:
        return "nothing is proved equal, so the run bounds nothing"
    return (
        f"no change in {seen.n_hot_trials} co-batched trials of {seen.n_hot_prompts} prompts; "
        f"with 95 % confidence fewer than {bound:.1%} of such prompts change"
    )


def class_words(name: str | None) -> str:
    """What a divergence class means."""
    if name is None:
        return ""
    if name.startswith("unattributed"):
        return f"Not put down to anything: {name.partition(': ')[2] or 'nothing proves a cause'}."
    return CLASS_WORDS.get(name, name)


def impact_words(impact: ScoreImpact) -> str:
    """What batching does to the score; empty where nothing has one."""
    if impact.mean_a is None or impact.mean_c is None or impact.difference is None:
        return ""
    return (
        f"of {impact.n_scored} items that have a score {impact.n_changed} changed it "
        f"({impact.n_worse} down, {impact.n_better} up); mean {impact.mean_a:.4f} alone, "
        f"{impact.mean_c:.4f} batched, difference {impact.difference:+.4f}"
    )


def speed_words(certificate: Certificate) -> str:
    """Tokens per second, batched and serial; empty where they are unknown."""
    t = certificate.throughput
    if t.serial_tokens_per_s is None or t.concurrent_tokens_per_s is None:
        return ""
    return (
        f"{t.concurrent_tokens_per_s:.1f} tokens/s batched, {t.serial_tokens_per_s:.1f} serial: "
        f"{times(t.speedup)}"
    )


def space_words(space: ScheduleSpace, witness: str, tested_n: int) -> str:
    """Which batches there were."""
    if space.ids_at_batch_size is None:
        return f"a batch of {tested_n} is proved by {witness}; no log says who met whom"
    seen = ", ".join(f"{n} at {size}" for size, n in space.ids_at_batch_size.items() if n)
    return (
        f"ids by batch size: {seen}; {space.n_pairs} of {space.n_pairs_possible} pairs of ids met; "
        f"{space.ids_prefill_with_decode} ids read their prompt while others generated, "
        f"{space.ids_prefill_with_prefill} beside another prompt"
    )


def drift_words(certificate: Certificate) -> str:
    """How far logprobs moved, against how near the runner-up was."""
    close = certificate.closeness
    if close.smallest_margin is None:
        return "no alternatives were recorded"
    margin = f"the second-best token came as near as {close.smallest_margin:.2g} nats"
    ratio = close.margin_over_drift
    if ratio is None:
        return f"no logprob moved; {margin}"
    against = "nearer than the largest move" if ratio < 1.0 else f"{ratio:.2g} times that move"
    return f"logprobs moved by up to {close.largest_drift:.2g} nats; {margin}, {against}"


def where(trial: DivergentTrial) -> str:
    """Where an id first diverged, and with whom."""
    wave = f"wave {trial.wave}" if trial.wave is not None else "saturated"
    companions = some(trial.companions) or "nobody known"
    return f"pass {trial.pass_index} ({wave}), lane {trial.lane}, together with {companions}"


def at_token(trial: DivergentTrial) -> str:
    """The two tokens; empty where no token differs or none is known."""
    if trial.token_index is None:
        return ""
    sides = (trial.token_x, trial.token_y)
    a, c = ("has ended" if token is None else f"has token {token}" for token in sides)
    margin = (
        "" if trial.margin_x is None else f"; the second-best was {trial.margin_x:.3g} nats away"
    )
    return f"token {trial.token_index}: alone it {a}, batched it {c}{margin}"


def how_often(entry: IdReport) -> str:
    """In how many trials an id differs, and in which fields."""
    fields = ", ".join((*entry.score_fields, *entry.token_fields))
    n = max(entry.n_score_divergent, entry.n_token_divergent)
    return f"differs in {n} of {entry.n_compared} trials: {fields}"


def is_of_no_model(report: CellReport) -> bool:
    """Whether it is about no real model at all: a canary or a mock."""
    return report.view is not None and report.view.source in (Source.CANARY, Source.MOCK)
