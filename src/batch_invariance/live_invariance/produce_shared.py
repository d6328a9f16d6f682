"""Arms A and A2 alone, for every N of a cell, and a cell that takes them from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from batch_invariance.invariance_diff.records import COMPLETE, Header
from batch_invariance.invariance_diff.shared_arm import shared_header
from batch_invariance.live_invariance.evidence_file import EvidenceWriter, Written
from batch_invariance.live_invariance.host import check_disk
from batch_invariance.live_invariance.produce import (
    Conduct,
    Produced,
    evidence_bytes,
    produce_by,
    record_run,
)
from batch_invariance.live_invariance.recording import Recorder, StopRun
from batch_invariance.live_invariance.resume import Interruption, go_on
from batch_invariance.live_invariance.run import REFERENCE_ALONE, conclude, run_cell
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.shared_arm import (
    Origin,
    check_shareable,
    copy_origin,
    read_origin,
)
from batch_invariance.live_invariance.store import (
    OutDirLock,
    prepare_out_dir,
    set_aside,
    shared_arm_path,
)
from batch_invariance.scorer_api import Scorer


def produce_shared(
    header: Header, launcher: Launcher, scorer: Scorer, out_dir: Path, conduct: Conduct
) -> Origin:
    """Runs arms A and A2 of a cell in a file of their own.

    An older file of that name is renamed first. Raises what `run_cell`, the disk guard and the
    out-dir's checks raise.
    """
    alone = shared_header(header)

    def whole(recorder: Recorder) -> None:
        recorder.write(alone)
        run_cell(recorder, launcher, conduct.request_timeout_s, REFERENCE_ALONE)

    return _written(alone, whole, scorer, out_dir, conduct, None)


def resume_shared(
    interruption: Interruption, launcher: Launcher, scorer: Scorer, out_dir: Path, conduct: Conduct
) -> Origin:
    """Goes on with an interrupted run of `produce_shared`. Raises what that raises."""
    earlier = replace(interruption.earlier, control=True)

    def rest(recorder: Recorder) -> None:
        go_on(recorder, interruption)
        run_cell(recorder, launcher, conduct.request_timeout_s, earlier)

    return _written(interruption.header, rest, scorer, out_dir, conduct, interruption.written)


def produce_sharing(
    header: Header,
    launcher: Launcher,
    scorer: Scorer,
    out_dir: Path,
    conduct: Conduct,
    origin: Origin,
) -> Produced:
    """`produce` of a cell that copies its arms A and A2 from `origin`.

    Raises EvidenceError for the shared arm of another cell, before anything is written.
    """
    check_shareable(header, origin)

    def stopped() -> None:
        raise StopRun(origin.ended)

    def whole(recorder: Recorder) -> None:
        recorder.write(header)
        copy_origin(recorder, origin)
        if origin.ended == COMPLETE:
            run_cell(recorder, launcher, conduct.request_timeout_s, origin.earlier)
        else:
            conclude(recorder, stopped)

    return produce_by(header, whole, scorer, out_dir, conduct)


def _written(
    alone: Header,
    run: Callable[[Recorder], None],
    scorer: Scorer,
    out_dir: Path,
    conduct: Conduct,
    written: Written | None,
) -> Origin:
    check_disk(out_dir, evidence_bytes(alone))
    prepare_out_dir(out_dir)
    path = shared_arm_path(out_dir, alone.cell.model, alone.cell.ctx)
    with OutDirLock(out_dir):
        if written is None:
            set_aside([path])
        with EvidenceWriter(path, written) as writer:
            record_run(writer, alone, scorer, conduct, run)
        return read_origin(path)
