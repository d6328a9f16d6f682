"""From a prepared header to a certificate on disk: the one path that makes certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.invariance_diff.certificate import Certificate, certify
from batch_invariance.invariance_diff.records import Header
from batch_invariance.live_invariance.evidence_file import EvidenceWriter, read_lines
from batch_invariance.live_invariance.host import check_disk
from batch_invariance.live_invariance.interrupts import deferred
from batch_invariance.live_invariance.recording import Recorder, RunObserver, StopRules
from batch_invariance.live_invariance.resume import Interruption, go_on
from batch_invariance.live_invariance.run import run_cell
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.store import (
    CellLock,
    CellPaths,
    cell_paths,
    prepare_out_dir,
    set_aside,
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
    header: Header, launcher: Launcher, scorer: Scorer, out_dir: Path, conduct: Conduct
) -> Produced:
    """`produce_by` of a cell whose servers `launcher` starts."""
    return produce_by(
        header,
        lambda recorder: run_cell(recorder, launcher, conduct.request_timeout_s),
        scorer,
        out_dir,
        conduct,
    )


def produce_by(
    header: Header,
    run: Callable[[Recorder], None],
    scorer: Scorer,
    out_dir: Path,
    conduct: Conduct,
) -> Produced:
    """Has `run` write the evidence in `out_dir`, then derives the certificate from it.

    The cell's older certificate and evidence are renamed first, so that a stale GREEN never
    stands for a run that failed. Raises what `run`, the disk guard and the out-dir's checks
    raise; the evidence that was written by then stays.
    """
    check_disk(out_dir, evidence_bytes(header))
    prepare_out_dir(out_dir)
    paths = cell_paths(out_dir, header.cell.model, header.cell.ctx, header.cell.dispatch_n)
    with CellLock(paths):
        moved = set_aside([paths.certificate, paths.evidence])
        with EvidenceWriter(paths.evidence) as writer:
            record_run(writer, header, scorer, conduct, run)
        return _certified(paths, moved)


def resume(
    interruption: Interruption, launcher: Launcher, scorer: Scorer, out_dir: Path, conduct: Conduct
) -> Produced:
    """Goes on with an interrupted run in the file that it left, then derives its certificate.

    Raises what `produce` raises.
    """
    header = interruption.header

    def rest(recorder: Recorder) -> None:
        go_on(recorder, interruption)
        run_cell(recorder, launcher, conduct.request_timeout_s, interruption.earlier)

    check_disk(out_dir, evidence_bytes(header))
    paths = cell_paths(out_dir, header.cell.model, header.cell.ctx, header.cell.dispatch_n)
    with CellLock(paths):
        moved = set_aside([paths.certificate])
        with EvidenceWriter(paths.evidence, interruption.written) as writer:
            record_run(writer, header, scorer, conduct, rest)
        return _certified(paths, moved)


def record_run(
    writer: EvidenceWriter,
    header: Header,
    scorer: Scorer,
    conduct: Conduct,
    what: Callable[[Recorder], None],
) -> None:
    """Has `what` write a run, with signals kept until it is safe to raise them."""
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
