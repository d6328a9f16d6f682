"""Schedules as files: read, refused, and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_invariance.cli.main import main
from batch_invariance.errors import ScheduleError
from batch_invariance.invariance_diff.schedule import DispatchKind, PassSchedule
from batch_invariance.invariance_diff.schedule_file import (
    check_matches,
    parse_schedule,
    schedule_text,
)

WAVES = {"kind": "waves", "groups": [[0, 1], [2, 3]]}
SATURATE = {"kind": "saturate", "groups": [[3, 2, 1, 0]]}


def file(*passes: dict[str, Any], **changes: Any) -> bytes:
    document = {"schema": "schedule/1", "n_items": 4, "lanes": 2, "passes": list(passes)}
    return json.dumps({**document, **changes}).encode()


def test_a_file_becomes_passes() -> None:
    waves = {**WAVES, "pinned": [1, 0, 0, 1], "delays_ms": [0, 5, 10, 0]}
    first, second = parse_schedule(file(waves, SATURATE), "s.json")
    assert first == PassSchedule(
        DispatchKind.WAVES, 2, ((0, 1), (2, 3)), (1, 0, 0, 1), (0, 5, 10, 0)
    )
    assert [(e.item, e.lane, e.wave, e.delay_ms) for e in first.entries()] == [
        (0, 1, 0, 0),
        (1, 0, 0, 5),
        (2, 0, 1, 10),
        (3, 1, 1, 0),
    ]
    assert [(e.item, e.lane, e.wave) for e in second.entries()] == [
        (3, None, None),
        (2, None, None),
        (1, None, None),
        (0, None, None),
    ]


def test_the_text_is_read_back() -> None:
    passes = parse_schedule(file({**WAVES, "delays_ms": [1, 2, 3, 4]}, SATURATE), "s.json")
    assert parse_schedule(schedule_text(passes, 4).encode(), "again") == passes


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "schema"),
        (file(WAVES, schema="schedule/9"), "schedule/9"),
        (file(), "no passes"),
        (file({**WAVES, "kind": "serial"}), "no serial passes"),
        (file({**WAVES, "kind": "odd"}), "kind"),
        (file({**WAVES, "extra": 1}), "extra"),
        (file({"kind": "waves"}), "groups"),
        (file({"kind": "waves", "groups": []}), "sends nothing"),
        (file({"kind": "waves", "groups": [[0, 1, 2], [3]]}), "does not fit 2 lanes"),
        (file({"kind": "waves", "groups": [[0, 9], [1, 2], [3]]}), "item 9"),
        (file({"kind": "waves", "groups": [[0, 1], [2]]}), "no pass sends item 3"),
        (file({**WAVES, "pinned": [0]}), "1 pinned lanes for 4"),
        (file({**WAVES, "pinned": [0, 0, 0, 1]}), "pinned twice"),
        (file({**WAVES, "pinned": [0, 2, 0, 1]}), "lane 2 does not exist"),
        (file({**SATURATE, "pinned": [0, 1, 0, 1]}), "no pinned lanes"),
        (file({**WAVES, "delays_ms": [1, 2]}), "2 delays for 4"),
        (file({**WAVES, "delays_ms": [0, 0, 0, -1]}), "delay of -1"),
        (file({**WAVES, "delays_ms": [0, 0, 0, 10**9]}), "delay of"),
        (file(WAVES, lanes=0), "lanes"),
        (file(WAVES, lanes=100_000), "lanes"),
        (file(WAVES, n_items=10**12), "no pass sends item"),
    ],
)
def test_what_cannot_be_run_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(data, "s.json")
    assert said in str(caught.value)
    assert "s.json" in str(caught.value)


def test_another_size_is_refused() -> None:
    passes = parse_schedule(file(WAVES), "s.json")
    check_matches(passes, 4, 2, "s.json")
    with pytest.raises(ScheduleError, match="4 items, the work-set has 5"):
        check_matches(passes, 5, 2, "s.json")
    with pytest.raises(ScheduleError, match="2 lanes, --parallel is 4"):
        check_matches(passes, 4, 4, "s.json")


def run(tmp_path: Path, schedule: Path, *more: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "certs"
    code = main(
        ["run-mock", "--schedule", str(schedule), "--out-dir", str(out), "-q", "--json", *more]
    )
    cert = json.loads((out / "mock__ctx2048__N4.json").read_text()) if out.exists() else {}
    return code, cert


def test_the_built_in_schedule_can_be_written_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schedule.json"
    words = ["schedule", "--items", "16", "--parallel", "4", "--passes", "3", "--seed", "5"]
    assert main([*words, "-o", str(path)]) == 0
    assert len(parse_schedule(path.read_bytes(), "x")) == 3
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out == path.read_text()
    assert main([*words, "-o", str(path)]) == 2
    assert "exists" in capsys.readouterr().err
    code, cert = run(tmp_path, path)
    assert code == 0
    assert cert["verdict"] == "GREEN"
    assert cert["schedule"]["file"] == "schedule.json"
    assert [line.split()[2] for line in cert["schedule"]["passes"][3:]] == ["listed"] * 3
    assert cert["n_passes"] == 3


def test_passes_that_send_a_part_of_the_set_are_planned_that_way(tmp_path: Path) -> None:
    halves = [
        {"kind": "waves", "groups": [[k + i for k in range(4)] for i in (0, 4)]},
        {"kind": "waves", "groups": [[k + i for k in range(4)] for i in (8, 12)]},
        {"kind": "saturate", "groups": [list(range(15, -1, -1))], "delays_ms": [1] * 16},
    ]
    path = tmp_path / "halves.json"
    path.write_bytes(file(*halves, n_items=16, lanes=4))
    code, cert = run(tmp_path, path)
    assert (code, cert["verdict"]) == (0, "GREEN"), cert["decision_reasons"]


def test_a_schedule_for_another_set_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(file(WAVES))
    code, cert = run(tmp_path, path)
    assert (code, cert) == (1, {})
    assert "it is for 4 items, the work-set has 16" in capsys.readouterr().err
    assert run(tmp_path, tmp_path / "none.json") == (2, {})
    assert "none.json" in capsys.readouterr().err


def test_passes_and_schedule_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(file(WAVES))
    assert run(tmp_path, path, "--passes", "3") == (2, {})
    assert "--passes" in capsys.readouterr().err
