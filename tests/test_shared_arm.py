"""Arms A and A2 run once for several N: what is copied, what binds it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batch_invariance.cli.main import main
from batch_invariance.errors import BatchInvarianceError, EvidenceError, Interrupted, ServerError
from batch_invariance.invariance_diff.certificate import Certificate, certify
from batch_invariance.invariance_diff.model import Arm, Completion, FailureKind, Trial, Verdict
from batch_invariance.invariance_diff.records import (
    ControlPlan,
    Event,
    Footer,
    Header,
    LifetimeStart,
    PassEnd,
    PassStart,
    Record,
    SharedArm,
)
from batch_invariance.invariance_diff.shared_arm import shared_header, sharing_faults
from batch_invariance.invariance_diff.verify import verify_certificate
from batch_invariance.live_invariance.evidence_file import read_lines
from batch_invariance.live_invariance.mock_answer import MockBehaviour
from batch_invariance.live_invariance.mock_launch import MockLauncher, MockRunning
from batch_invariance.live_invariance.produce import Conduct, Produced, produce, resume
from batch_invariance.live_invariance.produce_shared import (
    produce_shared,
    produce_sharing,
    resume_shared,
)
from batch_invariance.live_invariance.recording import StopRules
from batch_invariance.live_invariance.resume import read_interrupted
from batch_invariance.live_invariance.shared_arm import Origin, read_origin
from batch_invariance.live_invariance.store import cell_paths, previous_path, shared_arm_path
from batch_invariance.scorer_api import ExactMatch
from core_fixtures import Records, decode, encode, lost, recertify
from driver_fixtures import CTX, mock_header

SCORER = ExactMatch()


class Observer:
    """Counts trials, and interrupts after so many."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.n_trials = 0

    def stage(self, text: str) -> None: ...

    def trial(self, trial: Trial, divergent: bool) -> None:
        self.n_trials += 1
        if self.n_trials == self.after:
            raise Interrupted(15)

    def event(self, event: Event) -> None: ...

    def note(self, text: str) -> None: ...


class CountingLauncher:
    """A mock launcher that remembers the slots of every launch."""

    def __init__(self) -> None:
        self._mock = MockLauncher(CTX, MockBehaviour(gather_s=0.005))
        self.launches: list[int] = []

    def launch(self, parallel: int) -> MockRunning:
        self.launches.append(parallel)
        return self._mock.launch(parallel)


def conduct(after: int | None = None, on_lost: bool = False) -> Conduct:
    return Conduct(Observer(after), 30.0, StopRules(on_lost=on_lost))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def origin(folder: Path) -> Origin:
    return produce_shared(mock_header(), CountingLauncher(), SCORER, folder, conduct())


@pytest.fixture(scope="module")
def cell(folder: Path, origin: Origin) -> Produced:
    return produce_sharing(mock_header(), CountingLauncher(), SCORER, folder, conduct(), origin)


@pytest.fixture(scope="module")
def records(cell: Produced) -> Records:
    return decode(read_lines(cell.paths.evidence))


def borne_out(produced: Produced) -> bool:
    data = produced.paths.certificate.read_bytes()
    return verify_certificate(data, read_lines(produced.paths.evidence)).borne_out


def first_trial(records: Records) -> Trial:
    return next(r for r in records if isinstance(r, Trial))


def test_every_n_takes_the_same_arm_and_launches_its_own_server_alone(tmp_path: Path) -> None:
    launcher = CountingLauncher()
    header = mock_header()
    shared = produce_shared(header, launcher, SCORER, tmp_path, conduct())
    assert launcher.launches == [1]
    cells = {}
    for n in (2, 4):
        observer = Observer()
        quiet = Conduct(observer, 30.0, StopRules())
        cells[n] = produce_sharing(
            mock_header(parallel=n), launcher, SCORER, tmp_path, quiet, shared
        )
        # The copied trials are not sent again: what ran is warm-up, B, C and the control.
        assert observer.n_trials == n + 10 + 2 * 10 + n + (2 if n == 4 else 0)
    assert launcher.launches == [1, 2, 4]
    for n, produced in cells.items():
        cert = produced.certificate
        assert cert.verdict is Verdict.GREEN, cert.decision_reasons
        assert cert.promotable
        assert cert.dispatch_n == n
        assert [life.start.parallel for life in cert.lifetimes] == [1, n]
        (ref,) = cert.shared_arms
        assert (ref.file, ref.sha256) == (shared.path.name, shared.record.sha256)
        assert borne_out(produced)
    # Nothing but the copy is needed.
    shared.path.unlink()
    assert all(borne_out(produced) for produced in cells.values())
    assert main(["verify-cert", str(cells[2].paths.certificate)]) == 0


def test_the_certificate_is_that_of_a_run_alone_but_for_where_arm_a_comes_from(
    cell: Produced, tmp_path: Path
) -> None:
    alone = produce(mock_header(), CountingLauncher(), SCORER, tmp_path, conduct())
    ours, theirs = cell.certificate.to_json(), alone.certificate.to_json()
    assert ours.keys() - theirs.keys() == {"shared_arms"}
    assert theirs.keys() <= ours.keys()
    measured = {"evidence", "lifetimes", "shared_arms", "throughput", "ts_utc", "schedule_space"}
    measured |= {"gates", "overlap", "controls", "horizon", "cobatch_coverage", "rows"}
    measured |= {"sensitivity"}
    for name in theirs.keys() - measured:
        assert ours[name] == theirs[name], name
    assert [g["outcome"] for g in ours["gates"]] == [g["outcome"] for g in theirs["gates"]]


def test_the_copy_is_the_origin_line_by_line(origin: Origin, records: Records) -> None:
    copied = records[2 : 2 + origin.record.n_records]
    assert decode(read_lines(origin.path))[1:-1] == copied
    assert isinstance(records[1], SharedArm)
    assert {r.arm for r in copied if isinstance(r, PassEnd)} == {Arm.WARMUP, Arm.A, Arm.A2}


def renamed(trial: Trial) -> Trial:
    assert isinstance(trial.result, Completion)
    return replace(trial, result=replace(trial.result, text="another"))


def change_first_trial(records: Records) -> Records:
    trial = first_trial(records)
    return tuple(renamed(trial) if r is trial else r for r in records)


def drop_one(records: Records) -> Records:
    place = next(i for i, r in enumerate(records) if isinstance(r, Trial))
    return records[:place] + records[place + 1 :]


def change_shared(**changes: object) -> Callable[[Records], Records]:
    def changed(records: Records) -> Records:
        shared = records[1]
        assert isinstance(shared, SharedArm)
        return (records[0], replace(shared, **changes), *records[2:])  # type: ignore[arg-type]

    return changed


def change_header(change: Callable[[Header], Header]) -> Callable[[Records], Records]:
    def changed(records: Records) -> Records:
        header = records[0]
        assert isinstance(header, Header)
        return (change(header), *records[1:])

    return changed


def foreign(record: Record) -> Callable[[Records], Records]:
    def added(records: Records) -> Records:
        return (*records[:3], record, *records[3:])

    return added


def a_pass_of_b(records: Records) -> Records:
    place = next(i for i, r in enumerate(records) if isinstance(r, PassStart))
    start = records[place]
    assert isinstance(start, PassStart)
    return (*records[:place], replace(start, arm=Arm.B), *records[place + 1 :])


def shared_twice(records: Records) -> Records:
    end = next(i for i, r in enumerate(records) if isinstance(r, LifetimeStart) and r.index == 1)
    return (*records[:end], records[1], *records[end:])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (change_first_trial, "the copied records are not those of its origin"),
        (drop_one, "not of arms A and A2|not those of its origin|its footer"),
        (change_shared(sha256="0" * 64), "not those of its origin"),
        (change_shared(ts_utc="2020-01-01T00:00:00Z"), "not those of its origin"),
        (change_shared(model_sha256_from="cache"), "not those of its origin"),
        (change_shared(n_records=0), "nothing was copied"),
        (change_shared(n_records=9), "its footer"),
        (change_shared(n_records=9999), "not of arms A and A2"),
        (
            change_header(lambda h: replace(h, cell=replace(h.cell, ctx=1024))),
            "not those of its origin for this cell",
        ),
        (
            change_header(lambda h: replace(h, cell=replace(h.cell, server_flags=("-fa", "on")))),
            "not those of its origin for this cell",
        ),
        (
            change_header(lambda h: replace(h, observer=replace(h.observer, cpu_count=999))),
            "this machine has 999",
        ),
        (foreign(ControlPlan(0, 1, 0)), "not of arms A and A2"),
        (a_pass_of_b, "not of arms A and A2"),
        (shared_twice, "stands elsewhere than at the beginning"),
    ],
)
def test_what_is_not_the_origins_is_refused(
    records: Records, change: Callable[[Records], Records], said: str
) -> None:
    with pytest.raises(EvidenceError, match=said):
        recertify(change(records))


def test_a_copy_that_breaks_off_is_refused(records: Records, origin: Origin) -> None:
    assert origin.record.n_records > 20
    with pytest.raises(EvidenceError, match=f"19 of {origin.record.n_records} records are missing"):
        recertify(records[: 2 + origin.record.n_records - 19])


def test_an_edited_line_breaks_the_chain_before_all_else(cell: Produced) -> None:
    data = cell.paths.evidence.read_bytes()
    assert b"Question 0" in data
    with pytest.raises(EvidenceError, match="breaks the chain"):
        certify(data.replace(b"Question 0", b"Question 9").splitlines(keepends=True), "x")


def test_a_shared_arm_of_another_cell_is_refused_before_anything_is_written(
    origin: Origin, tmp_path: Path
) -> None:
    header = mock_header()
    others = {
        "cell.ctx": replace(header, cell=replace(header.cell, ctx=1024)),
        "cell.kv_type_k": replace(header, cell=replace(header.cell, kv_type_k="q8_0")),
        "cell.server_flags": replace(header, cell=replace(header.cell, server_flags=("-fa",))),
        "cell.model": replace(header, cell=replace(header.cell, model="other")),
        "subject.server_sha256": replace(
            header, subject=replace(header.subject, server_sha256="9" * 64)
        ),
        "plan.sampling.max_tokens": replace(
            header,
            plan=replace(header.plan, sampling=replace(header.plan.sampling, max_tokens=99)),
        ),
        "workset.sha256": mock_header(n_items=12),
        "observer.processor": replace(
            header, observer=replace(header.observer, processor="another")
        ),
    }
    for name, other in others.items():
        with pytest.raises(EvidenceError, match="of another cell") as caught:
            produce_sharing(other, CountingLauncher(), SCORER, tmp_path, conduct(), origin)
        assert f"{name} is " in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert sharing_faults(mock_header(parallel=8), origin.header) == []


def test_a_missing_origin_is_said(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="is not there; run it again"):
        read_origin(tmp_path / "toy__ctx512__A.evidence.jsonl")


def test_an_origin_that_changes_while_it_is_copied_is_seen(tmp_path: Path) -> None:
    shared = produce_shared(mock_header(), CountingLauncher(), SCORER, tmp_path, conduct())
    lines = decode(read_lines(shared.path))
    shared.path.chmod(0o600)
    shared.path.write_bytes(b"".join(encode(change_first_trial(lines))))
    with pytest.raises(BatchInvarianceError, match="changed while it was copied"):
        produce_sharing(mock_header(), CountingLauncher(), SCORER, tmp_path, conduct(), shared)
    assert not list(tmp_path.glob("*.json"))


def test_an_interrupted_shared_arm_goes_on(tmp_path: Path) -> None:
    header = mock_header()
    with pytest.raises(Interrupted):
        produce_shared(header, CountingLauncher(), SCORER, tmp_path, conduct(14))
    path = shared_arm_path(tmp_path, header.cell.model, CTX)
    with pytest.raises(EvidenceError, match="was interrupted"):
        read_origin(path)
    launcher = CountingLauncher()
    shared = resume_shared(read_interrupted(path), launcher, SCORER, tmp_path, conduct())
    assert launcher.launches == [1]
    assert (shared.ended, shared.earlier.n_lifetimes) == ("complete", 2)
    produced = produce_sharing(header, launcher, SCORER, tmp_path, conduct(), shared)
    assert launcher.launches == [1, 4]
    cert = produced.certificate
    assert cert.verdict is Verdict.GREEN, cert.decision_reasons
    assert [life.start.index for life in cert.lifetimes] == [0, 1, 2]
    assert len(cert.resumed) == 1
    assert borne_out(produced)


def test_an_interrupted_cell_goes_on_with_its_copy(origin: Origin, tmp_path: Path) -> None:
    header = mock_header()
    with pytest.raises(Interrupted):
        produce_sharing(header, CountingLauncher(), SCORER, tmp_path, conduct(16), origin)
    path = cell_paths(tmp_path, "toy", CTX, 4).evidence
    launcher = CountingLauncher()
    produced = resume(read_interrupted(path), launcher, SCORER, tmp_path, conduct())
    assert launcher.launches == [4]
    cert: Certificate = produced.certificate
    assert cert.verdict is Verdict.GREEN, cert.decision_reasons
    assert len(cert.shared_arms) == len(cert.resumed) == 1
    assert borne_out(produced)


def test_a_cell_cut_off_inside_the_copy_is_run_again(records: Records, tmp_path: Path) -> None:
    path = tmp_path / "toy__ctx512__N4.evidence.jsonl"
    path.write_bytes(b"".join(encode(records[:12])))
    with pytest.raises(EvidenceError, match="while the shared arm was copied; run the cell again"):
        read_interrupted(path)


def test_a_lost_trial_of_the_shared_arm_counts_in_every_cell(
    origin: Origin, tmp_path: Path
) -> None:
    lines = decode(read_lines(origin.path))
    victim = next(r for r in lines if isinstance(r, Trial) and r.key.arm is Arm.A)
    broken = tuple(lost(FailureKind.CONNECTION)(r) if r is victim else r for r in lines)
    path = tmp_path / origin.path.name
    path.write_bytes(b"".join(encode(broken)))
    for n in (2, 4):
        header = mock_header(parallel=n)
        shared = read_origin(path)
        produced = produce_sharing(header, CountingLauncher(), SCORER, tmp_path, conduct(), shared)
        cert = produced.certificate
        assert cert.verdict is Verdict.UNVERIFIED
        assert [trial.id for trial in cert.lost_trials] == [victim.item_id]
        assert borne_out(produced)


def test_a_shared_arm_that_stopped_early_gives_no_cell_a_verdict_of_its_own(
    origin: Origin, tmp_path: Path
) -> None:
    lines = decode(read_lines(origin.path))
    cut = next(i for i, r in enumerate(lines) if isinstance(r, PassEnd) and r.arm is Arm.A)
    n_trials = sum(isinstance(r, Trial) for r in lines[: cut + 1])
    ended = (*lines[: cut + 1], Event("stopped", "by hand"), Footer("by hand", n_trials, 1.0))
    path = tmp_path / origin.path.name
    path.write_bytes(b"".join(encode(ended)))
    launcher = CountingLauncher()
    produced = produce_sharing(
        mock_header(), launcher, SCORER, tmp_path, conduct(), read_origin(path)
    )
    assert launcher.launches == []
    assert produced.certificate.verdict is Verdict.UNVERIFIED
    gate = next(g for g in produced.certificate.gates if g.gate == "completeness")
    assert "the shared arm ended early: by hand" in gate.measured
    assert borne_out(produced)


class DeadLauncher:
    """A server that cannot start."""

    def launch(self, parallel: int) -> MockRunning:
        raise ServerError("the server died at start")


def test_a_shared_arm_without_a_server_raises_and_keeps_what_was_written(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="died at start"):
        produce_shared(mock_header(), DeadLauncher(), SCORER, tmp_path, conduct())
    path = shared_arm_path(tmp_path, "toy", CTX)
    assert read_origin(path).ended == "ServerError: the run was not finished"
    # The next one begins afresh and keeps the older file.
    produce_shared(mock_header(), CountingLauncher(), SCORER, tmp_path, conduct())
    assert read_origin(path).ended == "complete"
    assert previous_path(path).is_file()


def test_the_shared_header_has_one_slot_and_two_arms() -> None:
    header = shared_header(mock_header(parallel=8))
    assert header.cell.dispatch_n == 1
    assert [plan.arm for plan in header.plan.passes] == [Arm.A, Arm.A2]
    assert header == replace(shared_header(mock_header(parallel=2)), ts_utc=header.ts_utc)


def test_a_certificate_that_shares_nothing_has_no_such_field(tmp_path: Path) -> None:
    produced = produce(mock_header(), CountingLauncher(), SCORER, tmp_path, conduct())
    assert "shared_arms" not in json.loads(produced.paths.certificate.read_bytes())
    assert borne_out(produced)
