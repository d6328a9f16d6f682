"""From a prepared header to a certificate on disk: the one path that makes certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from batch_invariance.invariance_diff.certificate import Certificate, certify
from batch_invariance.invariance_diff.records import COMPLETE, Header
from batch_invariance.invariance_diff.shared_arm import shared_header
from batch_invariance.live_invariance.evidence_file import EvidenceWriter, read_lines
from batch_invariance.live_invariance.host import check_disk
from batch_invariance.live_invariance.interrupts import deferred
from batch_invariance.live_invariance.recording import Recorder, RunObserver, StopRules
from batch_invariance.live_invariance.resume import Interruption, go_on
from batch_invariance.live_invariance.run import (
    FRESH,
    REFERENCE_ALONE,
    Earlier,
    close_run,
    run_cell,
)
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.shared_arm import (
    Origin,
    check_shareable,
    copy_origin,
    read_origin,
)
from batch_invariance.live_invariance.store import (
    CellLock,
    CellPaths,
    cell_paths,
    prepare_out_dir,
    set_aside,
    shared_arm_paths,
    write_atomic,
)
from batch_invariance.scorer_api import Scorer, ScoringSession

LOGPROB_BYTES = 11
TRIAL_BYTES = 2048
"""Evidence per trial, from above: base64 of id and logprob of a token and of each alternative is
10.7 bytes; keys, digests and the answer's text stay below 2 KiB for ordinary answers."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A certificate, where it and its evidence are, and what was set aside for it."""

    certificate: Certificate
    paths: CellPaths
    set_aside: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a run behaves towards its surroundings: who is told, time limits, early ends."""

    observer: RunObserver
    request_timeout_s: float
    stop_rules: StopRules


def evidence_bytes(header: Header) -> int:
    """An upper estimate of the evidence file's size, for the disk guard."""
    sampling = header.plan.sampling
    n = sum(p.n_requests for p in header.plan.passes) + header.plan.confirm_limit
    tokens = max([sampling.max_tokens, *(i.max_tokens or 0 for i in header.workset.items)])
    return n * (TRIAL_BYTES + tokens * (LOGPROB_BYTES * (1 + sampling.top_logprobs) + 8))


def produce(
    header: Header,
    launcher: Launcher,
    scorer: Scorer,
    out_dir: Path,
    conduct: Conduct,
    shared: Origin | None = None,
) -> Produced:
    """Runs the cell in `out_dir`, then derives its certificate from the evidence just written.

    With a `shared` arm its records are copied in the place of arms A and A2. The cell's older
    certificate and evidence are renamed first, so that a stale GREEN never stands for a run that
    failed. Raises what `run_cell`, the disk guard and the out-dir's checks raise, and EvidenceError
    for a shared arm of another cell; the evidence that was written by then stays.
    """
    if shared is not None:
        check_shareable(header, shared)
    check_disk(out_dir, evidence_bytes(header))
    prepare_out_dir(out_dir)
    paths = cell_paths(out_dir, header.cell.model, header.cell.ctx, header.cell.dispatch_n)

    def whole(recorder: Recorder) -> None:
        recorder.write(header)
        if shared is not None:
            copy_origin(recorder, shared)
            if shared.ended != COMPLETE:
                close_run(recorder, shared.ended)
                return
        earlier = FRESH if shared is None else shared.earlier
        run_cell(recorder, launcher, conduct.request_timeout_s, earlier)

    with CellLock(paths):
        moved = set_aside([paths.certificate, paths.evidence])
        with EvidenceWriter(paths.evidence) as writer:
            _run(writer, header, scorer, conduct, whole)
        return _certified(paths, moved)


def produce_shared(
    header: Header, launcher: Launcher, scorer: Scorer, out_dir: Path, conduct: Conduct
) -> Origin:
    """Runs arms A and A2 of a cell alone, in a file that every N of it can share.

    An older file of that name is renamed first. Raises what `run_cell` raises.
    """
    alone = shared_header(header)
    check_disk(out_dir, evidence_bytes(alone))
    prepare_out_dir(out_dir)
    paths = shared_arm_paths(out_dir, header.cell.model, header.cell.ctx)

    def whole(recorder: Recorder) -> None:
        recorder.write(alone)
        run_cell(recorder, launcher, conduct.request_timeout_s, REFERENCE_ALONE)

    with CellLock(paths):
        set_aside([paths.evidence])
        with EvidenceWriter(paths.evidence) as writer:
            _run(writer, alone, scorer, conduct, whole)
        return read_origin(paths.evidence)


def resume(
    interruption: Interruption, launcher: Launcher, scorer: Scorer, out_dir: Path, conduct: Conduct
) -> Produced:
    """Goes on with an interrupted run in the file that it left, then derives its certificate.

    Raises what `produce` raises.
    """
    header = interruption.header
    check_disk(out_dir, evidence_bytes(header))
    paths = cell_paths(out_dir, header.cell.model, header.cell.ctx, header.cell.dispatch_n)
    with CellLock(paths):
        moved = set_aside([paths.certificate])
        _go_on(paths, interruption, interruption.earlier, launcher, scorer, conduct)
        return _certified(paths, moved)


def resume_shared(
    interruption: Interruption, launcher: Launcher, scorer: Scorer, out_dir: Path, conduct: Conduct
) -> Origin:
    """Goes on with an interrupted run of `produce_shared`. Raises what that raises."""
    header = interruption.header
    check_disk(out_dir, evidence_bytes(header))
    paths = shared_arm_paths(out_dir, header.cell.model, header.cell.ctx)
    earlier = replace(interruption.earlier, control=True)
    with CellLock(paths):
        _go_on(paths, interruption, earlier, launcher, scorer, conduct)
        return read_origin(paths.evidence)


def _go_on(
    paths: CellPaths,
    interruption: Interruption,
    earlier: Earlier,
    launcher: Launcher,
    scorer: Scorer,
    conduct: Conduct,
) -> None:
    def rest(recorder: Recorder) -> None:
        go_on(recorder, interruption)
        run_cell(recorder, launcher, conduct.request_timeout_s, earlier)

    with EvidenceWriter(paths.evidence, interruption.written) as writer:
        _run(writer, interruption.header, scorer, conduct, rest)


def _run(
    writer: EvidenceWriter,
    header: Header,
    scorer: Scorer,
    conduct: Conduct,
    what: Callable[[Recorder], None],
) -> None:
    session = ScoringSession(scorer)
    recorder = Recorder(header, session, writer, conduct.observer, conduct.stop_rules)
    with deferred():
        what(recorder)
    for message in session.errors:
        conduct.observer.note(message)


def _certified(paths: CellPaths, moved: tuple[Path, ...]) -> Produced:
    certificate = certify(read_lines(paths.evidence), paths.evidence.name)
    write_atomic(paths.certificate, certificate.to_bytes())
    return Produced(certificate, paths, moved)
