"""`profiles`: what a user sees of it, and which files it leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from batch_invariance.cli import main as program
from batch_invariance.live_invariance.profile_files import example_registry
from batch_invariance.live_invariance.registry import Lookup, load_entry
from batch_invariance.profiles.spark.families import Family

EXAMPLE = example_registry("spark")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> int:
    return program.main(["profiles", *words])


def refused(capsys: pytest.CaptureFixture[str], said: str, *words: str) -> None:
    assert run(*words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_list_names_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    assert capsys.readouterr().out == (
        f"spark: {len(Family)} families of items; example registry with smollm2, smollm2-q8kv\n"
    )


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json") == 0
    (spark,) = json.loads(capsys.readouterr().out)["profiles"]
    assert spark == {
        "name": "spark",
        "families": len(Family),
        "models": ["smollm2", "smollm2-q8kv"],
    }


def test_show_prints_the_families_and_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "spark") == 0
    out = capsys.readouterr().out
    assert out.startswith("profile spark\n")
    for family in Family:
        assert f"  {family.value}  {family.summary}\n" in out
    assert out.endswith(EXAMPLE.decode())


def test_show_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "spark", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["registry"].encode() == EXAMPLE
    assert shown["models"] == ["smollm2", "smollm2-q8kv"]
    assert [row["name"] for row in shown["families"]] == [family.value for family in Family]


def test_init_writes_a_registry_that_is_found_and_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("init", "spark") == 0
    assert "models.toml: the example registry of profile spark" in capsys.readouterr().out
    assert (tmp_path / "models.toml").read_bytes() == EXAMPLE
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    for alias in ("smollm2", "smollm2-q8kv"):
        entry = load_entry(alias, Lookup(models_dir=tmp_path))
        assert entry.origins.kv == f"./models.toml [models.{alias}]"


def test_init_writes_where_it_is_asked_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "own.toml"
    assert run("init", "spark", "--out", str(target), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(target), "profile": "spark"}
    assert target.read_bytes() == EXAMPLE
    assert os.listdir(tmp_path) == ["own.toml"]


def test_init_never_writes_over_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "models.toml"
    target.write_text("mine")
    refused(capsys, "models.toml exists already; choose another file", "init", "spark")
    assert target.read_text() == "mine"
    target.unlink()
    target.symlink_to("nowhere.toml")
    refused(capsys, "exists already", "init", "spark")
    assert os.listdir(tmp_path) == ["models.toml"]
    assert target.is_symlink()
    refused(capsys, "exists already", "init", "spark", "--out", str(tmp_path))


def test_init_creates_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    refused(capsys, "a/b.toml: there is no folder a", "init", "spark", "--out", "a/b.toml")
    assert os.listdir(tmp_path) == []


def test_a_refusal_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "models.toml").touch()
    assert run("init", "spark", "--json") == 2
    report = json.loads(capsys.readouterr().out)
    assert report["exit_code"] == 2
    assert "exists already" in report["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show",), "profiles show needs the name of a profile; installed: spark"),
        (("init",), "profiles init needs the name of a profile; installed: spark"),
        (("list", "spark"), "profiles list takes no name"),
        (("show", "sparc"), "there is no profile 'sparc'; installed: spark"),
        (("init", "../spark"), "there is no profile '../spark'"),
        (("init", "no\x1b[31m"), r"there is no profile 'no\x1b[31m'"),
        (("show", "spark", "--out", "x"), "--out is for init"),
        (("list", "--out", "x"), "--out is for init"),
        (("list", "--", "-t", "8"), "nothing may follow --"),
    ],
)
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    refused(capsys, said, *words)
    assert os.listdir(tmp_path) == []


def test_an_unknown_action_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("lst")
    assert ended.value.code == 2
    assert "invalid choice: 'lst'" in capsys.readouterr().err
