"""Gates about the run itself: completeness, lost trials, isolation and identity."""

from __future__ import annotations

from batch_invariance.invariance_diff.facts import SERIAL_ARMS, Facts
from batch_invariance.invariance_diff.model import Arm
from batch_invariance.invariance_diff.reading import Reading, failed, passed, unknown
from batch_invariance.invariance_diff.records import COMPLETE
from batch_invariance.invariance_diff.tracker import PassFacts

STOP_EVENTS = ("server_died", "stopped", "lane_lost")


def check_completeness(facts: Facts) -> Reading:
    """Every planned pass ran as planned, every trial is there exactly once, the footer closes."""
    faults = list(facts.plan_faults)
    for p in facts.passes:
        if p.n_missing or p.n_unexpected:
            faults.append(
                f"arm {p.arm.value} pass {p.pass_index}: {p.n_missing} trials missing, "
                f"{p.n_unexpected} not planned"
            )
    if facts.confirm_done + _lost_in(facts, Arm.CONFIRM) < facts.confirm_wanted:
        faults.append(f"{facts.confirm_done} of {facts.confirm_wanted} confirm trials")
    faults += [f"{e.what}: {e.detail}" for e in facts.events if e.what in STOP_EVENTS]
    footer = facts.footer
    if footer is None:
        faults.append("no footer: the file ends before the run did")
    elif footer.ended != COMPLETE:
        faults.append(f"ended early: {footer.ended}")
    elif footer.n_trials != facts.n_trials:
        faults.append(f"the footer counts {footer.n_trials} trials, the file {facts.n_trials}")
    if faults:
        return failed("; ".join(faults[:4]), "incomplete")
    return passed(f"{facts.n_trials} trials")


def _lost_in(facts: Facts, arm: Arm) -> int:
    return sum(lost.arm is arm for lost in facts.lost)


def check_lost(facts: Facts) -> Reading:
    """No request of any arm came back without a completion."""
    if not facts.lost:
        return passed("none")
    kinds: dict[str, int] = {}
    for lost in facts.lost:
        label = f"{lost.kind} in {lost.arm.value}"
        kinds[label] = kinds.get(label, 0) + 1
    return failed(", ".join(f"{n} {k}" for k, n in sorted(kinds.items())), "lost_trials")


def check_isolation(facts: Facts) -> Reading:
    """Nothing but the batch can have differed between the arms."""
    i = facts.isolation
    faults = []
    if i.cache_used:
        faults.append(f"{i.cache_used} responses reused a prompt cache")
    if i.truncated:
        faults.append(f"{i.truncated} responses ended at the context's end")
    if i.speculated:
        faults.append(f"{i.speculated} responses used speculation")
    if i.foreign_bodies:
        faults.append(f"{i.foreign_bodies} requests were not the item's one body")
    traffic, unclear = _decodes_add_up(facts)
    faults += traffic
    if faults:
        return failed("; ".join(faults), "not_isolated")
    if i.n_checked == 0:
        return unknown("no answered trial", "nothing_checked")
    missing = []
    if i.cache_unknown:
        missing.append(f"{i.cache_unknown} responses do not report their cache")
    if i.truncation_unknown:
        missing.append(f"{i.truncation_unknown} responses do not say how they ended")
    missing += unclear
    if missing:
        return unknown("; ".join(missing), "isolation_unknown")
    return passed(f"{i.n_checked} responses, decodes add up in every pass")


def _decodes_add_up(facts: Facts) -> tuple[list[str], list[str]]:
    """(faults, unknowns) of decode counts against generated tokens.

    In a serial pass a request of k tokens takes k forward passes plus those of further prompt
    chunks. Fewer means that a pass was shared. More must be explained by the prompts, and alike
    in A and its repeat; what A needs for its chunks is all that a later pass may need.
    """
    faults, unclear = [], []
    extra_a: int | None = None
    n_a = 1
    for p in facts.passes:
        if p.arm is Arm.WARMUP or p.n_lost:
            continue
        name = f"arm {p.arm.value} pass {p.pass_index}"
        if p.decodes is None or not p.tokens_known:
            unclear.append(f"no decode count for {name}")
            continue
        if not (p.n_missing or p.n_unexpected):
            crowded = p.arm not in SERIAL_ARMS and (p.decode_peak or 0) > p.n_lanes
            if p.impossible_waves or crowded:
                faults.append(f"{name}: the decode counter says what cannot be")
            if p.predicted is None:
                unclear.append(f"no count of generated tokens for {name}")
            elif p.predicted != p.tokens:
                faults.append(
                    f"{name}: the server generated {p.predicted} tokens, its requests {p.tokens}"
                )
            counted = p.prompt_counted is not None and not facts.isolation.prompt_count_unknown
            if counted and p.prompt_counted != p.prompt_tokens:
                faults.append(
                    f"{name}: the server read {p.prompt_counted} prompt tokens, "
                    f"its requests have {p.prompt_tokens}"
                )
        if p.arm in SERIAL_ARMS and p.log_crowded:
            faults.append(f"{name} shared {p.log_crowded} forward passes by the server's log")
        extra = p.decodes - p.tokens
        if p.arm is Arm.A:
            extra_a, n_a = extra, max(1, p.n_planned)
        if p.arm in SERIAL_ARMS and extra < 0:
            faults.append(f"{name} shared {-extra} decodes")
        elif p.arm is Arm.A2 and extra_a is not None and extra != extra_a:
            faults.append(f"A and its repeat differ in decodes by {abs(extra - extra_a)}")
        elif extra > chunk_allowance(p, extra_a, n_a):
            faults.append(f"{name} took {extra} decodes more than its requests explain")
    return faults, unclear


def chunk_allowance(p: PassFacts, extra_a: int | None, n_a: int) -> int:
    """Forward passes that prompts may take beyond their first.

    For arm A one for every 32 prompt tokens, the least sensible batch size; for a later pass what
    A took, times how often the pass sends the work-set.
    """
    if p.arm is Arm.A or extra_a is None:
        return p.prompt_tokens // 32
    return extra_a * -(-p.n_planned // n_a)


def check_identity(facts: Facts) -> Reading:
    """Each launch was what was asked, said so at its start and its end, and was ours."""
    if not facts.lifetimes:
        return unknown("no server lifetime recorded", "identity_unknown")
    faults, missing = [], []
    seen: dict[str, set[object]] = {}
    for life in facts.lifetimes:
        start, label = life.start, f"launch {life.start.index}"
        said = start.identity
        if said.total_slots is not None and said.total_slots != start.parallel:
            faults.append(f"{label} has {said.total_slots} slots, not {start.parallel}")
        wanted = facts.header.cell.ctx * (start.parallel if facts.header.cell.kv_unified else 1)
        if start.n_ctx != wanted or (said.n_ctx is not None and said.n_ctx != wanted):
            faults.append(f"{label} has {said.n_ctx} tokens per slot, not {wanted}")
        model = facts.header.subject.model.file
        if said.model is not None and file_name(said.model) != model:
            faults.append(f"{label} serves another model than {model}")
        if not start.key_enforced and start.socket_owned is not True:
            missing.append(f"{label} was not proved to be the child")
        if None in (said.total_slots, said.n_ctx, said.model, said.build):
            missing.append(f"{label} does not say its slots, context, model and build")
        if (life.end is None or life.end.identity is None) and not life.cut_off:
            missing.append(f"{label} was not asked again at its end")
        elif life.end is not None and life.end.identity not in (None, said):
            faults.append(f"{label} changed what it says of itself while it ran")
        for what, value in (
            ("build", said.build),
            # A run that was resumed may have its model, the same by its digest, elsewhere.
            ("model", None if said.model is None else file_name(said.model)),
            ("chat template", said.chat_template_sha256),
            ("executable", start.executable_sha256),
            ("libraries", tuple(sorted(start.libraries.items()))),
        ):
            seen.setdefault(what, set()).add(value)
    faults += [f"the {what} differs between launches" for what, v in seen.items() if len(v) > 1]
    faults += _wrong_lanes(facts)
    if faults:
        return failed("; ".join(faults), "identity_mismatch")
    if missing:
        return unknown("; ".join(missing), "identity_unknown")
    cut = sum(life.cut_off for life in facts.lifetimes)
    interrupted = f", {cut} of them cut off by an interruption" if cut else ""
    return passed(f"{len(facts.lifetimes)} launches, all as asked{interrupted}")


def file_name(path: str) -> str:
    """The last part of a path as a server on any system writes it."""
    return path.replace("\\", "/").rpartition("/")[2]


def _wrong_lanes(facts: Facts) -> list[str]:
    """Arm A belongs on a server of one slot, B and C on one of N with every slot used."""
    n = facts.header.cell.dispatch_n
    parallel = {life.start.index: life.start.parallel for life in facts.lifetimes}
    faults = []
    used: dict[Arm, set[int]] = {}
    for p in facts.passes:
        wanted = 1 if p.arm in (Arm.A, Arm.A2) else n
        if p.arm is not Arm.WARMUP and parallel.get(p.lifetime) != wanted:
            faults.append(f"arm {p.arm.value} did not run on a server of {wanted} slots")
        used.setdefault(p.arm, set()).update(p.lanes)
    for arm in (Arm.B, Arm.C):
        if arm in used and used[arm] != set(range(n)):
            faults.append(f"arm {arm.value} did not use every slot")
    return faults
