"""From a prepared header to a certificate on disk: the one path that makes certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from batch_invariance.errors import EvidenceError
from batch_invariance.invariance_diff.certificate import Certificate, certify
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.records import Footer, Header, Record
from batch_invariance.invariance_diff.signature import SigningKey
from batch_invariance.live_invariance.evidence_file import EvidenceWriter, read_lines
from batch_invariance.live_invariance.host import check_disk
from batch_invariance.live_invariance.interrupts import deferred
from batch_invariance.live_invariance.recording import Recorder, RunObserver, StopRules
from batch_invariance.live_invariance.resume import Interruption, go_on, read_interrupted
from batch_invariance.live_invariance.run import run_cell
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.signing import set_aside_signed, write_signature
from batch_invariance.live_invariance.store import (
    CellPaths,
    OutDirLock,
    cell_paths,
    prepare_out_dir,
    write_atomic,
)
from batch_invariance.scorer_api import Scorer, ScoringSession

LOGPROB_BYTES = 11
TRIAL_BYTES = 2048
"""Evidence per trial, from above: base64 of id and logprob of a token and of each alternative is
10.7 bytes; keys, digests and the answer's text stay below 2 KiB for ordinary answers."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A certificate, where it and its evidence are, and its signature (None: it is not signed)."""

    certificate: Certificate
    paths: CellPaths
    signature: Path | None = None


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a run behaves towards its surroundings: who is told, time limits, early ends, and the key
    that signs its certificate, None for none."""

    observer: RunObserver
    request_timeout_s: float
    stop_rules: StopRules
    key: SigningKey | None = None


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
) -> Produced:
    """`produce_by` of a cell whose servers `launcher` starts."""
    timeout_s = conduct.request_timeout_s

    def run(recorder: Recorder) -> None:
        run_cell(recorder, launcher, timeout_s)

    return produce_by(header, run, scorer, out_dir, conduct)


def produce_by(
    header: Header,
    run: Callable[[Recorder], None],
    scorer: Scorer,
    out_dir: Path,
    conduct: Conduct,
) -> Produced:
    """Has `run` write the evidence in `out_dir`, then derives the certificate from it and signs
    it as `conduct` says.

    The cell's older certificate and evidence are renamed first, so that a stale GREEN never
    stands for a run that failed. Raises what `run`, the disk guard and the out-dir's checks
    raise; the evidence that was written by then stays.
    """
    check_disk(out_dir, evidence_bytes(header))
    prepare_out_dir(out_dir)
    paths = cell_paths(out_dir, header.cell.model, header.cell.ctx, header.cell.dispatch_n)
    with OutDirLock(out_dir):
        set_aside_signed(paths.certificate, [paths.evidence])
        with EvidenceWriter(paths.evidence) as writer:
            record_run(writer, header, scorer, conduct, run)
        return _certified(paths, conduct.key)


def resume(
    interruption: Interruption,
    launcher: Launcher,
    scorer: Scorer,
    out_dir: Path,
    conduct: Conduct,
) -> Produced:
    """Goes on with an interrupted run in the file that it left, then derives its certificate and
    signs it as `conduct` says.

    Raises what `produce` raises, and EvidenceError where the file is no longer what was read.
    """
    header = interruption.header

    def rest(recorder: Recorder) -> None:
        go_on(recorder, interruption)
        run_cell(recorder, launcher, conduct.request_timeout_s, interruption.earlier)

    check_disk(out_dir, evidence_bytes(header))
    paths = cell_paths(out_dir, header.cell.model, header.cell.ctx, header.cell.dispatch_n)
    with OutDirLock(out_dir):
        if read_interrupted(paths.evidence).written != interruption.written:
            raise EvidenceError(
                f"evidence {paths.evidence.name}",
                ["another run has written to it meanwhile; resume it again"],
            )
        set_aside_signed(paths.certificate)
        with EvidenceWriter(paths.evidence, interruption.written) as writer:
            record_run(writer, header, scorer, conduct, rest)
        return _certified(paths, conduct.key)


def certify_ended(evidence: Path, key: SigningKey | None = None) -> Produced | None:
    """The certificate of a run that was ended between its last record and its certificate.

    None where there is a certificate, or the evidence does not reach its end. Raises what `produce`
    raises at its end.
    """
    header = _header_of_ended(evidence)
    if header is None:
        return None
    cell = header.cell
    paths = cell_paths(evidence.parent, cell.model, cell.ctx, cell.dispatch_n)
    if paths.evidence.name != evidence.name:
        return None
    with OutDirLock(evidence.parent):
        return None if paths.certificate.exists() else _certified(paths, key)


def _header_of_ended(evidence: Path) -> Header | None:
    """The header of evidence that is whole; None of any other file."""
    header: Header | None = None
    last: Record | None = None
    try:
        for last in EvidenceReader(read_lines(evidence)):
            header = last if isinstance(last, Header) else header
    except EvidenceError:
        return None
    return header if isinstance(last, Footer) else None


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


def _certified(paths: CellPaths, key: SigningKey | None) -> Produced:
    certificate = certify(read_lines(paths.evidence), paths.evidence.name)
    data = certificate.to_bytes()
    write_atomic(paths.certificate, data)
    signature = None if key is None else write_signature(paths.certificate, data, key)
    return Produced(certificate, paths, signature)
