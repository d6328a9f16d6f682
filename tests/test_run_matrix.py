"""`run-matrix` as a user meets it, against fake servers in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from batch_invariance.cli.matrix_options import parse_plan
from batch_invariance.errors import FileFormatError
from batch_invariance.invariance_diff.matrix_plan import groups_of
from reports_fixtures import (
    LAUNCHER,
    Cell,
    InProcessLauncher,
    Outcome,
    cli,
    light_cell,
)

LEAST: tuple[object, ...] = ("--passes", 1, "--max-tokens", 8, "--ctx", 512, "-q")
TWO_SETS = ("--flag-set", "fa-on=--flash-attn on", "--flag-set", "fa-off=--flash-attn off")
LAUNCHES: list[int] = []
Sweeping = Callable[..., Outcome]


class _Counted(InProcessLauncher):
    def launch(self, parallel: int) -> Any:
        LAUNCHES.append(parallel)
        return super().launch(parallel)


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return light_cell(tmp_path / "fake")


@pytest.fixture
def sweep(cell: Cell) -> Iterator[Sweeping]:
    def run(*more: object, parallel: str = "2") -> Outcome:
        words = ["run-matrix", "--server-bin", cell.server, "--model", cell.model]
        words += ["--workset", cell.workset, "--parallel", parallel, "--out-dir", cell.out_dir]
        return cli(*words, *LEAST, *more, out_dir=cell.out_dir)

    with pytest.MonkeyPatch.context() as patch:
        LAUNCHES.clear()
        patch.setattr(LAUNCHER, partial(_Counted, faults=cell.in_process))
        yield run


def _report(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def test_a_matrix_has_one_certificate_for_each_cell_and_goes_on_where_it_ended(
    cell: Cell, sweep: Sweeping, tmp_path: Path
) -> None:
    junit = tmp_path / "junit.xml"
    outcome = sweep(*TWO_SETS, "--junit", junit, "--json", parallel="2,3")
    report = _report(outcome)
    assert outcome.code == report["exit_code"]
    files = sorted(
        p.relative_to(cell.out_dir).as_posix() for p in cell.out_dir.glob("*/*__N*.json")
    )
    assert files == sorted(entry["file"] for entry in report["cells"])
    assert files == [
        *("fa-off/toy__ctx512__N2.json", "fa-off/toy__ctx512__N3.json"),
        *("fa-on/toy__ctx512__N2.json", "fa-on/toy__ctx512__N3.json"),
    ]
    # One launch for each shared arm, one for each cell.
    assert len(LAUNCHES) == 2 + 4
    for file in files:
        assert cli("verify-cert", cell.out_dir / file).code in (0, 3)
    suites = ElementTree.parse(junit).getroot()
    assert len(list(suites.iter("testsuite"))) == 4

    again = sweep(*TWO_SETS, "--json", parallel="2,3")
    assert len(LAUNCHES) == 2 + 4
    assert _report(again)["cells"] == report["cells"]
    assert again.code == outcome.code

    # More of it runs only what is not there; its shared arm is.
    wider = sweep(*TWO_SETS, "--json", parallel="2,3,4")
    assert len(_report(wider)["cells"]) == 6
    assert len(LAUNCHES) == 2 + 4 + 2


def test_fresh_runs_all_of_it_again_and_keeps_the_older_files(cell: Cell, sweep: Sweeping) -> None:
    sweep()
    before = (cell.out_dir / "default/toy__ctx512__N2.json").read_bytes()
    sweep("--fresh")
    assert len(LAUNCHES) == 4
    assert (cell.out_dir / "default/toy__ctx512__N2.previous.json").read_bytes() == before


def test_a_budget_leaves_cells_out_and_says_which(cell: Cell, sweep: Sweeping) -> None:
    sweep()
    outcome = sweep("--time-budget", "0.001", parallel="2,3")
    assert outcome.code == 3
    assert "left out" in outcome.stdout
    assert "of the time budget left" in outcome.stdout
    (left_out,) = [e for e in _index(cell)["cells"] if e["state"] == "left_out"]
    assert left_out["dispatch_n"] == 3
    assert not _index(cell)["complete"]


def _index(cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cell.out_dir / "matrix.json").read_bytes())
    return found


def test_a_cell_that_cannot_run_costs_only_itself(cell: Cell, sweep: Sweeping) -> None:
    """No batch of 600 requests can form by these flags, but 2 can."""
    outcome = sweep("--sign-key", _key(cell.folder), "--max-footprint-gb", "0.000001")
    assert outcome.code == 3
    assert "no verdict" in outcome.stdout
    assert len(LAUNCHES) == 0
    assert list(cell.out_dir.glob("*/*.json")) == []


def _key(folder: Path) -> Path:
    path = folder / "key"
    path.write_bytes(b"k" * 40)
    path.chmod(0o600)
    return path


def test_every_certificate_is_signed_with_the_key(cell: Cell, sweep: Sweeping) -> None:
    key = _key(cell.folder)
    # What an earlier sweep left unsigned is run again, not signed after the fact.
    sweep(parallel="2")
    sweep("--sign-key", key, parallel="2,3")
    assert LAUNCHES == [1, 2, 2, 3]
    for n in (2, 3):
        path = cell.out_dir / f"default/toy__ctx512__N{n}.json"
        report = _report(cli("verify-cert", path, "--sign-key", key, "--json"))
        assert report["signature"] == "fits"
    sweep("--sign-key", key, parallel="2,3")
    assert LAUNCHES == [1, 2, 2, 3]


def test_a_dry_run_names_the_cells_and_starts_nothing(cell: Cell, sweep: Sweeping) -> None:
    outcome = sweep(*TWO_SETS, "--kv-type", "f16", "--dry-run", parallel="2,3")
    assert outcome.code == 0
    assert outcome.stdout.startswith("4 cells in 2 groups, 6 server launches\n")
    assert "fa-on__kv-f16 (-ctk f16 -ctv f16 --flash-attn on)" in outcome.stdout
    assert not cell.out_dir.exists()
    assert len(LAUNCHES) == 0
    assert len(_report(sweep("--dry-run", "--json", parallel="2,3"))["cells"]) == 2


def test_a_plan_file_says_the_same_and_the_command_line_goes_first(
    cell: Cell, sweep: Sweeping
) -> None:
    plan = cell.folder / "plan.toml"
    plan.write_text(
        'version = 1\nmodels = ["./toy.gguf"]\nctx = [512]\nparallel = [2, 3]\n'
        f'workset = "set.json"\nserver_bin = "{cell.server}"\npasses = 1\nmax_tokens = 8\n'
        '[flag_sets]\non = ["--flash-attn", "on"]\n'
    )
    outcome = cli("run-matrix", "--plan", plan, "--dry-run", "--json")
    assert outcome.code == 0, outcome.stderr
    names = [cell["file"] for cell in _report(outcome)["cells"]]
    assert names == ["on/toy__ctx512__N2.json", "on/toy__ctx512__N3.json"]
    outcome = cli("run-matrix", "--plan", plan, "--parallel", "4", "--dry-run", "--json")
    assert [c["file"] for c in _report(outcome)["cells"]] == ["on/toy__ctx512__N4.json"]


def test_a_canary_needs_no_file(cell: Cell, sweep: Sweeping) -> None:
    words = ["--model", "canary:q8_0", "--model", "canary:f16,twins", "--dry-run", "--json"]
    outcome = cli("run-matrix", "--server-bin", cell.server, *words)
    assert outcome.code == 0, outcome.stderr
    files = [entry["file"] for entry in _report(outcome)["cells"]]
    assert files == [
        "default/canary-q8_0-seed0__ctx2048__N4.json",
        "default/canary-f16-twins-seed0__ctx2048__N4.json",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "nowhere.gguf"), "nowhere.gguf"),
        (("--kv-type", "f17"), "f17"),
        (("--flag-set", "x"), "NAME=FLAGS"),
        (("--flag-set", "../x=--y"), "a name has 1 to 60"),
        (("--flag-set", "x=--alias 'y"), "No closing quotation"),
        (("--parallel", "2,,3"), "is not a list such as 2,4,8"),
        (("--parallel", "2,2"), "parallel 2 is named twice"),
        (("--ctx", "0"), "is not a list"),
        (("--plan", "no.toml"), "--plan no.toml"),
        (("--time-budget", "0"), "--time-budget"),
        (("--kv-type", "f16", "--flag-set", "x=-ctk q8_0"), "KV types are an axis"),
        (("--kv-type", "f16", "--", "--cache-type-v=q8_0"), "KV types are an axis"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    cell: Cell, sweep: Sweeping, words: tuple[str, ...], said: str
) -> None:
    outcome = sweep(*words)
    assert outcome.code == 2
    assert said in outcome.stderr
    assert not cell.out_dir.exists()


def test_no_model_and_no_server_are_asked_for(cell: Cell) -> None:
    assert "--server-bin" in cli("run-matrix", "--model", cell.model).stderr
    assert "--model" in cli("run-matrix", "--server-bin", cell.server).stderr


@pytest.mark.parametrize(
    ("change", "issue"),
    [
        ({"version": 2}, "version"),
        ({"modles": ["a"]}, "modles"),
        ({"models": []}, "an empty list"),
        ({"models": ["a", "a"]}, "is there twice"),
        ({"ctx": [0]}, "no whole number from 1"),
        ({"ctx": 512}, "is not a list"),
        ({"parallel": [True]}, "no whole number"),
        ({"kv_types": ["f17"]}, "f17"),
        ({"flag_sets": {"a": "--x"}}, "is not a list of texts"),
        ({"flag_sets": {"..": []}}, "a name has 1 to 60"),
        ({"flag_sets": {}}, "is empty"),
        ({"passes": 0}, "passes"),
        ({"workset": None}, "leave it out"),
        ({"server_bin": " "}, "names nothing"),
    ],
)
def test_a_plan_says_all_that_is_wrong_with_it(change: dict[str, object], issue: str) -> None:
    good = {"version": 1, "models": ["a"]}
    parse_plan(json.dumps(good).encode(), Path("p.json"))
    with pytest.raises(FileFormatError) as refused:
        parse_plan(json.dumps({**good, **change, "x-unknown": 1}).encode(), Path("p.json"))
    assert any(issue in found for found in refused.value.issues)
    assert any("x-unknown" in found for found in refused.value.issues)


def test_models_stay_together_and_too_many_cells_are_refused() -> None:
    text = (
        b"""{"version": 1, "models": ["a", "b"], "ctx": [1, 2], "kv_types": ["f16", "q8_0/q4_0"]}"""
    )
    groups = groups_of(parse_plan(text, Path("p.json")), ("--x",))
    assert [group.model for group in groups] == ["a"] * 4 + ["b"] * 4
    assert groups[1].folder == "default__kv-q8_0-q4_0"
    assert groups[1].flags == ("-ctk", "q8_0", "-ctv", "q4_0", "--x")
    many = {
        "version": 1,
        "models": ["a"],
        "ctx": list(range(1, 60)),
        "parallel": list(range(1, 60)),
    }
    with pytest.raises(Exception, match="3481 cells, at most 1000"):
        groups_of(parse_plan(json.dumps(many).encode(), Path("p.json")))
