"""A sweep over mock cells: what is run, in which order, what is kept, and what a failure costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from batch_invariance.cli.cert_files import find_certificates, verify_file
from batch_invariance.errors import (
    FileFormatError,
    GuardRefused,
    Interrupted,
    ServerError,
    UsageError,
)
from batch_invariance.invariance_diff.matrix_index import (
    INDEX_NAME,
    MatrixIndex,
    RunState,
    parse_index,
)
from batch_invariance.invariance_diff.model import Verdict
from batch_invariance.invariance_diff.records import Header
from batch_invariance.invariance_diff.verify import REQUIRED_FIELDS
from batch_invariance.live_invariance.binaries import replaced_libraries
from batch_invariance.live_invariance.digests import file_sha256
from batch_invariance.live_invariance.mock_answer import BatchDivergence, MockBehaviour
from batch_invariance.live_invariance.server import Launcher
from batch_invariance.live_invariance.store import OutDirLock
from batch_invariance.live_invariance.sweep_plan import Costs, tasks_of
from batch_invariance.live_invariance.sweep_state import SweepGroup, standing_of
from sweep_fixtures import QUICK, Launches, Watcher, mock_group, sweep

ARM = "default/toy__ctx512__A.evidence.jsonl"
N2, N4 = "default/toy__ctx512__N2.json", "default/toy__ctx512__N4.json"


def states(index: MatrixIndex) -> dict[str, RunState]:
    return {entry.file: entry.state for entry in index.cells}


def index_in(out_dir: Path) -> MatrixIndex:
    return parse_index((out_dir / INDEX_NAME).read_bytes(), INDEX_NAME)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MatrixIndex, Launches, Watcher]:
    """Two flag sets, one of which diverges, each at N = 2 and 4."""
    out_dir, launches, watcher = tmp_path_factory.mktemp("whole"), Launches(), Watcher()
    green = MockBehaviour(gather_s=0.005)
    red = MockBehaviour(BatchDivergence.SCORE, gather_s=0.005)
    groups = [
        mock_group(launches, behaviour=green),
        mock_group(launches, "on", behaviour=red, flags=("-fa", "on")),
    ]
    return out_dir, sweep(groups, out_dir, watcher).run(), launches, watcher


def test_each_shared_arm_and_each_cell_starts_one_server(
    whole: tuple[Path, MatrixIndex, Launches, Watcher],
) -> None:
    _, index, launches, watcher = whole
    assert launches.made == [
        *(("default", 1), ("default", 2), ("default", 4)),
        *(("on", 1), ("on", 2), ("on", 4)),
    ]
    assert [(begun[3].number, begun[3].arm) for begun in watcher.begun] == [
        *((1, True), (1, False), (2, False)),
        *((3, True), (3, False), (4, False)),
    ]
    left = [begun[3].seconds_left for begun in watcher.begun]
    assert left[0] > left[-1] > 0
    assert [entry.verdict for entry in index.cells] == [
        *(Verdict.GREEN, Verdict.GREEN, Verdict.RED, Verdict.RED)
    ]
    assert index.complete


def test_every_certificate_stands_alone_and_the_index_is_none(
    whole: tuple[Path, MatrixIndex, Launches, Watcher],
) -> None:
    out_dir, index, _, _ = whole
    found = find_certificates([out_dir])
    assert found.left_out == (out_dir / INDEX_NAME,)
    assert {str(path.relative_to(out_dir)) for path in found.certificates} == states(index).keys()
    for path in found.certificates:
        verified = verify_file(path)
        assert verified.problems == ()
    document = json.loads((out_dir / INDEX_NAME).read_bytes())
    assert not set(REQUIRED_FIELDS) & document.keys()
    assert index_in(out_dir) == index
    for entry in index.cells:
        cert = json.loads((out_dir / entry.file).read_bytes())
        arm = index.arm(entry.shared_arm)
        assert arm is not None
        assert cert["shared_arms"][0]["sha256"] == arm.sha256
        assert cert["shared_arms"][0]["file"] == Path(entry.shared_arm).name
        assert entry.seconds


def test_the_same_sweep_again_keeps_all_that_its_evidence_bears_out(tmp_path: Path) -> None:
    launches, watcher = Launches(), Watcher()
    group = mock_group(launches)
    sweep([group], tmp_path).run()
    before = {path: path.read_bytes() for path in tmp_path.glob("default/*")}
    launches.made.clear()
    index = sweep([group], tmp_path, watcher).run()
    assert launches.made == []
    assert index.complete
    assert {path: path.read_bytes() for path in tmp_path.glob("default/*")} == before

    # A certificate that was edited is not kept, and its shared arm is not run again.
    text = (tmp_path / N2).read_text().replace('"promotable": false', '"promotable": true')
    (tmp_path / N2).write_text(text)
    index = sweep([group], tmp_path, watcher).run()
    assert launches.made == [("default", 2)]
    assert any(N2 in note and "promotable: says true" in note for note in watcher.notes)
    assert index.complete
    assert (tmp_path / "default" / "toy__ctx512__N2.previous.json").read_text() == text

    # Nor is one without evidence; and an arm that is gone or changed is run again.
    (tmp_path / N4.replace(".json", ".evidence.jsonl")).unlink()
    (tmp_path / ARM).unlink()
    launches.made.clear()
    assert sweep([group], tmp_path, watcher).run().complete
    assert launches.made == [("default", 1), ("default", 4)]
    assert any("is not there" in note for note in watcher.notes)
    launches.made.clear()
    assert sweep([group], tmp_path, fresh=True).run().complete
    assert launches.made == [("default", 1), ("default", 2), ("default", 4)]


def test_a_replaced_library_of_the_server_keeps_nothing(tmp_path: Path) -> None:
    beside = tmp_path / "server"
    beside.mkdir()
    library = beside / "libggml-cpu.so"
    library.write_bytes(b"one build")
    launches, watcher = Launches(), Watcher()
    launches.libraries["libggml-cpu.so"] = file_sha256(library)
    # One that lies elsewhere is not known to be another.
    launches.libraries["libllama.so"] = "0" * 64
    group = replace(mock_group(launches), beside=beside)
    sweep([group], tmp_path / "out").run()
    launches.made.clear()
    sweep([group], tmp_path / "out", watcher).run()
    assert (launches.made, watcher.notes) == ([], [])

    library.write_bytes(b"another build")
    launches.libraries["libggml-cpu.so"] = file_sha256(library)
    index = sweep([group], tmp_path / "out", watcher).run()
    assert launches.made == [("default", 1), ("default", 2), ("default", 4)]
    assert sum("libggml-cpu.so was replaced" in note for note in watcher.notes) == 3
    assert index.complete


def test_a_library_is_looked_for_in_the_servers_folder_alone(tmp_path: Path) -> None:
    beside = tmp_path / "server"
    (beside / "a_folder.so").mkdir(parents=True)
    for path in (tmp_path / "above.so", beside / "inside.so"):
        path.write_bytes(b"another build")
    names = ("../above.so", str(tmp_path / "above.so"), "absent.so", "a_folder.so", "", "nul\0")
    assert replaced_libraries([(name, "0" * 64) for name in (*names, "inside.so")], beside) == [
        "inside.so"
    ]


def test_a_larger_sweep_takes_what_a_smaller_one_has_done(tmp_path: Path) -> None:
    launches = Launches()
    sweep([mock_group(launches, parallel=(2,))], tmp_path).run()
    launches.made.clear()
    index = sweep([mock_group(launches, parallel=(2, 4))], tmp_path).run()
    assert launches.made == [("default", 4)]
    assert [entry.dispatch_n for entry in index.cells] == [2, 4]
    # The index of another set of cells is set aside, not lost.
    older = parse_index((tmp_path / "matrix.previous.json").read_bytes(), "older")
    assert [entry.dispatch_n for entry in older.cells] == [2]


def test_other_inputs_keep_nothing(tmp_path: Path) -> None:
    launches, watcher = Launches(), Watcher()
    sweep([mock_group(launches, parallel=(2,))], tmp_path).run()
    launches.made.clear()
    sweep([mock_group(launches, parallel=(2,), flags=("-fa", "on"))], tmp_path, watcher).run()
    assert launches.made == [("default", 1), ("default", 2)]
    assert watcher.notes == [f"{N2} is not kept and runs again: it was measured with other inputs"]


@pytest.mark.parametrize(
    ("after", "running", "resumed", "launches_after"),
    [
        (3, ARM, 1, [1, 2, 4]),
        (11, N2, 1, [2, 4]),
        # The index says that N4 waits: it was not begun.
        (None, N4, 0, [4]),
    ],
)
def test_an_interrupted_sweep_goes_on(
    tmp_path: Path, after: int | None, running: str, resumed: int, launches_after: list[int]
) -> None:
    launches, watcher = Launches(), Watcher(after)
    group = mock_group(launches)
    if after is None:
        watcher = Stopper()
    with pytest.raises(Interrupted):
        sweep([group], tmp_path, watcher).run()
    index = index_in(tmp_path)
    assert not index.complete
    entry = index.cell(running) or index.arm(running)
    assert entry is not None
    assert entry.state is (RunState.WAITING if after is None else RunState.RUNNING)
    kept = (tmp_path / N2).read_bytes() if after is None else b""
    launches.made.clear()
    index = sweep([group], tmp_path).run()
    assert [n for _, n in launches.made] == launches_after
    assert set(states(index).values()) == {RunState.DONE}
    cert = json.loads((tmp_path / N2).read_bytes())
    assert len(cert["resumed"]) == resumed
    assert not kept or (tmp_path / N2).read_bytes() == kept
    assert all(verify_file(tmp_path / file).borne_out for file in (N2, N4))


class Stopper(Watcher):
    """Interrupts between two cells."""

    def ended(self, entry: object, produced: object) -> None:
        if produced is not None:
            raise Interrupted(15)


def test_a_cell_that_cannot_go_on_runs_again(tmp_path: Path) -> None:
    launches, watcher = Launches(), Watcher()
    group = mock_group(launches, parallel=(2,))
    with pytest.raises(Interrupted):
        sweep([group], tmp_path, Watcher(11)).run()
    evidence = tmp_path / N2.replace(".json", ".evidence.jsonl")
    evidence.write_bytes(evidence.read_bytes()[:-40] + b"\n")
    launches.made.clear()
    assert sweep([group], tmp_path, watcher).run().complete
    assert launches.made == [("default", 2)]
    assert "is run again: evidence" in watcher.notes[0]


class Unable:
    """Fails as it is told, on so many slots."""

    def __init__(self, launches: Launches, failing: int, error: Exception) -> None:
        self._launcher = launches.of("default", QUICK)
        self._failing = failing
        self._error = error

    def __call__(self, parallel: int) -> Launcher:
        if parallel == self._failing and isinstance(self._error, GuardRefused):
            raise self._error
        outer = self

        class Failing:
            def launch(self, slots: int) -> object:
                if slots == outer._failing:
                    raise outer._error
                return outer._launcher(slots).launch(slots)

        return Failing()  # type: ignore[return-value]


@pytest.mark.parametrize(
    "error",
    [ServerError("died at start"), GuardRefused("memory", "too large", "Take less.")],
)
def test_a_failing_cell_does_not_stop_the_rest(tmp_path: Path, error: Exception) -> None:
    launches = Launches()
    group = mock_group(launches, parallel=(2, 3, 4))
    group = replace(group, launcher=Unable(launches, 3, error))
    index = sweep([group], tmp_path).run()
    assert [entry.state for entry in index.cells] == [
        *(RunState.DONE, RunState.NO_VERDICT, RunState.DONE)
    ]
    assert str(error) in str(index.cells[1].why)
    assert not (tmp_path / index.cells[1].file).exists()
    assert index.complete
    # What has no verdict is tried again.
    launches.made.clear()
    index = sweep([mock_group(launches, parallel=(2, 3, 4))], tmp_path).run()
    assert launches.made == [("default", 3)]
    assert {entry.state for entry in index.cells} == {RunState.DONE}


def test_a_shared_arm_that_fails_leaves_none_of_its_cells_a_verdict(tmp_path: Path) -> None:
    launches = Launches()
    bad = mock_group(launches)
    (tmp_path / "default").mkdir()
    (tmp_path / N4).write_text("an older certificate")
    bad = replace(bad, launcher=Unable(launches, 1, ServerError("died at start")))
    good = mock_group(launches, "on", parallel=(2,), flags=("-fa", "on"))
    watcher = Watcher()
    index = sweep([bad, good], tmp_path, watcher).run()
    assert [entry.state for entry in index.cells] == [
        *(RunState.NO_VERDICT, RunState.NO_VERDICT, RunState.DONE)
    ]
    assert {entry.why for entry in index.cells[:2]} == {"arms A and A2: died at start"}
    # No older certificate stands for a cell that failed.
    assert not (tmp_path / N4).exists()
    assert (tmp_path / "default/toy__ctx512__N4.previous.json").read_text() == (
        "an older certificate"
    )
    assert launches.made == [("on", 1), ("on", 2)]


def test_a_certificate_that_no_sweep_wrote_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "default").mkdir()
    (tmp_path / N2).write_text("of run-live")
    sweep([mock_group(Launches(), parallel=(2,))], tmp_path).run()
    assert verify_file(tmp_path / N2).borne_out
    assert (tmp_path / "default/toy__ctx512__N2.previous.json").read_text() == "of run-live"


def test_a_budget_runs_the_cheapest_first_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    launches, watcher = Launches(), Watcher()
    large = mock_group(launches, "a-large", parallel=(4,))
    wide = replace(
        large.planned[0],
        plan=replace(large.planned[0].plan, passes=large.planned[0].plan.passes * 1000),
    )
    large = replace(large, planned=(wide,))
    small = mock_group(launches, "b-small", parallel=(2,))
    index = sweep([large, small], tmp_path, watcher, budget_s=6.0).run()
    assert launches.made == [("b-small", 1), ("b-small", 2)]
    by_folder = {entry.folder: entry for entry in index.cells}
    assert by_folder["b-small"].state is RunState.DONE
    assert by_folder["a-large"].state is RunState.LEFT_OUT
    assert "of the time budget left" in str(by_folder["a-large"].why)
    assert not index.complete
    assert watcher.entries[-1] == by_folder["a-large"]


def test_a_budget_that_is_used_up_begins_nothing(tmp_path: Path) -> None:
    launches = Launches()
    index = sweep([mock_group(launches)], tmp_path, budget_s=1e-9).run()
    assert launches.made == []
    assert set(states(index).values()) == {RunState.LEFT_OUT}


@pytest.mark.parametrize("fresh", [True, False])
def test_a_cell_that_is_left_out_keeps_no_older_certificate(tmp_path: Path, fresh: bool) -> None:
    launches = Launches()
    sweep([mock_group(launches)], tmp_path).run()
    before = (tmp_path / N2).read_bytes()
    # Without `fresh` it is the other flags that leave nothing of the older cells standing.
    flags = () if fresh else ("-fa", "on")
    index = sweep([mock_group(launches, flags=flags)], tmp_path, None, 1e-9, fresh).run()
    assert set(states(index).values()) == {RunState.LEFT_OUT}
    assert not [file for file in (N2, N4) if (tmp_path / file).exists()]
    assert (tmp_path / N2.replace(".json", ".previous.json")).read_bytes() == before


def test_a_run_in_one_folder_costs_only_the_cells_of_that_folder(tmp_path: Path) -> None:
    launches, watcher = Launches(), Watcher()
    groups = [mock_group(launches, name, parallel=(2,)) for name in ("busy", "free")]
    (tmp_path / "busy").mkdir()
    with OutDirLock(tmp_path / "busy"):
        index = sweep(groups, tmp_path, watcher).run()
    assert {entry.folder: entry.state for entry in index.cells} == {
        "busy": RunState.NO_VERDICT,
        "free": RunState.DONE,
    }
    assert any("another run is writing" in note for note in watcher.notes)


def test_two_cells_of_one_name_are_refused(tmp_path: Path) -> None:
    launches = Launches()
    with pytest.raises(UsageError, match="two cells would both write default/toy__ctx512__"):
        sweep([mock_group(launches), mock_group(launches)], tmp_path).run()


def test_a_file_of_the_indexs_name_that_is_none_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_text('{"schema": "another"}')
    with pytest.raises(FileFormatError, match="is no index of a sweep"):
        sweep([mock_group(Launches())], tmp_path).run()
    assert (tmp_path / INDEX_NAME).read_text() == '{"schema": "another"}'


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"schema": "matrix/1"}', b'{"schema": "matrix/1", "cells": 3}']
)
def test_an_index_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(FileFormatError):
        parse_index(data, "x")


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        OutDirLock(tmp_path),
        pytest.raises(UsageError, match=r"another run is writing"),
    ):
        sweep([mock_group(Launches())], tmp_path).run()


def test_costs_learn_from_what_was_measured() -> None:
    group = mock_group(Launches())
    tasks = tasks_of([group])
    costs = Costs(standing_of([group], Path("nowhere"), False), tasks)
    assert not costs.known
    guess = costs.of(N4)
    both = costs.together(tasks, ())
    assert both == pytest.approx(costs.of(N2) + guess + costs.of(ARM))
    assert costs.together(tasks, {ARM}) == pytest.approx(both - costs.of(ARM))
    costs.measured(N2, 3 * costs.of(N2))
    assert costs.known
    assert costs.of(N4) == pytest.approx(3 * guess)


def test_headers_that_cannot_be_made_final_fail_their_group_alone(tmp_path: Path) -> None:
    launches = Launches()

    def unfit() -> tuple[Header, ...]:
        raise ServerError("the server cannot count prompts")

    bad: SweepGroup = replace(mock_group(launches), final=unfit)
    good = mock_group(launches, "on", parallel=(2,), flags=("-fa", "on"))
    index = sweep([bad, good], tmp_path).run()
    assert [entry.state for entry in index.cells] == [
        *(RunState.NO_VERDICT, RunState.NO_VERDICT, RunState.DONE)
    ]
