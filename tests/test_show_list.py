"""`show` and `list`: certificates in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from batch_invariance.cli import list_certs, show
from batch_invariance.cli.columns import beside, clipped, width_of, wrapped
from batch_invariance.invariance_diff.gates import GATES
from ci_fixtures import RED, Done, call, unchanged, write_cert
from report_fixtures import FOREIGN, HOSTILE_SHOWN, contaminated, make_folder

ROOT = Path(__file__).resolve().parents[1]
LIVE = ROOT / "examples" / "certs"
DENSE = LIVE / "demo_dense_live_cert.json"
RUNNER = """
import sys
from argparse import ArgumentParser
from batch_invariance.cli import list_certs, show
parser = ArgumentParser()
commands = parser.add_subparsers()
show.add_parser(commands), list_certs.add_parser(commands)
args = parser.parse_args(sys.argv[1:])
sys.exit(args.run(args, ()))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("certs"))


def only(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


def listed(capsys: pytest.CaptureFixture[str], *words: object) -> Done:
    list_certs.__name__, name = "batch_invariance.cli.list", list_certs.__name__
    try:
        return call(list_certs, capsys, *words)
    finally:
        list_certs.__name__ = name


def on_terminal(columns: int, *words: object) -> str:
    """What a verb writes on a terminal of so many columns."""
    leader, follower = pty.openpty()
    path = str(ROOT / "src")
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "PYTHONPATH": path}
    env.pop("NO_COLOR", None)
    command = [sys.executable, "-c", RUNNER, *map(str, words)]
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=env) as child:
        os.close(follower)
        parts = []
        try:
            while data := os.read(leader, 1 << 16):
                parts.append(data)
        except OSError:
            pass  # Linux says so when the other side has closed.
        os.close(leader)
    assert child.returncode == 0
    return b"".join(parts).decode("utf-8").replace("\r\n", "\n")


# show


def test_a_real_cell_is_shown_from_verdict_to_command(capsys: pytest.CaptureFixture[str]) -> None:
    done = call(show, capsys, DENSE)
    assert done.code == 0
    lines = done.lines
    assert lines[0].startswith("RED  SmolLM2-135M-Instruct.Q4_1, ctx 2048, N=4: scored outputs")
    assert "verified: derived again from its evidence" in lines[2]
    titles = [line.partition(":")[0] for line in lines if line and line[0].isalpha()][1:]
    assert titles == [
        "what changed",
        "gates",
        "figures",
        "how it was run",
        "what was measured",
        "measure it again",
    ]
    for gate in GATES:
        assert re.search(rf"(PASS|FAIL|N/A) +{gate.name} ", done.stdout)
    assert "\x1b" not in done.stdout
    assert max(map(len, lines[: lines.index("measure it again")])) <= 100


def test_the_two_answers_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(show, capsys, DENSE).lines
    at = next(i for i, line in enumerate(lines) if "alone (A)" in line)
    split = lines[at].index("batched (C)")
    a, c = lines[at + 1][:split], lines[at + 1][split:]
    assert a.strip().startswith("The output of this code will be:")
    assert c.startswith("The output of this code will be:")
    below = "\n".join(lines[at + 1 : at + 6])
    assert below.count("[[") == 2
    assert re.search(r"token \d+: logprob -\d\.\d+ alone, -\d\.\d+ batched", below)


def test_lanes_are_drawn_for_the_pass_that_diverged(capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(show, capsys, DENSE).lines
    lanes = [line for line in lines if re.match(r"  slot \d ", line)]
    assert len(lanes) == 4
    assert all(re.fullmatch(r"  slot \d +[|#\- !]+", line) for line in lanes)


def test_what_is_not_borne_out_has_no_colour(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, problem in (("alone", "there is no evidence at"), ("edited", "status: says")):
        done = call(show, capsys, only(folder / name))
        assert done.code == 0
        assert done.lines[0].startswith(f"NOT VERIFIED  {name}, ctx 512, N=4: ")
        assert "the file itself says GREEN" in done.lines[0]
        assert "gates, as the file claims them" in done.lines
        assert problem in done.stdout.replace("\n    ", " ")
        assert "verified: derived again" not in done.stdout
        said = call(show, capsys, only(folder / name), "--json").json
        assert (said["verified"], said["verdict"], said["promotable"]) == (False, None, False)


def test_evidence_may_lie_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_cert(tmp_path)
    moved = tmp_path / "moved.jsonl"
    path.with_suffix(".evidence.jsonl").rename(moved)
    assert call(show, capsys, path).lines[0].startswith("NOT VERIFIED")
    assert call(show, capsys, path, "--evidence", moved).lines[0].startswith("GREEN")


def test_a_file_that_is_no_certificate_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = call(show, capsys, folder / "broken.json")
    assert (done.code, done.stdout) == (1, "")
    assert "cannot be shown" in done.stderr
    assert call(show, capsys, folder / "nothing.json").code == 1


def test_contamination_is_said_loud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(show, capsys, write_cert(tmp_path, contaminated))
    assert "CONTAMINATION: THE ANSWER TO i3 HOLDS TEXT OF i" in done.stdout
    assert FOREIGN[:40] in done.stdout


def test_what_others_wrote_cannot_steer_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = call(show, capsys, only(folder / "hostile")).stdout
    table = listed(capsys, folder).stdout
    for text in (shown, table):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert HOSTILE_SHOWN in text


def test_json_holds_what_the_text_shows(capsys: pytest.CaptureFixture[str]) -> None:
    said = call(show, capsys, DENSE, "--json").json
    cert = json.loads(DENSE.read_bytes())
    assert said["verdict"] == "RED"
    assert said["gates"] == cert["gates"]
    first = said["changed"][0]
    assert first["entry"]["id"] == "code-output"
    assert first["a"]["before"] == first["c"]["before"]
    assert first["a"]["marked"] != first["c"]["marked"]
    assert said["repeat"]["command"].startswith("batch-invariance run-live ")
    assert said["exit_code"] == 0


def test_colour_and_width_are_those_of_the_terminal() -> None:
    text = on_terminal(70, "show", DENSE)
    assert "\x1b[1;31mRED\x1b[0m" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = plain.split("\nmeasure it again")[0].splitlines()
    assert max(map(width_of, lines[1:])) <= 70
    assert "\x1b[1;31mRED\x1b[0m" in on_terminal(70, "list", DENSE)


# list


def test_a_folder_is_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = listed(capsys, folder)
    assert done.code == 0
    head, *rows = done.lines
    assert head.split() == [
        *("verdict", "model", "ctx", "N", "flags", "why"),
        *("bound", "speed-up", "source", "measured"),
    ]
    words = {tuple(row.split()[:2]) for row in rows}
    assert {("GREEN", "green"), ("RED", "red"), ("AMBER", "amber")} <= words
    (green,) = [row for row in rows if row.startswith("GREEN") and " live " in row]
    assert re.search(r"512 +4 +- +0 of 20 changed +13\.9% +\d\.\d\dx +live +2026-01-02$", green)
    (red,) = [row for row in rows if row.startswith("RED")]
    assert re.search(r"1 of 20 changed, (co_batching|unattributed) ", red)
    (lost,) = [row for row in rows if row.startswith("UNVERIFIED    unverified")]
    assert " requests lost " in lost
    (alone,) = [row for row in rows if row.startswith("NOT VERIFIED  alone")]
    assert re.search(r"512 +4 +- +claims GREEN +- +- +live", alone)
    problems = [row for row in rows if row.startswith("  not verified")]
    assert len(problems) == 3


def test_list_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "other.json").write_text("[1]")
    said = listed(capsys, folder, "--json").json
    cells = {cell.get("model"): cell for cell in said["cells"]}
    assert cells["red"]["verdict"] == "RED"
    assert cells["red"]["divergence_class"]
    assert cells["green"]["speedup"] > 1
    assert cells["edited"]["verdict"] is None
    assert said["left_out"] == [str(folder / "other.json")]
    (folder / "other.json").unlink()


def test_cells_are_in_order_of_model_context_and_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model, ctx in (("b", 1024), ("a", 2048), ("b", 768)):
        write_cert(tmp_path, unchanged, model=model, ctx=ctx)
    rows = [line.split()[1:3] for line in listed(capsys, tmp_path).lines[1:]]
    assert rows == [["a", "2048"], ["b", "768"], ["b", "1024"]]


def test_an_empty_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = listed(capsys, tmp_path)
    assert (done.code, done.stdout) == (1, "")
    assert "no certificate" in done.stderr
    assert listed(capsys, tmp_path / "none").code == 2


def test_a_narrow_terminal_cuts_names_not_figures(tmp_path: Path) -> None:
    write_cert(tmp_path, RED, model="m" * 60)
    text = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(90, "list", tmp_path))
    head, row = text.splitlines()
    assert max(len(head), len(row)) <= 90
    assert "mm..." in row
    assert "2026-01-02" in row


# Columns.


def test_wide_and_combining_characters_keep_columns_straight() -> None:
    assert width_of("日本") == 4
    assert width_of("e\u0301") == 1
    assert clipped("日本語テキスト", 9) == "日本語..."
    lines = list(beside([("日本語テキスト", 6), ("abc", 4)]))
    assert [width_of(line.split("  ")[0]) for line in lines] == [6, 6, 2]


def test_no_line_is_wider_than_asked() -> None:
    text = "a " * 20 + "b" * 50 + " c"
    assert max(map(width_of, wrapped(text, 12))) <= 12
    assert "".join(wrapped(text, 12)).replace(" ", "") == text.replace(" ", "")
    assert list(wrapped("", 5)) == [""]
