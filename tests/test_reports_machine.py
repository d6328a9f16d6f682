"""A machine without room, with a clock that moves, with neighbours; and a server that hangs."""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fault_runs
from batch_invariance.live_invariance import host, launch
from batch_invariance.live_invariance.process import OwnedProcess
from batch_invariance.live_invariance.store import OutDirLock
from fake_llama_server import HELP
from fault_cases import CASES
from fault_runs import LEAST
from reports_fixtures import Cell, light_cell, make_cell

SOURCE = Path(__file__).resolve().parent.parent / "src" / "batch_invariance"
GIB = 1 << 30
OLDER = "an older certificate"


def with_older_certificate(cell: Cell) -> Path:
    cell.out_dir.mkdir()
    older = cell.out_dir / "toy__ctx512__N2.json"
    older.write_text(OLDER)
    return older


def untouched(cell: Cell, older: Path) -> bool:
    left = [path.name for path in cell.out_dir.iterdir() if not path.name.startswith(".")]
    return cell.journal() == [] and left == [older.name] and older.read_text() == OLDER


def test_too_little_free_memory_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(tmp_path)
    older = with_older_certificate(cell)
    monkeypatch.setattr(host, "memory_available", lambda: 100 << 20)
    fault_runs.check(CASES["memory"], cell.run())
    assert untouched(cell, older)
    assert cell.run("--no-memory-guard", "--dry-run").code == 0


def test_a_server_beyond_the_cap_is_refused_before_anything_starts(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    older = with_older_certificate(cell)
    fault_runs.check(CASES["footprint"], cell.run("--max-footprint-gb", "0.0001"))
    assert untouched(cell, older)


def test_the_memory_is_read_anew_before_each_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(tmp_path)
    readings = iter([8 * GIB, 8 * GIB, 100 << 20])
    monkeypatch.setattr(host, "memory_available", lambda: next(readings))
    fault_runs.check(CASES["memory_gone"], cell.run(*LEAST))
    assert [start["argv"][start["argv"].index("--parallel") + 1] for start in cell.starts()] == [
        "1"
    ]


def test_a_plan_says_where_free_memory_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_invariance.cli.plan_text.memory_available", lambda: None)
    cell = make_cell(tmp_path)
    said = cell.run("--dry-run").stdout
    assert "this system does not say how much is free, so that --max-footprint-gb alone" in said
    assert '"memory_available_bytes": null' in cell.run("--dry-run", "--json").stdout


def test_a_second_run_in_the_same_out_dir_is_refused(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    older = with_older_certificate(cell)
    with OutDirLock(cell.out_dir):
        fault_runs.check(CASES["second_run"], cell.run())
        assert untouched(cell, older)


def test_no_free_port_outside_the_reserved_ones_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = frozenset(range(1 << 16))
    monkeypatch.setattr(
        "batch_invariance.live_invariance.server.choose_port", lambda _: launch.choose_port(every)
    )
    fault_runs.check(CASES["no_free_port"], make_cell(tmp_path).run())


def test_a_port_that_a_neighbour_takes_first_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as neighbour:
        port = neighbour.getsockname()[1]
        monkeypatch.setattr(
            "batch_invariance.live_invariance.server.choose_port", lambda reserved: port
        )
        cell = make_cell(tmp_path)
        fault_runs.check(CASES["port_taken"], cell.run())
        assert len(cell.starts()) == 3
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_no_room_for_temporary_files_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def full(path: str | os.PathLike[str], mode: int = 0o777) -> None:
        if "batch-invariance-" in os.fspath(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        mkdir(path, mode)

    cell = make_cell(tmp_path)
    monkeypatch.setattr(os, "mkdir", full)
    fault_runs.check(CASES["temporary_full"], cell.run())


@contextmanager
def files_no_larger_than(n_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_in_the_middle_costs_no_evidence(tmp_path: Path) -> None:
    cell = light_cell(tmp_path)
    with files_no_larger_than(30_000):
        outcome = cell.run(*LEAST)
    fault_runs.check(CASES["evidence_full"], outcome)
    assert "What was written before is kept" in outcome.stderr
    assert 20_000 < outcome.evidence_path.stat().st_size <= 30_000
    resumed = cell.resume(outcome.evidence_path)
    assert (resumed.code, resumed.verdict) == (0, "GREEN"), resumed.stderr


def test_a_full_disk_under_the_servers_log_costs_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batch_invariance.live_invariance.log_follower.WAIT_S", 0.1)
    cell = make_cell(tmp_path, journal=None, log_limit_bytes=1000, stderr_flood_bytes=2000)
    # This build is asked for the log of its forward passes, which then breaks off.
    (tmp_path / "help.txt").write_text(f"{HELP}-lv,   --verbosity N   verbosity\n")
    outcome = cell.run(*LEAST)
    fault_runs.check(CASES["log_full"], outcome)
    assert outcome.cert["overlap"]["witness"] == "decode_count"
    assert "the log shows no forward pass in a known form" in outcome.cert["overlap"]["log_fault"]


def test_a_clock_that_is_set_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time, true_gmtime = time.time, time.gmtime
    steps = 0

    def stepping() -> float:
        nonlocal steps
        steps += 1
        return true_time() + (steps % 5 - 2) * 86_400

    monkeypatch.setattr(time, "time", stepping)
    monkeypatch.setattr(time, "gmtime", lambda *at: true_gmtime(*(at or (stepping(),))))
    outcome = light_cell(tmp_path).run(*LEAST)
    fault_runs.check(CASES["clock"], outcome)
    assert steps > 2
    spans = [trial.complete_ts - trial.dispatch_ts for trial in outcome.trials()]
    assert all(0 <= span < 60 for span in spans)


def test_durations_and_deadlines_are_monotonic() -> None:
    """The wall clock is read where a moment is told to people, and for the age of a certificate."""
    told = {"live_invariance/resume.py", "live_invariance/prepare.py", "cli/gate.py"}
    told |= {"live_invariance/mock_api.py", "cli/report.py"}
    told |= {"live_invariance/sweep_state.py", "cli/minimise.py"}
    # A Retry-After can be a date.
    told |= {"live_invariance/endpoint_client.py"}
    reads = re.compile(r"\btime\.(time|gmtime|localtime|strftime|time_ns)\(|\bdatetime\b")
    files = {p.relative_to(SOURCE).as_posix(): p.read_text("utf-8") for p in SOURCE.rglob("*.py")}
    assert {name for name, text in files.items() if reads.search(text)} <= told


def test_a_server_that_stands_still_ends_the_arm_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not even answer what it is asked about itself, and does not obey SIGTERM."""
    monkeypatch.setattr("batch_invariance.live_invariance.telemetry.PROBE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(OwnedProcess.stop, "__defaults__", (0.1,))
    case = CASES["stands_still"]
    cell = make_cell(tmp_path, **case.plant)
    outcome = cell.run(*LEAST, *case.options)
    fault_runs.check(case, outcome)
    assert outcome.lost_kinds() == {"timeout"}
    assert outcome.footer().ended.startswith("arm C lost: slot ")
