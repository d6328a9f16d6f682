"""Going on with an interrupted run, wherever it was cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batch_invariance.cli.main import main
from batch_invariance.errors import EvidenceError, Interrupted
from batch_invariance.invariance_diff.certificate import Certificate
from batch_invariance.invariance_diff.evidence import EvidenceReader
from batch_invariance.invariance_diff.model import Arm, Source, Trial, Verdict
from batch_invariance.invariance_diff.records import Event, Footer, Header, PassEnd, Resumed
from batch_invariance.invariance_diff.verify import verify_certificate
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from batch_invariance.live_invariance.mock_launch import MockLauncher
from batch_invariance.live_invariance.produce import (
    Conduct,
    Produced,
    certify_ended,
    produce,
    resume,
)
from batch_invariance.live_invariance.recording import StopRules
from batch_invariance.live_invariance.resume import read_interrupted
from batch_invariance.live_invariance.store import cell_paths
from batch_invariance.scorer_api import ExactMatch
from core_fixtures import encode, lost
from driver_fixtures import CTX, mock_header


class Observer:
    """Interrupts after so many trials."""

    def __init__(self, after: int | None = None) -> None:
        self.left = after

    def stage(self, text: str) -> None:
        pass

    def trial(self, trial: Trial, divergent: bool) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Interrupted(15)

    def event(self, event: Event) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def conduct(after: int | None = None) -> Conduct:
    return Conduct(Observer(after), 30.0, StopRules())


def launcher(kind: BatchDivergence = BatchDivergence.NONE) -> MockLauncher:
    return MockLauncher(CTX, MockBehaviour(kind, tick_s=0.0, gather_s=0.005))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Produced:
    folder = tmp_path_factory.mktemp("whole")
    return produce(mock_header(), launcher(), ExactMatch(), folder, conduct())


def path_in(folder: Path, header: Header) -> Path:
    return cell_paths(folder, header.cell.model, header.cell.ctx, header.cell.dispatch_n).evidence


def go_on(folder: Path, kind: BatchDivergence = BatchDivergence.NONE) -> Certificate:
    """Resumes the one run in the folder and checks its certificate against its evidence."""
    evidence = next(folder.glob("*.evidence.jsonl"))
    interruption = read_interrupted(evidence)
    produced = resume(interruption, launcher(kind), ExactMatch(), folder, conduct())
    data = produced.paths.certificate.read_bytes()
    assert verify_certificate(data, read_lines(produced.paths.evidence)).problems == ()
    return produced.certificate


def records(path: Path) -> list[object]:
    return list(EvidenceReader(read_lines(path)))


@pytest.mark.parametrize("after", [1, 3, 10, 17, 25, 30, 40, 55, 60])
def test_a_run_that_a_signal_ended_goes_on_to_its_verdict(after: int, tmp_path: Path) -> None:
    header = mock_header()
    with pytest.raises(Interrupted):
        produce(header, launcher(), ExactMatch(), tmp_path, conduct(after))
    partial = records(path_in(tmp_path, header))
    assert not any(isinstance(record, Footer) for record in partial)
    assert isinstance(partial[-1], Event) or any(
        isinstance(r, Event) and r.what == "interrupted" for r in partial
    )
    certificate = go_on(tmp_path)
    assert certificate.verdict is Verdict.GREEN, certificate.decision_reasons
    assert len(certificate.resumed) == 1
    assert certificate.n_void_passes == 1
    # A pass that was complete before is not run again.
    done = {(r.arm, r.pass_index) for r in partial if isinstance(r, PassEnd)}
    later = records(path_in(tmp_path, header))[len(partial) :]
    assert isinstance(later[0], Resumed)
    again = {(r.arm, r.pass_index) for r in later if isinstance(r, PassEnd)}
    assert not {p for p in done & again if p[0] is not Arm.WARMUP}


def cuts(data: bytes, n: int) -> Iterator[int]:
    first = data.index(b"\n") + 1
    return iter(range(first, len(data) - 1, max(1, (len(data) - first) // n)))


def test_a_run_that_was_killed_goes_on_wherever_its_file_ends(
    tmp_path: Path, whole: Produced
) -> None:
    data = whole.paths.evidence.read_bytes()
    for number, cut in enumerate(cuts(data, 12)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / whole.paths.evidence.name).write_bytes(data[:cut])
        certificate = go_on(folder)
        assert certificate.verdict is Verdict.GREEN, (cut, certificate.decision_reasons)
        assert len(certificate.resumed) == 1


def test_it_can_be_interrupted_again(tmp_path: Path) -> None:
    header = mock_header()
    with pytest.raises(Interrupted):
        produce(header, launcher(), ExactMatch(), tmp_path, conduct(12))
    evidence = path_in(tmp_path, header)
    with pytest.raises(Interrupted):
        resume(read_interrupted(evidence), launcher(), ExactMatch(), tmp_path, conduct(20))
    certificate = go_on(tmp_path)
    assert certificate.verdict is Verdict.GREEN
    assert len(certificate.resumed) == 2


def test_a_run_that_another_has_gone_on_with_is_left_to_it(tmp_path: Path) -> None:
    header = mock_header()
    with pytest.raises(Interrupted):
        produce(header, launcher(), ExactMatch(), tmp_path, conduct(12))
    evidence = path_in(tmp_path, header)
    read_before = read_interrupted(evidence)
    with pytest.raises(Interrupted):
        resume(read_before, launcher(), ExactMatch(), tmp_path, conduct(3))
    for why in ("another run has written to it meanwhile", "the run has ended"):
        data = evidence.read_bytes()
        with pytest.raises(EvidenceError, match=why):
            resume(read_before, launcher(), ExactMatch(), tmp_path, conduct())
        assert evidence.read_bytes() == data
        if why.startswith("another"):
            go_on(tmp_path)


def test_a_divergence_in_a_void_pass_still_counts(tmp_path: Path) -> None:
    header = mock_header()
    first_c = 3 * len(header.workset.items) + 8
    with pytest.raises(Interrupted):
        produce(header, launcher(BatchDivergence.SCORE), ExactMatch(), tmp_path, conduct(first_c))
    evidence = path_in(tmp_path, header)
    trials = [r for r in records(evidence) if isinstance(r, Trial)]
    assert trials[-1].key.arm is Arm.C
    # The server that goes on shows no divergence at all.
    certificate = go_on(tmp_path)
    assert certificate.n_void_passes == 1
    assert certificate.verdict is Verdict.RED
    assert certificate.sensitivity.n_ac_divergent > 0


@pytest.mark.parametrize("arm", [Arm.A, Arm.A2, Arm.B])
def test_a_reference_that_changed_over_the_interruption_is_seen(
    arm: Arm, tmp_path: Path, whole: Produced
) -> None:
    """The remnant of a serial arm differs from the same arm run again."""
    lines = whole.paths.evidence.read_bytes().splitlines(keepends=True)
    kept: list[object] = []
    for record in EvidenceReader(lines):
        kept.append(record)
        if isinstance(record, Trial) and record.key.arm is arm:
            break
    trial = kept[-1]
    assert isinstance(trial, Trial)
    result = trial.result
    kept[-1] = replace(trial, result=replace(result, text="another"))  # type: ignore[type-var]
    (tmp_path / whole.paths.evidence.name).write_bytes(b"".join(encode(kept)))  # type: ignore[arg-type]
    certificate = go_on(tmp_path)
    assert certificate.verdict is not Verdict.GREEN
    gate = "control_b" if arm is Arm.B else "reference"
    assert any(reason.startswith(gate) for reason in certificate.decision_reasons)


def test_a_run_that_lacks_its_certificate_alone_gets_it(
    tmp_path: Path, whole: Produced, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = tmp_path / whole.paths.evidence.name
    data = whole.paths.evidence.read_bytes()
    evidence.write_bytes(data)
    # The whole run is a mock's, which has no server to launch: none is.
    assert main(["resume", str(evidence)]) in (0, 3)
    assert capsys.readouterr().out.startswith(whole.certificate.verdict.value)
    certificate = tmp_path / whole.paths.certificate.name
    assert certificate.read_bytes() == whole.paths.certificate.read_bytes()
    assert evidence.read_bytes() == data
    certificate.write_bytes(b"{}")
    assert main(["resume", str(evidence)]) == 1
    assert certificate.read_bytes() == b"{}"
    certificate.unlink()
    evidence.write_bytes(data[: data.rindex(b"\n", 0, len(data) - 1) + 1])
    assert certify_ended(evidence) is None
    assert not certificate.exists()


def test_what_cannot_go_on_is_refused(tmp_path: Path, whole: Produced) -> None:
    with pytest.raises(EvidenceError, match="the run has ended: complete"):
        read_interrupted(whole.paths.evidence)
    path = tmp_path / "x.evidence.jsonl"
    path.write_bytes(b"")
    with pytest.raises(EvidenceError, match="not one whole line"):
        read_interrupted(path)
    path.write_bytes(b"{}\n")
    with pytest.raises(EvidenceError):
        read_interrupted(path)
    data = whole.paths.evidence.read_bytes()
    cut = data[: data.rindex(b"\n", 0, len(data) - 1) + 1]
    path.write_bytes(cut.replace(b'"rules_version":2', b'"rules_version":1', 1))
    with pytest.raises(EvidenceError):
        read_interrupted(path)


def test_a_lost_trial_ends_a_run_for_good(tmp_path: Path) -> None:
    header = mock_header()
    with pytest.raises(Interrupted):
        produce(header, launcher(), ExactMatch(), tmp_path, conduct(12))
    evidence = path_in(tmp_path, header)
    found = list(EvidenceReader(read_lines(evidence)))
    place = next(i for i, r in enumerate(found) if isinstance(r, Trial) and r.key.arm is Arm.A)
    trial = found[place]
    assert isinstance(trial, Trial)
    found[place] = lost()(trial)
    evidence.write_bytes(b"".join(encode(found)))
    with pytest.raises(EvidenceError, match="was lost in arm A"):
        read_interrupted(evidence)


def test_the_verb_refuses_a_mock_and_a_renamed_file(
    tmp_path: Path, whole: Produced, capsys: pytest.CaptureFixture[str]
) -> None:
    data = whole.paths.evidence.read_bytes()
    cut = data[: len(data) // 2]
    renamed = tmp_path / "other.evidence.jsonl"
    renamed.write_bytes(cut)
    assert main(["resume", str(renamed)]) == 2
    assert "rename it first" in capsys.readouterr().err
    path = tmp_path / whole.paths.evidence.name
    path.write_bytes(cut)
    assert main(["resume", str(path), "--json", "--server-bin", "/bin/no-such-server"]) == 2
    shown = capsys.readouterr()
    assert "/bin/no-such-server" in shown.err
    assert json.loads(shown.out)["exit_code"] == 2
    assert path.read_bytes() == cut


def test_a_mock_run_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = mock_header(source=Source.MOCK)
    with pytest.raises(Interrupted):
        produce(header, launcher(), ExactMatch(), tmp_path, conduct(12))
    assert main(["resume", str(path_in(tmp_path, header))]) == 2
    assert "a mock run has no server to launch again" in capsys.readouterr().err
