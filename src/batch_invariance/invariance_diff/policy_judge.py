"""Whether certificates fulfil a policy.

What is asked, in this order, of every certificate:

1. it can be read, its evidence bears it out, and it is signed where a signature is asked for;
2. `required` names its cell, and no other file is of the same cell, or, where the policy asks for
   several runs of a cell, of the same run;
3. its source is allowed;
4. it is GREEN, or AMBER and accepted by name;
5. it is not too old;
6. model, server and cell are among those allowed, where the policy lists any;
7. its bound and its horizon suffice, where the policy asks for them.

Of every entry of `required`: there is a certificate for it. Of every cell: it was run as often as
the policy asks. What is absent or unknown never passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batch_invariance.invariance_diff.cert_reading import CertView
from batch_invariance.invariance_diff.dates import SECONDS_PER_DAY, utc_seconds
from batch_invariance.invariance_diff.model import Source, Verdict
from batch_invariance.invariance_diff.policy import (
    Acceptance,
    Candidate,
    Judgement,
    Policy,
    Rule,
    Violation,
)

CLOCK_AHEAD_S = 3600
"""So far may the clock of the machine that ran the cell be ahead of the one that judges."""


def judge(policy: Policy, candidates: Sequence[Candidate], now_s: float) -> Judgement:
    """Holds certificates against a policy; `now_s` is the time, in seconds since 1970 UTC.

    A policy without required cells is fulfilled by nothing.
    """
    violations: list[Violation] = []
    accepted: dict[str, Acceptance] = {}
    seen = _Seen(policy.min_runs)
    for candidate in candidates:
        view = candidate.view
        if view is None or candidate.problems:
            name = None if view is None else str(view.cell)
            text = "; ".join(candidate.problems) or "cannot be read"
            violations.append(Violation(Rule.EVIDENCE, name, candidate.file, text))
            continue
        acceptance = _acceptance(policy, view, now_s)
        if acceptance is not None:
            accepted[candidate.file] = acceptance
        found = _standing(policy, candidate, view, seen)
        if candidate.signature_fault is not None:
            found.append((Rule.SIGNATURE, candidate.signature_fault))
        if Rule.FOREIGN not in {rule for rule, _ in found}:
            found += _quality(policy, view, acceptance, now_s)
        for rule, text in found:
            violations.append(Violation(rule, str(view.cell), candidate.file, text))
    violations += seen.too_few(policy)
    views = [c.view for c in candidates if c.view is not None]
    for pattern in policy.required:
        if not any(pattern.matches(view.cell) for view in views):
            violations.append(
                Violation(Rule.REQUIRED, str(pattern), None, "there is no certificate for it")
            )
    if not policy.required:
        violations.append(Violation(Rule.REQUIRED, "policy", None, "requires no cell at all"))
    return Judgement(tuple(violations), accepted)


def asked_rules(policy: Policy, signed: bool = False) -> tuple[Rule, ...]:
    """The rules that the policy asks of a certificate; `signed`: it must be signed, too."""
    optional = {
        Rule.SIGNATURE: signed,
        Rule.AGE: policy.max_age_days is not None,
        Rule.MODEL: bool(policy.model_sha256),
        Rule.SERVER: bool(policy.server_sha256),
        Rule.CELL: bool(policy.cell_sha256),
        Rule.BOUND: policy.max_bound is not None,
        Rule.HORIZON: policy.min_horizon_tokens is not None,
        Rule.RUNS: policy.min_runs is not None,
        Rule.REQUIRED: False,
        Rule.EVIDENCE: False,
    }
    return tuple(rule for rule in Rule if optional.get(rule, True))


_Found = list[tuple[Rule, str]]


class _Seen:
    """The certificates of each cell so far, by the digest of their evidence: each is of one run.
    Without `min_runs` a cell has one."""

    def __init__(self, min_runs: int | None) -> None:
        self._least = min_runs
        self._cells: dict[str, dict[str | None, Candidate]] = {}

    def twin(self, candidate: Candidate, view: CertView) -> str | None:
        """Why one more certificate of this cell may not stand; None where it may."""
        runs = self._cells.setdefault(view.cell_sha256 or str(view.cell), {})
        run = view.inputs.evidence_sha256
        if self._least is None and runs and view.cell_sha256 is not None:
            return f"{next(iter(runs.values())).file} is of the same cell; keep one"
        if self._least is not None and run in runs:
            return f"{runs[run].file} is of the same run; keep one"
        runs[run] = candidate
        return None

    def too_few(self, policy: Policy) -> Iterator[Violation]:
        """One violation, by its first file, for each cell that was not run as often as is asked."""
        least = self._least
        if least is None:
            return
        for runs in self._cells.values():
            first, n = next(iter(runs.values())), len(runs)
            if first.view is not None and policy.requires(first.view.cell) and n < least:
                text = f"{n} run{'s' if n != 1 else ''} of this cell, at least {least} asked"
                yield Violation(Rule.RUNS, str(first.view.cell), first.file, text)


def _standing(policy: Policy, candidate: Candidate, view: CertView, seen: _Seen) -> _Found:
    """Whether the file may stand here at all."""
    found: _Found = []
    if not policy.requires(view.cell):
        found.append((Rule.FOREIGN, "no entry of required names this cell"))
    twin = seen.twin(candidate, view)
    if twin is not None:
        found.append((Rule.DUPLICATE, twin))
    return found


def _quality(policy: Policy, view: CertView, acceptance: Acceptance | None, now_s: float) -> _Found:
    found: _Found = []
    if view.source not in policy.sources:
        allowed = ", ".join(source.value for source in policy.sources)
        found.append((Rule.SOURCE, f"is {view.source.value}, allowed is {allowed}"))
    if view.verdict is not Verdict.GREEN and acceptance is None:
        found.append((Rule.VERDICT, _verdict_text(policy, view, now_s)))
    elif view.verdict is Verdict.GREEN and view.source is Source.LIVE and not view.promotable:
        found.append((Rule.VERDICT, "is GREEN and may not be promoted"))
    if policy.max_age_days is not None:
        found += _age(view, policy.max_age_days, now_s)
    found += _subject(policy, view)
    if policy.max_bound is not None:
        text = _bound_text(view, policy.max_bound, acceptance)
        found += [(Rule.BOUND, text)] if text else []
    least, horizon = policy.min_horizon_tokens, view.power.horizon_total
    if least is not None and (horizon is None or horizon < least):
        found.append((Rule.HORIZON, f"{_known(horizon)} token positions, at least {least} asked"))
    return found


def _acceptance(policy: Policy, view: CertView, now_s: float) -> Acceptance | None:
    if view.verdict is not Verdict.AMBER:
        return None
    for entry in policy.accept_amber:
        if entry.cell == view.cell and _is_for(entry, view) and not _expired(entry, now_s):
            return entry
    return None


def _is_for(entry: Acceptance, view: CertView) -> bool:
    return entry.cell_sha256 is None or entry.cell_sha256 == view.cell_sha256


def _expired(entry: Acceptance, now_s: float) -> bool:
    if entry.expires is None:
        return False
    last_day = utc_seconds(f"{entry.expires}T00:00:00Z")
    return last_day is None or now_s >= last_day + SECONDS_PER_DAY


def _verdict_text(policy: Policy, view: CertView, now_s: float) -> str:
    why = f": {view.reasons[0]}" if view.reasons else ""
    if len(view.reasons) > 1:
        why += f" and {len(view.reasons) - 1} more"
    for entry in policy.accept_amber:
        if view.verdict is Verdict.AMBER and entry.cell == view.cell:
            other = f"is for {entry.cell_sha256}, this is {_known(view.cell_sha256)}"
            was = f"expired after {entry.expires}" if _is_for(entry, view) else other
            why += f"; its acceptance {was}"
    return f"is {view.verdict.value}{why}"


def _age(view: CertView, most_days: int, now_s: float) -> _Found:
    """A cell of a sweep is as old as the arms that it shares, which may be kept from an earlier
    one."""
    text = _age_text(view.ts_utc, most_days, now_s)
    shared = [_age_text(began, most_days, now_s) for began in view.shared_ts_utc]
    texts = [text, *(why and f"its shared arms A and A2: {why}" for why in shared)]
    return [(Rule.AGE, why) for why in texts if why]


def _age_text(ts_utc: str | None, most_days: int, now_s: float) -> str | None:
    began = None if ts_utc is None else utc_seconds(ts_utc)
    if began is None:
        return f"when it was run is unknown, at most {most_days} days allowed"
    if began > now_s + CLOCK_AHEAD_S:
        return f"it was run at {ts_utc}, which is in the future"
    days = (now_s - began) / SECONDS_PER_DAY
    return f"{days:.2f} days old, at most {most_days} allowed" if days > most_days else None


def _subject(policy: Policy, view: CertView) -> _Found:
    subject = view.subject
    # What really ran counts; the file that was named stands in where the system did not show it.
    servers = [digest or subject.server_sha256 for digest in subject.executables]
    asked: tuple[tuple[Rule, tuple[str, ...], Sequence[str | None]], ...] = (
        (Rule.MODEL, policy.model_sha256, [subject.model_sha256]),
        (Rule.SERVER, policy.server_sha256, servers or [None]),
        (Rule.CELL, policy.cell_sha256, [view.cell_sha256]),
    )
    found: _Found = []
    for rule, allowed, digests in asked:
        strangers = sorted({_known(digest) for digest in digests if digest not in allowed})
        if allowed and strangers:
            found.append((rule, f"{', '.join(strangers)} is not among the {len(allowed)} allowed"))
    return found


def _bound_text(view: CertView, most: float, acceptance: Acceptance | None) -> str | None:
    bound = view.power.bound_95
    if bound is None and acceptance is not None and view.power.n_divergent:
        # What was seen to differ has no bound; whoever accepted it accepted that.
        return None
    if bound is None or bound > most:
        shown = "unknown" if bound is None else f"{bound:.4g}"
        return f"the rate's upper bound is {shown}, at most {most:g} allowed"
    return None


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)
